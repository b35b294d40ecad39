// The explorer: what is looked at, from where, with which changes; it is in the address, so a view can be linked.
import { getJson, postBinary, postJson, postText } from "./api.js";
import { BreakPanel } from "./breaking.js";
import { ChangePanel } from "./change.js";
import { Chooser } from "./choose.js";
import { make, setColours } from "./draw.js";
import { View } from "./view.js";

const message = document.querySelector("#message");
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

class App {
  constructor(start) {
    this.start = start;
    this.pictures = []; // of one's own
    this.brushing = false;
    this.known = new Map(); // unchanged views by input: what changes are compared with
    this.asking = null;
    this.hover = null;
    this.width = innerWidth;
    const asked = new URLSearchParams(location.search);
    const number = (name, otherwise) => (asked.has(name) && /^\d+$/.test(asked.get(name)) ? Number(asked.get(name)) : otherwise);
    const first = asked.has("picture") ? { hash: asked.get("picture") } : asked.has("text") ? { text: asked.get("text") } : start.data ? { item: number("item", 0) } : null;
    this.state = {
      subject: first, clean: first, token: number("token", 0), block: number("block", start.models[0].blocks - 1), view: 0,
      region: new Set(), regionView: 0, changes: start.models.map(() => []), chosen: start.models.map(() => number("class", null)),
    };
    this.state.block = Math.min(this.state.block, start.models[0].blocks - 1);
    this.views = start.models.map((facts, i) => new View(i, facts, this));
    const box = document.querySelector("#views");
    box.append(...this.views.map((view) => view.element));
    box.classList.toggle("several", this.views.length > 1);
    if (this.views.length === 1) this.views[0].element.querySelector(".right").append(document.querySelector("#panels")); // beside the answer
    this.chooser = new Chooser(this, start);
    this.change = new ChangePanel(this, start);
    this.break = new BreakPanel(this, start);
    document.querySelector("#about").textContent = [start.models.map((m) => m.name).join(" and "), start.data && `${start.data.name} ${start.data.split}`].filter(Boolean).join(" · ");
    document.title = `${start.models.map((m) => m.name).join(", ")} · vitscope explore`;
    document.querySelector("#copy").addEventListener("click", () => this.copy());
    document.querySelector("#save").addEventListener("click", () => this.save());
    const code = document.querySelector("#code");
    code.querySelector("[data-close]").addEventListener("click", () => code.close());
    code.querySelector("[data-copy]").addEventListener("click", () => this.toClipboard(code.querySelector("pre").textContent));
    addEventListener("pointerup", () => { this.pressed = this.brushed = null; });
    addEventListener("resize", () => this.fit());
    start.notes.forEach((note) => box.before(make("p", { className: "notice" }, note)));
  }

  get broken() { return !same(this.state.subject, this.state.clean); }

  say(text, bad = false) {
    message.hidden = !text;
    message.textContent = text;
    message.classList.toggle("bad", bad);
  }

  // Do something that may fail: an error is said in words.
  async doing(action) {
    document.body.classList.add("busy");
    try {
      this.say("");
      await action();
    } catch (error) {
      if (error.name !== "AbortError") this.say(error.message, true);
    } finally {
      document.body.classList.remove("busy");
    }
  }

  // --- what is looked at --------------------------------------------------------------------------------------------

  setSubject(subject) {
    const old = { ...this.state };
    Object.assign(this.state, { subject, clean: subject });
    if (subject.text) Object.assign(this.state, { token: Infinity, region: new Set() }); // the last one says what comes next
    this.state.chosen = this.state.chosen.map(() => null);
    return this.look(() => this.goBack(old));
  }

  setBroken(subject) {
    const old = { ...this.state };
    this.state.subject = subject;
    return this.look(() => this.goBack(old));
  }

  // What cannot be looked at is not kept: the page goes on with what it shows.
  goBack({ subject, clean, token, chosen }) {
    Object.assign(this.state, { subject, clean, token, chosen });
    this.chooser.mark(clean);
  }

  setChanges(model, changes) {
    const old = this.state.changes[model];
    this.state.changes[model] = changes;
    return this.look(() => { this.state.changes[model] = old; });
  }

  asked(model, subject, changes, chosen) {
    return { model, subject, changes, class: chosen };
  }

  async look(undo) {
    if (!this.state.subject) { this.say(""); return; }
    if (this.asking) this.asking.abort();
    const asking = new AbortController();
    this.asking = asking;
    let failed = true;
    await this.doing(async () => {
      const { subject, clean, changes, chosen } = this.state;
      const first = await this.reference(0, clean, chosen[0], asking.signal);
      const found = await Promise.all(this.views.map(async (view, m) => {
        const alike = chosen[m] === null && this.comparable(view); // one class for all, or maps could not be compared
        const before = m ? await this.reference(m, clean, alike ? first.chosen : chosen[m], asking.signal) : first;
        const plain = same(subject, clean) && !changes[m].length;
        const now = plain ? before : await postBinary("api/look", this.asked(m, subject, changes[m], before.chosen), asking.signal);
        return [now, before];
      }));
      failed = false;
      document.body.classList.remove("empty");
      this.state.token = Math.min(this.state.token, found[this.state.view][0].tokens - 1);
      this.state.chosen = chosen.map((one, m) => (one === null ? null : found[m][1].chosen));
      found.forEach(([now, before], m) => this.views[m].show(now, before));
      this.change.show(this.views);
      this.break.show(this.views);
      this.chooser.mark(clean);
      this.address();
    });
    if (failed && !asking.signal.aborted && undo) undo();
    document.body.dataset.ready = String(Number(document.body.dataset.ready || 0) + 1);
  }

  // Has a model the classes of the first one?
  comparable(view) {
    return !this.start.text && same(view.facts.classes, this.views[0].facts.classes);
  }

  // The unchanged view of the clean input, asked for once.
  async reference(model, subject, chosen, signal) {
    const key = JSON.stringify([model, subject, chosen]);
    if (!this.known.has(key)) {
      this.known.set(key, await postBinary("api/look", this.asked(model, subject, [], chosen), signal));
      if (this.known.size > 8) this.known.delete(this.known.keys().next().value);
    }
    return this.known.get(key);
  }

  choose(view, text) {
    const wanted = text.trim().toLowerCase();
    const named = Object.entries(view.now.t.names || view.facts.classes).find(([, name]) => String(name).trim().toLowerCase() === wanted);
    const number = named ? Number(named[0]) : /^\d+$/.test(wanted) ? Number(wanted) : this.start.text && wanted ? text.trim() : -1; // the server knows all words
    if (number < 0 || number >= view.facts.num_classes) { this.say(`There is no class “${text}”.`, true); return; }
    const [all, old] = [this.comparable(view), this.state.chosen];
    this.state.chosen = old.map((was, m) => (m === view.number || (all && this.comparable(this.views[m])) ? number : was));
    this.look(() => { this.state.chosen = old; });
  }

  // --- pointing -------------------------------------------------------------------------------------------------------

  // The token that a view shows: its own, or the one at the same place as in the view that is pointed at.
  tokenOf(view) {
    const { view: from, token } = this.hover || this.state;
    const block = Math.min(this.state.block, view.facts.blocks - 1);
    if (!view.now) return { token: null, block };
    return { token: this.across(token, this.views[from], view), block };
  }

  // A token of one view in another: of patches what lies at the same place, else the same number.
  across(token, from, view) {
    if (from === view || !from.now || token < from.now.prefix || view.now.t.words.length) return Math.min(token, view.now.tokens - 1);
    const place = from.tokenToPlace(token);
    return view.placeToToken(place.x, place.y);
  }

  // The brushed tokens as a view has them: those whose middle lies in the region, and those in which the region's lie.
  regionOf(view) {
    const { region, regionView } = this.state;
    const from = this.views[regionView];
    if (!region.size || from === view) return [...region];
    const inside = view.now.t.words.length ? [] : Array.from({ length: view.now.tokens }, (_, t) => t).filter((t) => region.has(this.across(t, view, from)));
    return [...new Set([...inside, ...[...region].map((t) => this.across(t, from, view))])];
  }

  point(view, token) {
    if (this.pressed && token !== null) this.brush(view, token);
    const hover = token === null ? null : { view: view.number, token };
    if (same(hover, this.hover)) return;
    this.hover = hover;
    this.draw();
  }

  press(view, token, event) {
    if (token === null) return;
    if (!this.brushing) { this.pin(view, token); return; }
    event.preventDefault();
    this.begin(view, token);
  }

  // The first token says whether tokens are added or taken away.
  begin(view, token) {
    Object.assign(this.state, { region: new Set(this.regionOf(view)), regionView: view.number });
    this.pressed = this.state.region.has(token) ? "delete" : "add";
    this.brush(view, token);
  }

  // A quick pointer jumps: what lies on its way is brushed, too.
  brush(view, token) {
    for (const each of view.between(this.brushed ?? token, token)) this.state.region[this.pressed](each);
    this.brushed = token;
    this.draw();
    this.change.update();
  }

  toggleRegion(view, token) {
    this.begin(view, token);
    this.pressed = this.brushed = null;
  }

  pin(view, token) {
    Object.assign(this.state, { token, view: view.number });
    this.hover = null;
    this.draw();
    this.address();
  }

  setBlock(block) {
    this.state.block = block;
    this.draw();
    this.address();
  }

  // Mark the same place in all pictures.
  link(place) {
    for (const view of this.views) if (view.now && place) view.place(view.cursor, view.placeToToken(place.x, place.y));
    if (!place) this.views.forEach((view) => view.now && view.place(view.cursor, this.tokenOf(view).token));
  }

  // Charts keep the size of their letters: they are drawn again where the room for them is another.
  fit() {
    if (this.width === innerWidth) return;
    this.width = innerWidth;
    this.draw();
    this.break.show(this.views);
  }

  draw() {
    const begun = performance.now();
    this.views.forEach((view) => view.now && view.draw());
    this.took = performance.now() - begun;
    document.body.dataset.took = this.took.toFixed(1);
  }

  // A large model's attention comes by the row, a moment after the pointer rests.
  wantRows(view, token) {
    clearTimeout(view.wanting);
    view.wanting = setTimeout(async () => {
      const { now } = view;
      const { subject, changes } = this.state;
      try {
        const rows = await postBinary("api/rows", { ...this.asked(view.number, subject, changes[view.number], null), token });
        if (view.now !== now || this.tokenOf(view).token !== token) return;
        now.rows = rows;
        this.draw();
      } catch (error) {
        this.say(error.message, true);
      }
    }, 60);
  }

  address() {
    const { clean, token, view, block, chosen } = this.state;
    const words = new URLSearchParams();
    if (clean.item !== undefined) words.set("item", clean.item);
    if (clean.hash) words.set("picture", clean.hash);
    if (clean.text) words.set("text", clean.text);
    words.set("token", this.across(token, this.views[view], this.views[0]));
    words.set("block", block);
    if (chosen[0] !== null) words.set("class", chosen[0]);
    history.replaceState(null, "", `?${words}`);
  }

  // --- take it with you -----------------------------------------------------------------------------------------------

  whole() {
    return this.views.map(({ number: m, now }) => this.asked(m, this.state.subject, this.state.changes[m], now.t.chosen));
  }

  copy() {
    return this.doing(async () => {
      const text = await postText("api/script", { views: this.whole() });
      const code = document.querySelector("#code");
      code.querySelector("pre").textContent = text;
      code.showModal();
      await this.toClipboard(text);
    });
  }

  async toClipboard(text) {
    const code = document.querySelector("#code");
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // as in a notebook's frame
      getSelection().selectAllChildren(code.querySelector("pre"));
      done = document.execCommand("copy");
    }
    code.querySelector("[role=status]").textContent = done ? "It is on the clipboard." : "The browser does not give the clipboard: select the script and copy it.";
  }

  save() {
    return this.doing(async () => {
      const folders = [];
      for (const asked of this.whole()) folders.push((await postJson("api/save", asked)).folder);
      this.say(`Saved to ${folders.join(" and ")}: tables, script.py and report.html.`);
    });
  }
}

try {
  const start = await getJson("api/start");
  setColours(start.colours);
  const app = new App(start);
  await app.look(() => Object.assign(app.state, { subject: null, clean: null }));
  if (!start.text && start.data) await app.chooser.list(app.state.clean && app.state.clean.item !== undefined ? app.state.clean.item - (app.state.clean.item % start.per_page) : 0);
  document.body.dataset.started = "true";
} catch (error) {
  message.hidden = false;
  message.classList.add("bad");
  message.textContent = error.message;
}
