// The token under the pointer: where it looks head by head, who looks at it, what it says, what adds to it.
import { COLOURS, lineChart } from "./charts.js";
import { attentionPercent, make, paint, percent, range, short, showLegend, signed } from "./draw.js";
import { cellUnder, walkable } from "./maps.js";
import { readable } from "./reading.js";
import { exportable } from "./take.js";

const READABLE = 40; // words side by side
// The words of a text above its strips.
export const wordRow = (words) => {
  if (!words.length || words.length > READABLE) return null;
  const row = make("div", { className: "word-row", "aria-hidden": "true" }, ...words.map((word) => make("span", {}, readable(word).trim())));
  row.style.setProperty("--words", words.length);
  return row;
};

const section = (name, title) => make("section", { className: name }, make("h3", {}, title));

export class Inspector {
  constructor(view) {
    this.view = view;
    this.heads = section("heads", "Head by head");
    this.says = section("says", "What it says");
    this.adds = section("adds", "What adds to it");
    this.sections = [this.heads, this.says, this.adds];
    this.heads.addEventListener("pointermove", (event) => this.readHead(event));
    for (const kind of ["pointerleave", "focusout"]) this.heads.addEventListener(kind, () => view.app.link(null));
    this.sections.forEach(walkable);
  }

  build() {
    const { now, facts } = this.view;
    this.heads.hidden = !now.hasAttention;
    this.says.hidden = this.adds.hidden = !now.t.readable;
    const maps = (kind) => Array.from({ length: facts.heads }, (_, head) => {
      const canvas = make("canvas", { tabIndex: 0, role: "img", "aria-label": `${kind === "looks" ? "where it looks" : "who looks at it"}, head ${head}: arrow keys read values`, data: { head, kind } });
      return make("figure", {}, make("span", { className: "map" }, canvas), make("figcaption", {}, `head ${head}`));
    });
    this.looksMaps = maps("looks");
    this.seenMaps = maps("seen");
    this.looksLegend = make("span", { className: "legend-slot" });
    this.seenLegend = make("span", { className: "legend-slot" });
    this.headsTitle = make("h3", {});
    this.headsValue = make("p", { className: "readout", role: "status" });
    this.heads.replaceChildren(...[this.headsTitle,
      make("p", { className: "why" }, "A block has several heads; each decides by itself which tokens to look at."),
      make("h4", {}, "Where it looks", this.looksLegend), wordRow(now.t.words), make("div", { className: "heads-row" }, ...this.looksMaps),
      make("h4", {}, "Who looks at it", this.seenLegend), wordRow(now.t.words), make("div", { className: "heads-row" }, ...this.seenMaps), this.headsValue].filter(Boolean));
    exportable(this.heads, `${facts.name}-heads`);
    this.saysTitle = make("h3", {});
    this.chart = make("div", { className: "chart-box" });
    this.topList = make("p", { className: "top" });
    this.says.replaceChildren(this.saysTitle, make("p", { className: "why" }, `The five ${now.t.words.length ? "words" : "classes"} that lead at the end, by the model’s own head, block by block. “in” is before the first block.`), this.chart, this.topList);
    exportable(this.says, `${facts.name}-readings`);
    this.addsTitle = make("h3", {});
    this.parts = make("canvas", { className: "parts", tabIndex: 0, role: "img", "aria-label": "what every part adds: arrow keys read values" });
    this.partsLegend = make("span", { className: "legend-slot" });
    this.partsValue = make("p", { className: "readout", role: "status" });
    this.sum = make("p", { className: "sum" });
    const rows = now.t.has_heads ? [...Array(facts.heads).keys()].map((h) => `head ${h}`).concat("MLP") : ["attention", "MLP"];
    this.partRows = rows;
    const names = make("div", { className: "part-names" }, ...rows.map((name) => make("span", {}, name)));
    const blocks = make("div", { className: "part-blocks" }, ...Array.from({ length: facts.blocks }, (_, b) => make("span", {}, String(b))));
    for (const box of [names, this.parts]) box.style.setProperty("--parts", rows.length);
    this.adds.replaceChildren(this.addsTitle,
      make("p", { className: "why" }, "Every head and every MLP (the two-layer network of a block) adds a vector to the token. This is how much of each arrives in the logit, straight through the last norm and the head; what later blocks make of it is not counted."),
      now.t.why_no_parts ? make("p", { className: "notice" }, `Not shown: ${now.t.why_no_parts}.`)
        : make("div", { className: "parts-box" }, names, this.parts, make("span", {}), blocks),
      make("p", { className: "under" }, this.partsLegend), this.sum, this.partsValue);
    this.parts.onpointermove = (event) => this.readPart(event);
    exportable(this.adds, `${facts.name}-contributions`);
  }

  draw(token, block) {
    const { now } = this.view;
    this.token = token;
    this.block = block;
    if (now.hasAttention && now.hasRows(token)) this.drawHeads(token, block);
    if (!now.t.readable) return;
    const name = now.tokenName(token);
    this.saysTitle.textContent = `What ${name} says at every block`;
    const labels = ["in", ...Array.from({ length: now.blocks }, (_, b) => String(b))];
    const lines = now.curves(token).map(({ number, values }, i) => ({ name: now.name(number), values, colour: COLOURS[i], number }));
    this.chart.replaceChildren(lineChart({ lines, labels, at: block + 1, title: `Logits of five classes at ${name}, block by block`, unit: "logit", room: this.says.clientWidth }));
    this.topList.replaceChildren(`After block ${block} it says: `, ...now.top(block, token).flatMap(({ number, logit }, i) => [i ? ", " : "", make("b", {}, now.name(number)), ` ${short(logit)}`]), ".");
    this.drawParts(token);
  }

  drawHeads(token, block) {
    const { now } = this.view;
    this.headsTitle.textContent = `Block ${block}, head by head: ${now.tokenName(token)}`;
    const rows = { looks: [], seen: [] };
    for (let head = 0; head < now.heads; head += 1) {
      rows.looks.push(now.looks(block, head, token));
      rows.seen.push(now.seenBy(block, head, token));
    }
    this.rows = rows;
    for (const [kind, maps, slot] of [["looks", this.looksMaps, this.looksLegend], ["seen", this.seenMaps, this.seenLegend]]) {
      const scale = this.view.attentionScale(rows[kind]);
      rows[kind].forEach(({ values }, head) => paint(maps[head].querySelector("canvas"), now.onGrid(values), ...now.grid, scale));
      showLegend(slot, scale);
    }
    if (!now.prefix) { this.headsValue.textContent = "Point at a map for its values."; return; }
    const shares = rows.looks.map(({ values }, h) => `${percent(values.subarray(0, now.prefix).reduce((x, y) => x + y, 0))} in head ${h}`);
    const kinds = now.prefix > 1 ? "the tokens that are no patches" : `the ${now.facts.prefix[0]} token`;
    this.headsValue.textContent = `Not on the grid, since it is no patch: ${kinds} gets ${shares.join(", ")}.`;
  }

  readHead(event) {
    const canvas = event.target.closest("canvas");
    if (!canvas || !this.rows) return;
    const { now } = this.view;
    const other = this.view.tokenUnder(event, canvas);
    const { kind, head } = canvas.dataset;
    const { values, step } = this.rows[kind][Number(head)];
    const [from, to] = kind === "looks" ? [this.token, other] : [other, this.token];
    this.headsValue.textContent = `Block ${this.block}, head ${head}: ${now.tokenName(from)} takes ${attentionPercent(values[other], step)} from ${now.tokenName(to)}.`;
    this.view.app.link(this.view.tokenToPlace(other));
  }

  drawParts(token) {
    const { now } = this.view;
    const { arrays } = now.t;
    const chosen = now.name(now.t.chosen);
    this.addsTitle.textContent = `What adds to “${chosen}” at ${now.tokenName(token)}`;
    const logit = now.map("logit", now.blocks - 1)[token];
    if (!arrays.part_mlp) {
      this.sum.textContent = `The logit there is ${short(logit)}.`;
      return;
    }
    const [n, blocks, rows] = [now.tokens, now.blocks, this.partRows.length];
    const values = new Float32Array(rows * blocks);
    for (let b = 0; b < blocks; b += 1) {
      for (let h = 0; h < rows - 1; h += 1) {
        values[h * blocks + b] = now.t.has_heads ? arrays.part_heads.data[(b * (rows - 1) + h) * n + token] : arrays.part_attention.data[b * n + token];
      }
      values[(rows - 1) * blocks + b] = arrays.part_mlp.data[b * n + token];
    }
    const scale = { ...range([values], true), table: "diverging", format: signed };
    paint(this.parts, values, rows, blocks, scale);
    showLegend(this.partsLegend, scale);
    const total = (array) => Array.from({ length: blocks }, (_, b) => array.data[b * n + token]).reduce((a, b) => a + b, 0);
    const parts = [["embedding", arrays.part_embedding.data[token]], ["attention", total(arrays.part_attention)], ["MLPs", total(arrays.part_mlp)], ["constant", now.t.constant]];
    this.sum.replaceChildren("Sum: ", ...parts.flatMap(([name, value]) => [`${name} ${signed(value)}, `]), "together ",
      make("b", { className: "together" }, short(arrays.part_total.data[token])), ". The logit there is ", make("b", { className: "logit" }, short(logit)), ".",
      Math.abs(arrays.part_total.data[token] - logit) > 1e-3 * Math.max(1, Math.abs(logit)) ? " They differ because tokens were changed between the blocks." : "");
    const order = [...values.keys()].filter((i) => !Number.isNaN(values[i])).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, 3);
    this.partsValue.textContent = `Largest: ${order.map((i) => `${this.partRows[Math.floor(i / blocks)]} of block ${i % blocks} ${signed(values[i])}`).join(", ")}.`;
  }

  readPart(event) {
    const blocks = this.view.now.blocks;
    const { row, column: block } = cellUnder(event, this.parts, this.partRows.length, blocks);
    const value = this.parts.values[row * blocks + block];
    this.partsValue.textContent = Number.isNaN(value) ? `The ${this.partRows[row]} of block ${block} is changed: its attention counts as a whole.` : `The ${this.partRows[row]} of block ${block} adds ${signed(value)}.`;
  }
}

