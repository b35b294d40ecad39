// What every report's page does: tables, sliders, folding, contents.

export const all = (selector, root = document) => [...root.querySelectorAll(selector)];

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
export const bindSlider = (bar, name, show) => {
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
