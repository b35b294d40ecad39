// Texts as coloured tokens: a row per block. Words come from outside and only ever become text nodes.
import { colourOf, legend, make, setColours, short } from "./draw.js";
import { blocksOf, scaleOf, valuesOf } from "./encoded.js";

const box = document.getElementById("sentences");
const data = JSON.parse(document.getElementById("sentences-data").textContent);
setColours(data.colours);
const [texts, maps] = box.querySelectorAll("select");
const rows = box.querySelector(".rows");
const legends = box.querySelector(".scale");
const readout = box.querySelector(".readout");
const hint = readout.textContent;
const clip = (word) => (word.length > 40 ? `${word.slice(0, 40)}…` : word);
const title = (row) => (data.several ? `${row.model}: ${row.map}` : row.map);

const light = (colour) => { // relative luminance of WCAG 2
  const [r, g, b] = colour.map((part) => part / 255).map((p) => (p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

let shown = null; // {row, map, words, targets, guesses, blocks}
let place = { line: 0, token: 0 };
const cells = () => [...rows.querySelectorAll(".line")].map((line) => [...line.querySelectorAll(".token")]);
const tell = (line, token) => {
  const block = shown.blocks[line];
  const said = [`Token ${token}: “${clip(shown.words[token])}”`];
  if (shown.targets[token]) said.push(`then “${clip(shown.targets[token])}”`);
  if (shown.map && token < shown.map.w && !shown.map.blank.includes(token)) {
    said.push(`block ${block}: about ${short(shown.values[line][token])}`);
  } else if (shown.map) said.push(`block ${block}: no value`);
  const guess = shown.guesses[block] && data.guessed[shown.guesses[block][token]];
  if (guess !== undefined) said.push(`first guess “${clip(guess)}”`);
  readout.textContent = said.join(" · ");
  for (const list of cells()) list.forEach((cell, i) => cell.classList.toggle("same", i === token));
};
const moveTo = (line, token) => {
  const all = cells();
  place = { line: Math.max(0, Math.min(all.length - 1, line)), token: Math.max(0, Math.min(all[0].length - 1, token)) };
  for (const cell of all.flat()) cell.tabIndex = -1;
  all[place.line][place.token].tabIndex = 0;
  all[place.line][place.token].focus();
};

const token = (word, line, index, value, scale) => {
  const cell = make("span", { className: "token", textContent: word || " ", tabIndex: line + index === 0 ? 0 : -1 });
  cell.setAttribute("role", "gridcell");
  Object.assign(cell.dataset, { line, token: index });
  if (value === null) return cell;
  const colour = colourOf(value, scale);
  cell.style.backgroundColor = `rgb(${colour.join(",")})`;
  cell.style.color = light(colour) > 0.18 ? "#000" : "#fff"; // at 0.18 both are as readable
  return cell;
};
const draw = () => {
  const text = data.texts[Number(texts.value)];
  const row = data.rows[Number(maps.value)];
  const model = row ? row.model : Object.keys(text.words)[0];
  const map = row && row.texts[texts.value];
  const scale = map && scaleOf(row, map);
  const blocks = map ? blocksOf(map) : [""];
  const values = map ? blocks.map((block) => valuesOf(map, block)) : [];
  shown = { map, blocks, values, words: text.words[model] || [], targets: text.targets[model] || [], guesses: text.guesses[model] || {} };
  rows.replaceChildren(...blocks.map((block, line) => {
    const words = make("div", { className: "words" }, ...shown.words.map((word, i) => {
      const value = map && i < map.w && !map.blank.includes(i) ? values[line][i] : null;
      return token(word, line, i, value, scale);
    }));
    const name = make("div", { className: "block", textContent: block === "" ? "text" : `block ${block}` });
    name.setAttribute("role", "rowheader");
    words.setAttribute("role", "presentation");
    const box = make("div", { className: "line" }, name, words);
    box.setAttribute("role", "row");
    return box;
  }));
  legends.replaceChildren(map ? legend(scale) : "");
  readout.textContent = shown.words.length ? hint : "This model has not read this text.";
};

texts.append(...data.texts.map((text, i) => make("option", { value: i, textContent: `${text.name}: ${text.beginning}` })));
maps.append(...data.rows.map((row, i) => make("option", { value: i, textContent: title(row) })));
maps.parentElement.hidden = !data.rows.length;
for (const select of [texts, maps]) select.addEventListener("change", draw);
const at = (event) => event.target.closest(".token");
let told = null;
for (const kind of ["pointermove", "focusin"]) { // not pointerover: tokens that scroll under the pointer say nothing
  rows.addEventListener(kind, (event) => {
    if (!at(event) || at(event) === told) return;
    told = at(event);
    tell(Number(told.dataset.line), Number(told.dataset.token));
  });
}
rows.addEventListener("click", (event) => { if (at(event)) moveTo(Number(at(event).dataset.line), Number(at(event).dataset.token)); });
const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
rows.addEventListener("keydown", (event) => {
  const cell = at(event);
  if (!cell || !(event.key in steps)) return;
  event.preventDefault();
  moveTo(Number(cell.dataset.line) + steps[event.key][0], Number(cell.dataset.token) + steps[event.key][1]);
});
draw();
