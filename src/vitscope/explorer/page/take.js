// Every view as SVG or PNG: what is on the screen, as pictures and words at their places.
import { make, svg } from "./draw.js";

const PAD = 12;
const visible = (element) => element.getClientRects().length > 0;
const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family", "font-weight", "opacity"];

const inlined = (chart, box) => {
  const copy = chart.cloneNode(true);
  const [from, to] = [chart.querySelectorAll("*"), copy.querySelectorAll("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    to[i].removeAttribute("class");
    for (const name of DRAWN) to[i].setAttribute(name, style.getPropertyValue(name)); // a style attribute is against the policy
  });
  for (const [name, value] of Object.entries(box)) copy.setAttribute(name, value);
  return copy;
};

// The lines of a text node, each with its place.
const linesOf = (node) => {
  const lines = [];
  const place = document.createRange();
  for (const { index, 0: word } of node.data.matchAll(/\S+\s*/g)) {
    place.setStart(node, index);
    place.setEnd(node, index + word.trimEnd().length);
    const box = place.getBoundingClientRect();
    const last = lines[lines.length - 1];
    if (last && Math.abs(last.box.top - box.top) < 2) last.text += word;
    else if (box.width) lines.push({ text: word, box });
  }
  return lines;
};

export const toSvg = (element) => {
  const frame = element.getBoundingClientRect();
  const [width, height] = [Math.ceil(frame.width + 2 * PAD), Math.ceil(frame.height + 2 * PAD)];
  const at = (box) => ({ x: (box.left - frame.left + PAD).toFixed(1), y: (box.top - frame.top + PAD).toFixed(1), width: box.width.toFixed(1), height: box.height.toFixed(1) });
  const paper = getComputedStyle(document.body).backgroundColor;
  const picture = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` }, svg("rect", { width, height, fill: paper }));
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) {
      const style = getComputedStyle(node.parentElement);
      for (const { text, box } of linesOf(node)) {
        picture.append(svg("text", { x: (box.left - frame.left + PAD).toFixed(1), y: (box.top - frame.top + PAD + 0.78 * box.height).toFixed(1),
          fill: style.color, "font-size": style.fontSize, "font-family": style.fontFamily, "font-weight": style.fontWeight }, text.trimEnd()));
      }
      return;
    }
    if (node.nodeType !== Node.ELEMENT_NODE || !visible(node) || node.matches(".take, datalist, select, input")) return;
    const style = getComputedStyle(node);
    if (node.matches(".cursor, .region .chosen")) {
      const box = at(node.getBoundingClientRect());
      picture.append(...[["#000", 4], ["#fff", 2]].map(([stroke, wide]) => svg("rect", { ...box, fill: "none", stroke, "stroke-width": wide })));
      return;
    }
    if (node.matches("svg")) { picture.append(inlined(node, at(node.getBoundingClientRect()))); return; }
    if (node.matches("canvas")) {
      picture.append(svg("image", { ...at(node.getBoundingClientRect()), href: node.toDataURL(), preserveAspectRatio: "none", opacity: style.opacity, "image-rendering": "pixelated" }));
      return;
    }
    if (style.backgroundColor !== "rgba(0, 0, 0, 0)" && node !== element) picture.append(svg("rect", { ...at(node.getBoundingClientRect()), fill: style.backgroundColor, rx: Number.parseFloat(style.borderRadius) || 0 }));
    if (node.matches(".word")) {
      const { left, bottom, width } = node.getBoundingClientRect();
      picture.append(svg("rect", { ...at({ left, top: bottom - 5, width, height: 5 }), fill: style.getPropertyValue("--mark") }));
    }
    node.childNodes.forEach(walk);
  };
  element.childNodes.forEach(walk);
  return new XMLSerializer().serializeToString(picture);
};

export const download = (blob, name) => {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};

export const toPng = async (element) => {
  const picture = new Image();
  picture.src = URL.createObjectURL(new Blob([toSvg(element)], { type: "image/svg+xml" }));
  await picture.decode();
  const canvas = make("canvas", { width: 2 * picture.width, height: 2 * picture.height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(picture.src);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
};

// Two small buttons at the corner of a view.
export const exportable = (element, name) => {
  const file = name.replace(/[^\w.-]+/g, "-");
  const button = (kind, action) => {
    const found = make("button", { type: "button", "aria-label": `Download this view as ${kind}` }, kind);
    found.addEventListener("click", action);
    return found;
  };
  element.classList.add("exportable");
  element.querySelectorAll(":scope > .take").forEach((old) => old.remove());
  element.append(make("span", { className: "take" },
    button("SVG", () => download(new Blob([toSvg(element)], { type: "image/svg+xml" }), `${file}.svg`)),
    button("PNG", async () => download(await toPng(element), `${file}.png`))));
};
