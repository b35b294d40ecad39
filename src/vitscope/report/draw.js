// Painting maps on canvases, legends, numbers. The explorer loads this file, the report's page holds it.

export const make = (tag, properties = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(element.dataset, value);
    else if (name.startsWith("aria-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};

const SVG = "http://www.w3.org/2000/svg";
export const svg = (tag, attributes = {}, ...children) => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

const minus = (text) => text.replace("-", "−");
// three significant digits: 0.0123, 1.23, 123
export const short = (number) => {
  if (!Number.isFinite(number)) return "–";
  if (number === 0) return "0";
  const size = Math.abs(number);
  return minus(size >= 1e5 || size < 1e-4 ? number.toExponential(2) : String(Number(number.toPrecision(3))));
};
export const signed = (number) => (number > 0 ? `+${short(number)}` : short(number));
export const percent = (share, digits = 1) => `${minus((100 * share).toFixed(digits))} %`;
// attention in eight bits: as many digits as a level is worth
export const attentionPercent = (share, step) => percent(share, Math.min(2, Math.max(0, Math.ceil(-Math.log10(100 * (step || 1))))));

export const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const tables = {}; // of 256 colours each
export const setColours = (colours) => {
  for (const [name, text] of Object.entries(colours)) tables[name] = bytes(text);
};

// `scale` is {low, high, table}, with `root` for values of which few are large: the colour then follows the square root.
const levelOf = (value, scale) => {
  const share = scale.high > scale.low ? Math.max(0, Math.min(1, (value - scale.low) / (scale.high - scale.low))) : 0;
  return Math.round(255 * (scale.root ? Math.sqrt(share) : share));
};
export const colourOf = (value, scale) => [...tables[scale.table].subarray(3 * levelOf(value, scale)).subarray(0, 3)];

// Values (rows x columns) on a canvas, one pixel each. They stay on the canvas.
export const paint = (canvas, values, rows, columns, scale) => {
  if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const table = tables[scale.table];
  for (let i = 0; i < values.length; i += 1) {
    const value = values[i];
    if (Number.isNaN(value)) continue; // nothing is known: it stays transparent
    const level = 3 * levelOf(value, scale);
    image.data[4 * i] = table[level];
    image.data[4 * i + 1] = table[level + 1];
    image.data[4 * i + 2] = table[level + 2];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  canvas.values = values;
};

export const paintPicture = (canvas, { data, shape }) => {
  const [rows, columns, channels] = shape;
  Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i += 1) {
    for (let c = 0; c < 3; c += 1) image.data[4 * i + c] = data[channels * i + (channels === 1 ? 0 : c)];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
};

// |b - a| of two pictures, amplified until the largest change is full: {factor, largest}
export const paintDifference = (canvas, a, b) => {
  let largest = 0;
  for (let i = 0; i < a.data.length; i += 1) largest = Math.max(largest, Math.abs(a.data[i] - b.data[i]));
  const factor = largest ? 127 / largest : 0;
  paintPicture(canvas, { shape: a.shape, data: Uint8Array.from(a.data, (v, i) => 128 + (b.data[i] - v) * factor) });
  return { factor, largest };
};

// A legend: low, ramp, high, and what the middle of the ramp means where that is not half way.
const legendWords = (scale) => {
  const show = scale.format || short;
  const middle = scale.root ? `, middle ${show(scale.low + (scale.high - scale.low) / 4)}` : "";
  return [show(scale.low), show(scale.high) + middle];
};
export const legend = (scale) => {
  const ramp = make("canvas");
  paint(ramp, Float32Array.from({ length: 128 }, (_, i) => i), 1, 128, { low: 0, high: 127, table: scale.table });
  const [low, high] = legendWords(scale);
  return make("span", { className: "legend", data: { table: scale.table } }, low, ramp, high);
};

// The same at its place, where it may stand already: the ramp is painted once.
export const showLegend = (slot, scale) => {
  const old = slot.querySelector(".legend");
  if (!old || old.dataset.table !== scale.table) { slot.replaceChildren(legend(scale)); return; }
  [old.firstChild.data, old.lastChild.data] = legendWords(scale);
};

// Smallest and largest of some arrays; NaN counts for nothing.
export const range = (arrays, symmetric = false) => {
  let low = Infinity;
  let high = -Infinity;
  for (const values of arrays) {
    for (let i = 0; i < values.length; i += 1) {
      if (values[i] < low) low = values[i];
      if (values[i] > high) high = values[i];
    }
  }
  if (!Number.isFinite(low)) return { low: 0, high: 1 };
  if (!symmetric) return { low, high };
  const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
  return { low: -most, high: most };
};
