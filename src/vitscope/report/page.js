"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Tables: click a head to sort, type to filter.
  const value = (cell) => {
    if (!cell.classList.contains("n")) return cell.textContent;
    const number = Number(cell.title || cell.textContent.replace(/,/g, "").replace(/−/g, "-"));
    return Number.isNaN(number) ? null : number;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
  for (const box of all(".table")) {
    const body = box.querySelector("tbody");
    const heads = all("thead th", box);
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [value(row.cells[column]), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null); // missing values stay at the end
        return descending ? compare(b, a) : compare(a, b);
      });
      body.append(...rows.map(([, row]) => row));
    }));
    const count = box.querySelector(".count");
    box.querySelector("input[type=search]").addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of body.rows) {
        const cells = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
        row.hidden = !words.every((word) => cells.includes(word));
        shown += !row.hidden;
      }
      count.textContent = words.length ? `${shown} of ${body.rows.length} rows` : `${body.rows.length} rows`;
    });
  }

  // Sliders: a range with two step buttons and a label; `show(index)` draws and returns the label's value.
  const bindSlider = (bar, name, show) => {
    const range = bar.querySelector("input[type=range]");
    const output = bar.querySelector("output");
    const draw = () => {
      const label = show(Number(range.value));
      output.replaceChildren(`${name} `, Object.assign(document.createElement("b"), { textContent: label }));
      range.setAttribute("aria-valuetext", `${name} ${label}`);
      for (const step of all(".step", bar)) {
        const next = Number(range.value) + Number(step.dataset.step);
        step.disabled = next < Number(range.min) || next > Number(range.max);
      }
    };
    range.addEventListener("input", draw);
    for (const step of all(".step", bar)) {
      step.addEventListener("click", () => {
        range.value = Number(range.value) + Number(step.dataset.step);
        draw();
      });
    }
    draw();
    return (index) => { range.value = index; draw(); };
  };
  for (const box of all(".slider")) {
    const frames = all(".frame", box);
    bindSlider(box.querySelector(".slider-bar"), box.getAttribute("aria-label"), (index) => {
      frames.forEach((frame, i) => { frame.hidden = i !== index; });
      return frames[index].dataset.label;
    });
  }

  // Folding. A link into a folded section opens it; so does printing.
  for (const button of all("[data-fold]")) {
    button.addEventListener("click", () => all("details.panel").forEach((panel) => { panel.open = button.dataset.fold === "open"; }));
  }
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.matches("details") && !target.open) {
      target.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", reveal);
  reveal();
  addEventListener("beforeprint", () => all("details.panel, details.made").forEach((panel) => { panel.open = true; }));
  const contents = document.querySelector(".toc > details");
  if (matchMedia("(max-width: 62rem)").matches) contents.open = false;

  // Where am I? Marks the section in the contents.
  const links = new Map(all(".toc a").map((link) => [link.getAttribute("href").slice(1), link]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => { link.classList.remove("here"); link.removeAttribute("aria-current"); });
      const link = links.get(entry.target.id);
      link.classList.add("here");
      link.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-10% 0px -75% 0px" });
  links.forEach((_, id) => watcher.observe(document.getElementById(id)));

  // The gallery.
  const store = document.getElementById("gallery-data");
  if (!store) return;
  const data = JSON.parse(store.textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const colours = { sequential: bytes(data.colours.sequential), diverging: bytes(data.colours.diverging) };
  const gallery = document.getElementById("gallery");
  const pictures = all(".stage img", gallery);
  const overlay = gallery.querySelector(".stage canvas");
  const bar = document.getElementById("block-slider");
  const readout = gallery.querySelector(".readout");
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const short = (number) => (number === 0 ? "0" : String(Number(number.toPrecision(3)))).replace("-", "−");

  const paint = (canvas, width, height, levels, table) => {
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(width, height);
    levels.forEach((level, i) => pixels.data.set([...table.subarray(3 * level, 3 * level + 3), 255], 4 * i));
    context.putImageData(pixels, 0, 0);
  };

  let image = 0;
  let row = 0; // index into data.rows
  const blocks = [...new Set(data.rows.flatMap((r) => Object.values(r.images).flatMap((m) => Object.keys(m.blocks).map(Number))))].sort((a, b) => a - b);
  let block = blocks.length ? blocks[blocks.length - 1] : 0;
  let current = null; // the map on the stage: {w, h, low, high, levels}

  const title = (r) => (r.model ? `${r.model}: ${r.map}` : r.map);
  const drawStage = () => {
    const maps = data.rows[row] && data.rows[row].images[image];
    const code = maps && maps.blocks[block];
    overlay.hidden = !code;
    current = null;
    if (code) {
      current = { ...maps, levels: bytes(code) };
      paint(overlay, maps.w, maps.h, current.levels, data.rows[row].signed ? colours.diverging : colours.sequential);
    }
    readout.textContent = code ? `On the picture: ${title(data.rows[row])}, block ${block}. Point at it for values.` : "";
    for (const button of all(".grid button", gallery)) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.row) === row && Number(button.dataset.block) === block));
    }
  };
  const drawImage = () => {
    const shown = data.images[image];
    for (const picture of pictures) Object.assign(picture, { src: shown.src, alt: shown.class || shown.path });
    const facts = [["Image", shown.path], ["Class", shown.class || "unknown"], ...Object.entries(shown.predicted).map(([model, name]) => [
      Object.keys(shown.predicted).length > 1 ? `Predicted by ${model}` : "Predicted", name])];
    gallery.querySelector(".about .facts").replaceChildren(...facts.map(([name, text]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: text }))));
    gallery.querySelector(".maps").replaceChildren(...data.rows.map((r, index) => {
      const maps = r.images[image];
      if (!maps) return "";
      const table = r.signed ? colours.diverging : colours.sequential;
      const ramp = make("canvas");
      paint(ramp, 256, 1, Uint8Array.from({ length: 256 }, (_, i) => i), table);
      const scale = make("span", { className: "scale" }, short(maps.low), ramp, short(maps.high));
      const grid = make("div", { className: "grid" }, ...Object.keys(maps.blocks).map(Number).sort((a, b) => a - b).map((b) => {
        const canvas = make("canvas");
        paint(canvas, maps.w, maps.h, bytes(maps.blocks[b]), table);
        const button = make("button", { type: "button", title: `${title(r)}, block ${b}` }, canvas, String(b));
        button.setAttribute("aria-label", `${title(r)}, block ${b}`);
        Object.assign(button.dataset, { row: index, block: b });
        button.addEventListener("click", () => { row = index; slideTo(blocks.indexOf(b)); });
        return button;
      }));
      return make("div", { className: "maprow" }, make("h3", {}, title(r), scale), grid);
    }));
    drawStage();
  };
  const hero = document.querySelector(".hero");
  const shownFirst = hero && data.rows.findIndex((r) => r.images[0]);
  if (hero && shownFirst >= 0) { // the first picture with its first map, after the last block
    const maps = data.rows[shownFirst].images[0];
    const last = Math.max(...Object.keys(maps.blocks).map(Number));
    const stage = hero.querySelectorAll(".stage")[1];
    const canvas = stage.querySelector("canvas");
    paint(canvas, maps.w, maps.h, bytes(maps.blocks[last]), data.rows[shownFirst].signed ? colours.diverging : colours.sequential);
    stage.hidden = false;
    hero.querySelector("figcaption").textContent = `${data.rows[shownFirst].map}, block ${last}`;
  }
  let slideTo = () => drawStage();
  drawImage();
  if (blocks.length) {
    bar.hidden = false;
    const range = bar.querySelector("input");
    range.max = blocks.length - 1;
    range.value = blocks.length - 1;
    slideTo = bindSlider(bar, "block", (index) => { block = blocks[index]; drawStage(); return String(block); });
  }
  for (const input of all(".thumb input", gallery)) {
    input.addEventListener("change", () => { image = Number(input.value); drawImage(); });
  }
  overlay.addEventListener("pointermove", (event) => {
    if (!current) return;
    const frame = overlay.getBoundingClientRect();
    const column = Math.min(current.w - 1, Math.max(0, Math.floor(((event.clientX - frame.left) / frame.width) * current.w)));
    const line = Math.min(current.h - 1, Math.max(0, Math.floor(((event.clientY - frame.top) / frame.height) * current.h)));
    const level = current.levels[line * current.w + column] / 255;
    readout.textContent = `Row ${line}, column ${column}: about ${short(current.low + level * (current.high - current.low))}`;
  });
})();
