// One model: its picture, its answer, all blocks at a glance, and what is known of the token under the pointer.
import { answerBars } from "./charts.js";
import { attentionPercent, colourOf, make, paint, paintPicture, percent, range, short, showLegend } from "./draw.js";
import { Inspector, wordRow } from "./inspector.js";
import { BlockMaps, blockCell, cellUnder } from "./maps.js";
import { Reading, readable } from "./reading.js";
import { exportable } from "./take.js";

const MAPS = {
  attention: { title: "Attention", why: "How much the token takes from each other one, mean over heads. A token is a patch of the picture, or the class token that collects the answer." },
  logit: { title: "Class logit", why: "How strongly each patch speaks for the chosen class when the model’s own head reads it. A logit is a score before it becomes a probability.", table: "diverging" },
  identifiability: { title: "Identifiability", why: "Where the chosen class stands among all classes at each patch: 1 is on top, about 0.5 is chance.", table: "sequential" },
  norm: { title: "Norm", why: "The length of each patch’s vector: how much has been written there.", table: "sequential" },
};
const FEW = 64; // tokens: among more, most values are small beside the largest
const OF_TEXT = {
  attention: { title: "Attention", why: "How much the token takes from each other one, mean over heads. A token is a piece of the text, often a word." },
  logit: { title: "Word logit", why: "How strongly each token expects the chosen word next, when the model’s own head reads it. A logit is a score before it becomes a probability." },
  identifiability: { title: "Identifiability", why: "Where the chosen word stands among all words at each token: 1 is on top, about 0.5 is chance." },
  norm: { title: "Norm", why: "The length of each token’s vector: how much has been written there." },
};

export class View {
  constructor(number, facts, app) {
    Object.assign(this, { number, facts, app, now: null, before: null, words: facts.grid ? MAPS : OF_TEXT });
    this.stage = make("div", { className: "stage", tabIndex: 0, role: "application", "aria-label": "The input. Arrow keys go from token to token, Enter keeps one, Space adds it to the region." });
    this.picture = make("canvas", { className: "picture" });
    this.over = make("canvas", { className: "over" });
    this.cursor = make("div", { className: "cursor", hidden: true });
    this.region = make("div", { className: "region" });
    this.chips = make("div", { className: "chips" });
    this.where = make("p", { className: "where", role: "status" });
    this.here = make("p", { className: "here" });
    this.answers = make("div", { className: "answer" });
    this.classBox = make("input", { type: "text", id: `class-${number}`, autocomplete: "off" });
    this.classBox.setAttribute("list", `classes-${number}`);
    this.onPicture = make("select", { id: `over-${number}` }, ...[["", "nothing"], ...Object.entries(this.words).map(([k, m]) => [k, m.title.toLowerCase()])].map(([value, text]) => make("option", { value }, text)));
    this.onPicture.value = "attention";
    this.stageBlock = document.createTextNode("");
    this.stageLegend = make("span", { className: "stage-legend" }, this.stageBlock, make("span", { className: "legend-slot" }));
    this.glance = make("section", { className: "glance" });
    this.maps = new BlockMaps(this.glance, { heading: "h4", least: 0, choose: (_, block) => app.setBlock(block), leave: () => app.link(null),
      read: (kind, block, canvas, event) => this.readValue(kind, block, this.tokenUnder(event, canvas)) });
    this.inspector = new Inspector(this);
    this.notes = make("div", {});
    this.input = make("section", { className: "input" }, make("h2", {}, facts.name), make("p", { className: "why" }, facts.about), this.stage, this.where, this.here);
    exportable(this.input, `${facts.name}-input`);
    this.element = make("article", { className: "view", data: { model: number } },
      make("div", { className: "left" }, this.input, this.chips,
        make("p", { className: "pick" }, make("label", { for: `over-${number}` }, facts.grid ? "On the picture" : "On the text"), this.onPicture, this.stageLegend),
        make("p", { className: "pick" }, make("label", { for: `class-${number}` }, facts.grid ? "Chosen class" : "Chosen word"), this.classBox,
          make("datalist", { id: `classes-${number}` }, ...facts.classes.slice(0, 2000).map((c) => make("option", { value: c })))),
        this.answers, this.notes),
      make("div", { className: "right" }, this.glance, ...this.inspector.sections));
    this.listen();
    const left = this.element.querySelector(".left");
    new ResizeObserver(() => this.stick(left)).observe(left);
    addEventListener("resize", () => this.stick(left));
  }

  // The left column stays in sight while the right one is scrolled; if it is taller than the window, its end does.
  stick(left) { left.style.top = `${Math.min(12, innerHeight - left.offsetHeight - 12)}px`; }

  listen() {
    this.stage.addEventListener("pointermove", (event) => this.app.point(this, this.tokenAt(event)));
    this.stage.addEventListener("pointerleave", () => this.app.point(this, null));
    this.stage.addEventListener("pointerdown", (event) => this.app.press(this, this.tokenAt(event), event));
    this.stage.addEventListener("keydown", (event) => this.key(event));
    this.onPicture.addEventListener("change", () => this.drawStage());
    this.classBox.addEventListener("change", () => this.app.choose(this, this.classBox.value));
  }

  // The token under the pointer, or null.
  tokenAt(event) {
    if (!this.now) return null;
    const word = event.target.closest && event.target.closest("[data-token]");
    if (this.now.t.words.length) return word ? Number(word.dataset.token) : null;
    return this.tokenUnder(event, this.stage);
  }

  tokenUnder(event, element) {
    const { row, column } = cellUnder(event, element, ...this.now.grid);
    return this.now.prefix + row * this.now.grid[1] + column;
  }

  placeToToken(x, y) {
    const [rows, columns] = this.now.grid;
    const column = Math.min(columns - 1, Math.max(0, Math.floor(x * columns)));
    const row = Math.min(rows - 1, Math.max(0, Math.floor(y * rows)));
    return this.now.prefix + row * columns + column;
  }

  // Where a token is, as shares of the picture: what linked cursors of two models have in common.
  tokenToPlace(token) {
    const [rows, columns] = this.now.grid;
    const place = token - this.now.prefix;
    return place < 0 ? null : { x: ((place % columns) + 0.5) / columns, y: (Math.floor(place / columns) + 0.5) / rows, w: 1 / columns, h: 1 / rows };
  }

  // The tokens on the line from one to another.
  between(from, to) {
    if (from === to) return [to];
    const columns = this.now.grid[1];
    const [[row, column], [lastRow, lastColumn]] = [from, to].map((t) => [Math.floor((t - this.now.prefix) / columns), (t - this.now.prefix) % columns]);
    const steps = Math.max(Math.abs(lastRow - row), Math.abs(lastColumn - column));
    const at = (a, b, i) => Math.round(a + ((b - a) * i) / steps);
    return Array.from({ length: steps + 1 }, (_, i) => this.now.prefix + at(row, lastRow, i) * columns + at(column, lastColumn, i));
  }

  key(event) {
    if (!this.now) return;
    const columns = this.now.grid[1];
    const { token } = this.app.tokenOf(this);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (step) this.app.pin(this, Math.max(0, Math.min(this.now.tokens - 1, token + step)));
    else if (event.key === " ") this.app.toggleRegion(this, token);
    else if (event.key === "Enter") this.app.pin(this, token);
    else return;
    event.preventDefault();
  }

  show(now, before) {
    this.now = new Reading(now, this.facts);
    this.before = new Reading(before, this.facts);
    this.compare = now !== before;
    this.classBox.value = this.now.name(now.chosen);
    const { words } = now;
    this.element.classList.toggle("text", words.length > 0);
    if (words.length) {
      this.stage.replaceChildren(...words.map((word, token) => make("span", { className: "word", data: { token } }, readable(word))));
    } else if (!this.picture.isConnected) {
      this.stage.replaceChildren(this.picture, this.over, this.region, this.cursor);
    }
    if (now.arrays.picture) {
      paintPicture(this.picture, now.arrays.picture);
      this.element.style.setProperty("--picture", `url(${this.picture.toDataURL()})`);
      this.stage.style.aspectRatio = `${this.picture.width} / ${this.picture.height}`;
    }
    this.chips.replaceChildren(...this.facts.prefix.map((kind, token) => {
      const chip = make("button", { type: "button", data: { token } }, `${kind} token`);
      chip.addEventListener("click", () => this.app.pin(this, token));
      return chip;
    }));
    this.notes.replaceChildren(...now.notes.map((note) => make("p", { className: "notice" }, note)));
    this.drawAnswers();
    this.buildGlance();
    this.inspector.build();
    this.draw();
  }

  drawAnswers() {
    const shown = [...new Set([...this.now.t.answers.slice(0, 5), ...(this.compare ? this.before.t.answers.slice(0, 3) : [])].map(([c]) => c).concat([this.now.t.chosen, this.now.t.label]))].filter((c) => c >= 0);
    const rows = shown.map((c) => ({ number: c, name: this.now.name(c), now: this.now.probability(c), before: this.before.probability(c),
      marks: [c === this.now.t.chosen ? "chosen" : "", c === this.now.t.label ? "true" : ""].filter(Boolean) }));
    rows.sort((a, b) => b.now - a.now);
    this.answers.hidden = this.classBox.parentElement.hidden = !this.facts.num_classes;
    this.answers.replaceChildren(answerBars(rows.slice(0, 8), this.compare));
    exportable(this.answers, `${this.facts.name}-answers`);
  }

  // All blocks at a glance. Only the attention row follows the pointer.
  buildGlance() {
    const { now, before } = this;
    const parts = [make("h3", {}, "Every block at a glance"),
      make("p", { className: "why" }, `Each ${now.t.words.length ? "strip is the text" : "picture is the input"} after one block, “in” is before the first.${now.t.words.length ? "" : " The picture shines through the colours."} Choose a block to look closer.`)];
    if (now.answer(0)) {
      const readings = Array.from({ length: now.blocks }, (_, block) => {
        const [new_, old] = [now.answer(block), before.answer(block)];
        const changed = new_.number !== old.number;
        const moved = Math.abs(new_.of(now.t.chosen) - old.of(now.t.chosen)) >= 0.01;
        const name = now.name(new_.number);
        const label = make("span", { className: "reading", title: `${name}, ${percent(new_.of(new_.number))}` }, make("span", { className: "name" }, name), make("small", {}, percent(new_.of(new_.number), 0)));
        const found = blockCell("answer", "Answer", block, label);
        found.classList.add(...[changed && "changed", moved && "moved"].filter(Boolean));
        return found;
      });
      const marks = make("span", { className: "legend marks" }, ...[["changed", "another answer than before"], ["moved", "same answer, its probability moved"]].map(([kind, words]) => make("span", {}, make("i", { className: kind }), words)));
      parts.push(this.maps.rowOf({ kind: "answer", title: "Answer so far", why: `What the ${now.t.words.length ? "last token" : "model"} would say if this block were the last.`, cells: readings, beside: this.compare ? marks : null }));
    }
    const [rows, columns] = now.grid;
    for (const [kind, { table }] of Object.entries(MAPS)) {
      if (kind === "attention" ? !now.hasAttention : !now.map(kind, 0)) continue;
      const first = kind === "attention" ? 0 : -1; // only attention follows the pointer: `draw` paints it
      const scale = kind === "attention" ? null : this.scale(kind, table);
      const maps = Array.from({ length: now.blocks - first }, (_, i) => ({ block: first + i, rows, columns, values: scale && now.onGrid(now.map(kind, first + i)) }));
      parts.push(this.maps.row({ kind, ...this.words[kind], scale, maps, above: wordRow(now.t.words) }));
    }
    this.value = make("p", { className: "readout", role: "status" }, now.t.words.length ? "Point at a strip for its values." : "Point at a small picture for its values.");
    this.maps.show(now.blocks, ...parts, this.value);
    exportable(this.glance, `${this.facts.name}-blocks`);
  }

  scale(kind, table) {
    const { data } = this.now.t.arrays[kind];
    if (kind === "identifiability") return { low: 0, high: 1, table };
    if (kind === "norm") return { low: 0, high: range([data]).high, table, root: this.now.tokens > FEW };
    return { ...range([data], true), table };
  }

  attentionScale(rows) {
    const drawn = rows.map(({ values }) => this.now.onGrid(values));
    if (this.now.signedAttention) return { ...range(drawn, true), table: "diverging" };
    return { low: 0, high: range(drawn).high, table: "sequential", root: this.now.tokens > FEW, format: (v) => percent(v, 1) };
  }

  // All that follows the pointer.
  draw() {
    const { token, block } = this.app.tokenOf(this);
    if (!this.now || token === null) return;
    const rows = this.now.hasAttention ? Array.from({ length: this.now.blocks }, (_, b) => this.now.meanLooks(b, token)) : [];
    this.attention = rows[0] ? rows : null;
    if (this.attention) this.maps.paint("attention", rows.map(({ values }) => this.now.onGrid(values)), ...this.now.grid, this.attentionScale(rows));
    else if (this.now.hasAttention) this.app.wantRows(this, token);
    this.where.replaceChildren("Looking from ", make("b", {}, this.now.tokenName(token)), ".");
    const known = ["logit", "identifiability", "norm"].filter((kind) => this.now.map(kind, block));
    this.here.textContent = `After block ${block} there: ${known.map((kind) => `${this.words[kind].title.toLowerCase()} ${short(this.now.map(kind, block)[token])}`).join(", ")}.`;
    this.maps.mark((_, of) => of === block);
    for (const chip of this.chips.children) chip.setAttribute("aria-pressed", String(Number(chip.dataset.token) === token));
    this.drawStage();
    this.inspector.draw(token, block);
  }

  drawStage() {
    const { token, block } = this.app.tokenOf(this);
    const kind = this.onPicture.value;
    const values = kind === "attention" ? this.attention && this.attention[block].values : kind && this.now.map(kind, block);
    const scale = kind === "attention" ? this.attention && this.attentionScale([this.attention[block]]) : kind && values && this.scale(kind, MAPS[kind].table);
    const region = this.app.regionOf(this);
    if (this.now.t.words.length) {
      [...this.stage.children].forEach((span, i) => {
        span.style.setProperty("--mark", values ? `rgb(${colourOf(values[i], scale).join(" ")})` : "transparent");
        span.classList.toggle("here", i === token);
        span.classList.toggle("chosen", region.includes(i));
      });
    } else {
      this.over.hidden = !values;
      if (values) paint(this.over, this.now.onGrid(values), ...this.now.grid, scale);
      this.place(this.cursor, token);
      this.region.replaceChildren(...region.map((t) => { const box = make("div", { className: "chosen" }); this.place(box, t); return box; }));
    }
    this.stageLegend.hidden = !values;
    if (!values) return;
    this.stageBlock.data = `block ${block} `;
    showLegend(this.stageLegend.lastChild, scale);
  }

  place(box, token) {
    const place = this.tokenToPlace(token);
    box.hidden = !place;
    if (!place) return;
    box.style.left = `${100 * (place.x - place.w / 2)}%`;
    box.style.top = `${100 * (place.y - place.h / 2)}%`;
    box.style.width = `${100 * place.w}%`;
    box.style.height = `${100 * place.h}%`;
  }

  // The value under the pointer in a small picture; the same place is marked everywhere.
  readValue(kind, block, token) {
    const place = this.now.tokenName(token);
    const where = block < 0 ? "before block 0" : `after block ${block}`;
    if (kind === "attention") {
      if (!this.attention) return;
      const { values, step } = this.attention[block];
      this.value.textContent = `Block ${block}: ${this.now.tokenName(this.app.tokenOf(this).token)} takes ${attentionPercent(values[token], step)} from ${place}.`;
    } else {
      const of = kind === "norm" ? "" : ` of “${this.now.name(this.now.t.chosen)}”`;
      this.value.textContent = `${this.words[kind].title}${of} ${where} at ${place}: ${short(this.now.map(kind, block)[token])}`;
    }
    this.app.link(this.tokenToPlace(token));
  }
}
