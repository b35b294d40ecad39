// Choosing the input: an item of the data, a picture that is dropped, pasted or picked, or a sentence.
import { getJson, pictureAddress, upload } from "./api.js";
import { make } from "./draw.js";

export class Chooser {
  constructor(app, start) {
    Object.assign(this, { app, start, from: 0, shown: [] });
    this.box = document.querySelector("#choose .chooser");
    if (start.text) this.buildText();
    else this.buildPictures();
  }

  buildText() {
    document.querySelector("#choose-title").textContent = "Type a sentence";
    this.text = make("textarea", { rows: 2, id: "sentence", placeholder: "Once upon a time", maxLength: 20000, "aria-label": "sentence" });
    const go = make("button", { type: "button", id: "go" }, "Look");
    go.addEventListener("click", () => this.app.setSubject({ text: this.text.value }));
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); go.click(); }
    });
    this.box.append(make("div", { className: "sentence" }, this.text, go),
      make("p", { className: "why hint" }, "Nothing is shown yet. Type a sentence and press Enter: the page then shows what every block makes of each of its words."));
  }

  buildPictures() {
    this.thumbs = make("div", { className: "thumbs", role: "group", "aria-label": "items of the data" });
    this.number = make("input", { type: "number", id: "item", min: 0, max: this.start.data ? this.start.data.items - 1 : 0 });
    this.number.addEventListener("change", () => this.app.setSubject({ item: Math.trunc(Number(this.number.value)) }));
    const turn = (text, label, step) => {
      const button = make("button", { type: "button", "aria-label": label }, text);
      button.addEventListener("click", () => this.list(this.from + step * this.start.per_page));
      return button;
    };
    this.file = make("input", { type: "file", accept: "image/*", id: "file", className: "visually-hidden" });
    this.file.addEventListener("change", () => { if (this.file.files[0]) this.take(this.file.files[0]); this.file.value = ""; });
    const own = make("label", { className: "drop", htmlFor: "file", id: "drop" }, make("b", {}, "Your own picture"), " drop it anywhere, paste it, or choose a file");
    if (this.start.data) {
      this.box.append(make("div", { className: "row" }, turn("‹", "earlier items", -1), make("label", { htmlFor: "item" }, "item ", this.number), turn("›", "later items", 1),
        make("span", { className: "why" }, `of ${this.start.data.items.toLocaleString("en")} in ${this.start.data.name}, ${this.start.data.split}`)), this.thumbs);
    }
    this.box.append(this.file, own, make("p", { className: "why hint" }, "Nothing is shown yet. Choose a picture: the page then shows what every block makes of it."));
    addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
    addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
    addEventListener("drop", (event) => {
      event.preventDefault();
      document.body.classList.remove("dropping");
      if (event.dataTransfer.files[0]) this.take(event.dataTransfer.files[0]);
    });
    addEventListener("paste", (event) => {
      const file = [...(event.clipboardData ? event.clipboardData.files : [])].find((f) => f.type.startsWith("image/"));
      if (file) this.take(file);
    });
  }

  async take(file) {
    await this.app.doing(async () => {
      if (file.size > this.start.most_bytes) throw new Error(`This file has ${file.size.toLocaleString("en")} bytes; ${this.start.most_bytes.toLocaleString("en")} are taken at most.`);
      const { hash } = await upload(file).catch((error) => { throw new Error(error.message.replace(/^The file\b/, file.name || "The picture")); });
      this.app.pictures.push({ hash, name: file.name || "pasted picture" });
      await this.app.setSubject({ hash });
    });
  }

  async list(from) {
    if (!this.start.data) return;
    const page = await getJson(`api/items?from=${Math.max(0, Math.min(from, this.start.data.items - 1))}`);
    this.from = page.from;
    this.shown.forEach((address) => URL.revokeObjectURL(address));
    this.shown = [];
    this.thumbs.replaceChildren(...page.items.map(({ item, label }) => {
      const image = make("img", { alt: "", width: 44, height: 44 });
      pictureAddress(item).then((address) => { this.shown.push(address); image.src = address; }, () => {});
      const button = make("button", { type: "button", className: "thumb", data: { item }, title: label ? `item ${item}: ${label}` : `item ${item}` }, image);
      button.setAttribute("aria-label", label ? `item ${item}, ${label}` : `item ${item}`);
      button.addEventListener("click", () => this.app.setSubject({ item }));
      return button;
    }));
    this.mark(this.app.state.clean);
  }

  mark(subject) {
    if (!this.thumbs) { if (this.text && subject) this.text.value = subject.text || ""; return; }
    if (subject && subject.item !== undefined) this.number.value = subject.item;
    for (const thumb of this.thumbs.children) thumb.setAttribute("aria-pressed", String(Boolean(subject) && Number(thumb.dataset.item) === subject.item));
  }
}
