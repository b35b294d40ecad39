// The maps of one input, block by block: a row of small pictures for each kind of map. The explorer loads this file, the
// report's page holds it.
import { legend, make, paint, showLegend } from "./draw.js";

const MANY = 7; // blocks: of more the small pictures are smaller

// The cell of a grid under the pointer.
export const cellUnder = (event, element, rows, columns) => {
  const frame = element.getBoundingClientRect();
  const at = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
  return { row: at((event.clientY - frame.top) / frame.height, rows), column: at((event.clientX - frame.left) / frame.width, columns) };
};

// Arrow keys do what a pointer does: from value to value of the map that has the focus.
const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
export const walkable = (box) => box.addEventListener("keydown", (event) => {
  const canvas = event.target.matches("canvas") ? event.target : event.target.querySelector("canvas");
  if (!(event.key in ARROWS) || !canvas) return;
  event.preventDefault();
  const [down, right] = canvas.at ? ARROWS[event.key] : [0, 0]; // the first one goes to the first value
  const clamp = (place, count) => Math.min(count - 1, Math.max(0, place));
  const { row, column } = canvas.at || { row: 0, column: 0 };
  canvas.at = { row: clamp(row + down, canvas.height), column: clamp(column + right, canvas.width) };
  const { left, top, width, height } = canvas.getBoundingClientRect();
  const middle = { clientX: left + ((canvas.at.column + 0.5) * width) / canvas.width, clientY: top + ((canvas.at.row + 0.5) * height) / canvas.height };
  canvas.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, ...middle }));
});

// One small picture, or whatever else stands for a block in a row; -1 is before the first block.
export const blockName = (block) => (block < 0 ? "before the first block" : `block ${block}`);
export const blockCell = (kind, title, block, content) => {
  const name = `${title}, ${blockName(block)}`;
  const cell = make("button", { type: "button", className: "cell", title: name, data: { kind, block }, "aria-label": name },
    content, make("span", { className: "block" }, block < 0 ? "in" : String(block)));
  cell.style.setProperty("--at", block + 2);
  return cell;
};

export class BlockMaps {
  // choose(kind, block) when a small picture is clicked, read(kind, block, canvas, event) when one is pointed at. Blocks
  // before `least` cannot be chosen.
  constructor(box, { choose, read = () => {}, leave = () => {}, heading = "h3", least = -1 }) {
    Object.assign(this, { box, heading });
    const cellOf = (event) => event.target.closest(".cell");
    box.addEventListener("click", (event) => {
      const cell = cellOf(event);
      if (cell && Number(cell.dataset.block) >= least) choose(cell.dataset.kind, Number(cell.dataset.block));
    });
    box.addEventListener("pointermove", (event) => {
      const cell = cellOf(event);
      const canvas = cell && cell.querySelector("canvas");
      if (canvas) read(cell.dataset.kind, Number(cell.dataset.block), canvas, event);
    });
    box.addEventListener("pointerleave", leave);
    box.addEventListener("focusout", leave);
    walkable(box);
  }

  // maps: [{block, values, rows, columns}]. Without `scale` they are painted later, by `paint`.
  row({ kind, title, why, scale, maps, above }) {
    const cells = maps.map(({ block, values, rows, columns }) => {
      const canvas = make("canvas", {});
      if (scale) paint(canvas, values, rows, columns, scale);
      return blockCell(kind, title, block, make("span", { className: "map" }, canvas));
    });
    return this.rowOf({ kind, title, why, above, cells, beside: make("span", { className: "legend-slot" }, scale ? legend(scale) : "") });
  }

  rowOf({ kind, title, why, above, cells, beside }) {
    return make("div", { className: "maprow", data: { kind } }, make(this.heading, {}, title, beside), why ? make("p", { className: "why" }, why) : null,
      above, make("div", { className: "cells" }, ...cells));
  }

  // All small pictures of a row again: what follows the pointer.
  paint(kind, values, rows, columns, scale) {
    const row = this.box.querySelector(`.maprow[data-kind="${kind}"]`);
    row.querySelectorAll(".map canvas").forEach((canvas, i) => paint(canvas, values[i], rows, columns, scale));
    showLegend(row.querySelector(".legend-slot"), scale);
  }

  show(blocks, ...parts) {
    this.box.style.setProperty("--columns", blocks + 1);
    this.box.style.setProperty("--cell", blocks > MANY ? "4.6rem" : "6.4rem");
    this.box.replaceChildren(...parts);
  }

  // Which small pictures are chosen: `chosen(kind, block)`.
  mark(chosen) {
    for (const cell of this.box.querySelectorAll(".cell")) cell.setAttribute("aria-pressed", String(chosen(cell.dataset.kind, Number(cell.dataset.block))));
  }
}
