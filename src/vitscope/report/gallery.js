// The gallery: pick a picture, see its maps block by block, put one of them on the picture.
import { make, paint, setColours, short } from "./draw.js";
import { blocksOf, scaleOf, valuesOf } from "./encoded.js";
import { BlockMaps, blockName, cellUnder } from "./maps.js";
import { all, bindSlider } from "./page.js";

const data = JSON.parse(document.getElementById("gallery-data").textContent);
setColours(data.colours);
const gallery = document.getElementById("gallery");
const overlay = gallery.querySelector(".stage canvas");
const readout = gallery.querySelector(".readout");
const title = (row) => (row.model ? `${row.model}: ${row.map}` : row.map);
const paintMap = (canvas, row, map, block) => paint(canvas, valuesOf(map, block), map.h, map.w, scaleOf(row, map));

const blocks = [...new Set(data.rows.flatMap((row) => Object.values(row.images).flatMap(blocksOf)))].sort((a, b) => a - b);
const shown = { image: 0, row: 0, block: blocks.length ? blocks[blocks.length - 1] : 0 };
let slideTo = () => {};
const maps = new BlockMaps(gallery.querySelector(".maps"), {
  choose: (kind, block) => { shown.row = Number(kind); slideTo(blocks.indexOf(block)); },
  read: (kind, block, canvas, event) => read(`${title(data.rows[Number(kind)])}, ${blockName(block)}`, canvas, event),
});

// What is under the pointer: about, since a map travels in 256 levels.
const read = (name, canvas, event) => {
  const { row, column } = cellUnder(event, canvas, canvas.height, canvas.width);
  readout.textContent = `${name}, row ${row}, column ${column}: about ${short(canvas.values[row * canvas.width + column])}`;
};

const drawStage = () => {
  const row = data.rows[shown.row];
  const map = row && row.images[shown.image];
  overlay.hidden = !map || !(shown.block in map.blocks);
  if (!overlay.hidden) paintMap(overlay, row, map, shown.block);
  readout.textContent = overlay.hidden ? "" : `On the picture: ${title(row)}, ${blockName(shown.block)}. Point at it for values.`;
  maps.mark((kind, block) => Number(kind) === shown.row && block === shown.block);
};

const drawImage = () => {
  const picture = data.images[shown.image];
  for (const image of all(".stage img", gallery)) Object.assign(image, { src: picture.src, alt: picture.class || picture.path });
  const predicted = Object.entries(picture.predicted).map(([model, name], _, { length }) => [length > 1 ? `Predicted by ${model}` : "Predicted", name]);
  const facts = [["Image", picture.path], ["Class", picture.class || "unknown"], ...predicted];
  gallery.querySelector(".about .facts").replaceChildren(...facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))));
  const rows = data.rows.map((row, kind) => [row, kind, row.images[shown.image]]).filter(([, , map]) => map);
  maps.show(blocks.length, ...rows.map(([row, kind, map]) => maps.row({
    kind, title: title(row), why: row.why, scale: scaleOf(row, map), maps: blocksOf(map).map((block) => ({ block, values: valuesOf(map, block), rows: map.h, columns: map.w })),
  })));
  drawStage();
};

drawImage();
if (blocks.length) {
  const bar = document.getElementById("block-slider");
  bar.hidden = false;
  const range = bar.querySelector("input");
  range.max = blocks.length - 1;
  range.value = range.max;
  slideTo = bindSlider(bar, "block", (index) => { shown.block = blocks[index]; drawStage(); return shown.block < 0 ? "in" : String(shown.block); });
}
for (const input of all(".thumb input", gallery)) {
  input.addEventListener("change", () => { shown.image = Number(input.value); drawImage(); });
}
overlay.addEventListener("pointermove", (event) => read(`${title(data.rows[shown.row])}, ${blockName(shown.block)}`, overlay, event));

// On the first screen: the first picture with its first map, after the last block.
const hero = document.querySelector(".hero");
const first = data.rows.find((row) => row.images[0]);
if (hero && first) {
  const map = first.images[0];
  const last = Math.max(...blocksOf(map));
  const stage = hero.querySelectorAll(".stage")[1];
  paintMap(stage.querySelector("canvas"), first, map, last);
  stage.hidden = false;
  hero.querySelector("figcaption").textContent = `${first.map}, ${blockName(last)}`;
}
