// Changes: switch off a head, an attention, an MLP, tokens; patch tokens from another input. They stack.
import { make } from "./draw.js";

const KINDS = { head: "switch off a head", attention: "switch off the attention of a block", mlp: "switch off the MLP of a block", tokens: "switch off tokens", patch: "take tokens from another input" };

export class ChangePanel {
  constructor(app, start) {
    Object.assign(this, { app, start });
    const option = (value, text) => make("option", { value }, text);
    this.kind = make("select", { id: "change-kind" }, ...Object.entries(KINDS).map(([value, text]) => option(value, text)));
    this.model = make("select", { id: "change-model" }, ...start.models.map((m, i) => option(i, m.name)));
    this.block = make("select", { id: "change-block" });
    this.head = make("select", { id: "change-head" });
    this.by = make("select", { id: "change-by" }, option("mean", "its mean over the tokens"), option("zero", "zero"));
    this.source = make("select", { id: "change-source" });
    this.item = make("input", { type: start.text ? "text" : "number", id: "change-item", size: 36, min: 0, value: start.text ? "" : 0, "aria-label": start.text ? "the other sentence" : "number of the other item" });
    this.brush = make("button", { type: "button", id: "brush", "aria-pressed": "false" }, "Brush a region");
    this.clear = make("button", { type: "button", id: "clear-region" }, "Forget the region");
    this.region = make("span", { className: "why", id: "region-words" });
    this.apply = make("button", { type: "button", className: "main", id: "apply" }, "Switch off");
    this.undo = make("button", { type: "button", id: "undo" }, "Undo");
    this.reset = make("button", { type: "button", id: "reset" }, "Remove all");
    this.list = make("ol", { className: "changes", id: "changes" });
    const field = (id, label, ...inputs) => make("span", { className: "field", data: { for: id } }, make("label", { htmlFor: inputs[0].id }, label), ...inputs);
    document.querySelector("#change .body").append(
      make("div", { className: "form" }, field("kind", "change", this.kind), field("model", "in", this.model), field("block", "block", this.block), field("head", "head", this.head),
        field("source", "taken from", this.source, this.item), field("by", "in its place stands", this.by)),
      make("div", { className: "form", data: { for: "region" } }, this.brush, this.clear, this.region),
      make("div", { className: "form" }, this.apply, this.undo, this.reset), this.list);
    this.kind.addEventListener("change", () => this.update());
    this.model.addEventListener("change", () => this.update());
    this.brush.addEventListener("click", () => this.setBrush(this.brush.getAttribute("aria-pressed") !== "true"));
    this.clear.addEventListener("click", () => { app.state.region.clear(); app.draw(); this.update(); });
    this.apply.addEventListener("click", () => this.add());
    this.undo.addEventListener("click", () => app.setChanges(Number(this.model.value), app.state.changes[Number(this.model.value)].slice(0, -1)));
    this.reset.addEventListener("click", () => app.setChanges(Number(this.model.value), []));
    this.update();
  }

  setBrush(on) {
    this.app.brushing = on;
    this.brush.setAttribute("aria-pressed", String(on));
    document.body.classList.toggle("brushing", on);
  }

  update() {
    const facts = this.start.models[Number(this.model.value)];
    const fill = (select, count) => {
      const old = Math.min(Number(select.value || 0), count - 1);
      select.replaceChildren(...Array.from({ length: count }, (_, i) => make("option", { value: i }, String(i))));
      select.value = old;
    };
    fill(this.block, facts.blocks);
    fill(this.head, facts.heads);
    const sources = [...(this.start.data ? [["item", "item number"]] : []), ...(this.start.text ? [["text", "the sentence"]] : []), ...this.app.pictures.map((p) => [p.hash, p.name])];
    const old = this.source.value;
    this.source.replaceChildren(...sources.map(([value, text]) => make("option", { value }, text)));
    if (sources.some(([value]) => value === old)) this.source.value = old;
    const kind = this.kind.value;
    const tokens = kind === "tokens" || kind === "patch";
    const shown = { model: this.start.models.length > 1, head: kind === "head", source: kind === "patch", by: kind !== "patch", region: tokens };
    for (const [name, on] of Object.entries(shown)) document.querySelector(`#change [data-for="${name}"]`).hidden = !on;
    this.item.hidden = !["item", "text"].includes(this.source.value);
    document.querySelector('#change [data-for="block"] label').textContent = tokens ? "before block" : "block";
    this.by.options[0].textContent = kind === "tokens" ? `the mean ${this.start.text ? "token" : "patch"} of this input` : "its mean over the tokens";
    this.apply.textContent = kind === "patch" ? "Put them in" : "Switch off";
    const view = this.app.views[Number(this.model.value)];
    const count = view.now ? this.app.regionOf(view).length : 0;
    this.region.textContent = count ? `${count} ${count === 1 ? "token is" : "tokens are"} chosen.` : `No region: the token you look from is meant. With the keyboard, Space on the ${this.start.text ? "text" : "picture"} adds a token.`;
    const changes = this.app.state.changes[Number(this.model.value)];
    this.undo.disabled = this.reset.disabled = !changes.length;
    this.clear.disabled = !count;
  }

  add() {
    const model = Number(this.model.value);
    const change = { kind: this.kind.value, block: Number(this.block.value), by: this.by.value };
    if (change.kind === "head") change.head = Number(this.head.value);
    if (["tokens", "patch"].includes(change.kind)) {
      const view = this.app.views[model];
      change.tokens = this.app.state.region.size ? this.app.regionOf(view) : [this.app.tokenOf(view).token];
    }
    if (change.kind === "patch") {
      const source = this.source.value;
      change.subject = source === "item" ? { item: Number(this.item.value) } : source === "text" ? { text: this.item.value } : { hash: source };
    }
    this.setBrush(false);
    return this.app.setChanges(model, [...this.app.state.changes[model], change]);
  }

  // The changes of all models in words, as the server puts them.
  show(views) {
    this.list.replaceChildren(...views.flatMap((view) => (view.now ? view.now.t.changes : []).map((words, i) => {
      const remove = make("button", { type: "button", "aria-label": `Take this change back: ${words}` }, "take back");
      remove.addEventListener("click", () => this.app.setChanges(view.number, this.app.state.changes[view.number].filter((_, k) => k !== i)));
      return make("li", {}, this.start.models.length > 1 ? `${view.facts.name}: ${words} ` : `${words} `, remove);
    })));
    this.update();
  }
}
