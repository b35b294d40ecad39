// Lines over blocks as SVG, labelled at their ends.
import { make, short, svg } from "./draw.js";

const HEIGHT = 210;
const EDGE = { left: 40, top: 14, bottom: 30 };
export const COLOURS = ["blue", "vermillion", "green", "orange", "purple"];

const spread = (places, least) => {
  const order = places.map((y, i) => [y, i]).sort((a, b) => a[0] - b[0]);
  for (let i = 1; i < order.length; i += 1) order[i][0] = Math.max(order[i][0], order[i - 1][0] + least);
  const over = order.length ? Math.max(0, order[order.length - 1][0] - (HEIGHT - EDGE.bottom)) : 0;
  const moved = [];
  order.forEach(([y, i]) => { moved[i] = y - over; });
  return moved;
};

const ticks = (low, high) => {
  const step = 10 ** Math.floor(Math.log10(high - low || 1));
  const fine = (high - low) / step > 5 ? 2 * step : (high - low) / step < 2 ? step / 2 : step;
  const found = [];
  for (let t = Math.ceil(low / fine) * fine; t <= high + 1e-9; t += fine) found.push(Math.abs(t) < 1e-12 ? 0 : t);
  return found;
};

// lines: [{name, values, colour}], labels: one per place on the x axis; `at` is marked. `room` in pixels: letters keep
// their size on a phone.
export const lineChart = ({ lines, labels, at, title, unit, room }) => {
  const WIDTH = Math.max(280, Math.min(640, room || 560));
  const right = WIDTH > 400 ? 134 : 102; // names of the lines
  const most = Math.floor((right - 8) / 7.8); // letters
  const all = lines.flatMap((line) => [...line.values]).filter(Number.isFinite);
  let [low, high] = [Math.min(...all), Math.max(...all)];
  if (!(high > low)) [low, high] = [low - 1, high + 1];
  const pad = 0.06 * (high - low);
  [low, high] = [low - pad, high + pad];
  const x = (i) => EDGE.left + (i * (WIDTH - EDGE.left - right)) / Math.max(1, labels.length - 1);
  const y = (v) => HEIGHT - EDGE.bottom - ((v - low) * (HEIGHT - EDGE.top - EDGE.bottom)) / (high - low);
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": title });
  for (const t of ticks(low, high)) {
    chart.append(
      svg("line", { x1: EDGE.left, x2: WIDTH - right, y1: y(t), y2: y(t), class: t === 0 ? "zero" : "rule" }),
      svg("text", { x: EDGE.left - 6, y: y(t) + 4, class: "tick", "text-anchor": "end" }, short(t)),
    );
  }
  const every = Math.ceil(labels.length / (WIDTH > 400 ? 13 : 7));
  labels.forEach((label, i) => {
    const rest = labels.length - 1 - i;
    if (!rest || (i % every === 0 && rest > every / 2)) chart.append(svg("text", { x: x(i), y: HEIGHT - 12, class: "tick", "text-anchor": "middle" }, label));
  });
  if (at !== undefined) chart.append(svg("line", { x1: x(at), x2: x(at), y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: "at" }));
  chart.append(svg("text", { x: 2, y: 10, class: "tick" }, unit));
  const ends = spread(lines.map((line) => y(line.values[line.values.length - 1])), 14);
  lines.forEach((line, i) => {
    const points = [...line.values].map((v, k) => `${x(k).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
    chart.append(svg("polyline", { points, class: `curve ${line.colour}` }));
    const name = line.name.length > most ? `${line.name.slice(0, most - 1)}…` : line.name;
    chart.append(svg("text", { x: WIDTH - right + 8, y: ends[i] + 4, class: `name ${line.colour}` }, name, svg("title", {}, line.name)));
  });
  chart.lines = lines;
  return chart;
};

// Bars of probabilities, old and new: [{name, now, before, marks}]
export const answerBars = (rows, compare) => make("table", { className: "answers" },
  make("caption", {}, "Probabilities"),
  make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "answer"), make("th", { scope: "col", className: "n" }, compare ? "now" : "probability"),
    compare ? make("th", { scope: "col", className: "n" }, "before") : null, compare ? make("th", { scope: "col", className: "n" }, "change") : null)),
  make("tbody", {}, ...rows.map((row) => {
    const bar = make("span", { className: "bar-now" });
    bar.style.width = `${100 * row.now}%`;
    const old = make("span", { className: "bar-before" });
    old.style.width = `${100 * row.before}%`;
    const difference = 100 * (row.now - row.before);
    const shown = Math.abs(difference) < 0.05 ? "0.0" : `${difference > 0 ? "+" : ""}${difference.toFixed(1)}`.replace("-", "−");
    return make("tr", { data: { class: row.number }, className: row.marks.join(" ") },
      make("th", { scope: "row" }, make("span", { className: "name" }, row.name), row.marks.includes("true") ? make("small", {}, " true class") : null,
        make("span", { className: "bars", "aria-hidden": "true" }, compare ? old : null, bar)),
      make("td", { className: "n" }, `${(100 * row.now).toFixed(1)} %`),
      compare ? make("td", { className: "n" }, `${(100 * row.before).toFixed(1)} %`) : null,
      compare ? make("td", { className: `n ${Math.abs(difference) >= 0.05 ? (difference > 0 ? "up" : "down") : ""}` }, shown) : null);
  })));
