// Attacks and corruptions: clean, broken, the difference amplified, and where the decision is lost.
import { postLines } from "./api.js";
import { lineChart } from "./charts.js";
import { make, paintDifference, paintPicture } from "./draw.js";
import { settled } from "./reading.js";
import { exportable } from "./take.js";

export class BreakPanel {
  constructor(app, start) {
    Object.assign(this, { app, start, running: null });
    const section = document.querySelector("#break");
    section.hidden = document.querySelector('nav [href="#break"]').hidden = start.text;
    if (start.text) return;
    const range = (id, min, max, value) => make("input", { type: "range", id, min, max, value, step: 1 });
    this.attack = make("select", { id: "attack" }, ...start.attacks.map((a) => make("option", { value: a }, a.toUpperCase())));
    this.attack.value = "pgd";
    this.model = make("select", { id: "attack-model" }, ...start.models.map((m, i) => make("option", { value: i }, m.name)));
    this.eps = range("eps", 0, start.most_epsilon, 8);
    this.epsOut = make("output", { htmlFor: "eps" });
    this.steps = make("input", { type: "number", id: "steps", min: 1, max: start.most_steps, value: 10 });
    this.go = make("button", { type: "button", className: "main", id: "attack-go" }, "Attack");
    this.corruption = make("select", { id: "corruption" }, ...Object.entries(start.corruptions).map(([family, names]) => make("optgroup", { label: family }, ...names.map((name) => make("option", { value: name }, name.replaceAll("_", " "))))));
    this.severity = range("severity", 1, start.severities.length, 3);
    this.severityOut = make("output", { htmlFor: "severity" });
    this.corrupt = make("button", { type: "button", id: "corrupt-go" }, "Corrupt");
    this.bar = make("progress", { id: "progress", max: 1, value: 0, hidden: true, "aria-label": "steps of the attack" });
    this.stop = make("button", { type: "button", id: "stop", hidden: true }, "Stop");
    this.clean = make("button", { type: "button", id: "clean" }, "Back to the clean picture");
    this.result = make("div", { className: "broken" });
    const field = (label, input, ...more) => make("span", { className: "field" }, make("label", { htmlFor: input.id }, label), input, ...more);
    this.stepsField = field("steps", this.steps);
    this.modelField = field("against", this.model);
    section.querySelector(".body").append(
      make("div", { className: "form" }, field("attack", this.attack), this.modelField, field("epsilon", this.eps, this.epsOut), this.stepsField, this.go),
      make("div", { className: "form" }, field("corruption", this.corruption), field("severity", this.severity, this.severityOut), this.corrupt),
      make("div", { className: "form" }, this.bar, this.stop, this.clean), this.result);
    this.modelField.hidden = start.models.length < 2;
    this.eps.addEventListener("input", () => this.update());
    this.severity.addEventListener("input", () => this.update());
    this.attack.addEventListener("change", () => this.update());
    this.go.addEventListener("click", () => this.run({ attack: this.attack.value, eps: Number(this.eps.value), steps: Number(this.steps.value), model: Number(this.model.value) }));
    this.corrupt.addEventListener("click", () => this.run({ corruption: this.corruption.value, severity: Number(this.severity.value) }));
    this.stop.addEventListener("click", () => this.running && this.running.abort());
    this.clean.addEventListener("click", () => this.app.setSubject(this.app.state.clean));
    this.update();
  }

  update() {
    this.epsOut.textContent = `${this.eps.value}/255`;
    this.severityOut.textContent = `${this.severity.value} of 5`;
    this.stepsField.hidden = this.attack.value !== "pgd";
    this.clean.disabled = !this.app.broken;
  }

  async run(what) {
    if (this.running) this.running.abort();
    const running = new AbortController();
    this.running = running;
    this.bar.hidden = this.stop.hidden = false;
    this.bar.value = 0;
    let done = null;
    await this.app.doing(async () => {
      await postLines("api/break", { ...what, subject: this.app.state.clean }, (line) => {
        if (line.steps) this.bar.value = line.step / line.steps;
        if (line.error) throw new Error(line.error);
        if (line.done) done = line.done;
      }, running.signal);
    });
    if (this.running !== running) return;
    this.running = null;
    this.bar.hidden = this.stop.hidden = true;
    if (running.signal.aborted) this.app.say("The attack was stopped; the picture is as it was.");
    else if (done) await this.app.setBroken({ hash: done.hash });
  }

  show(views) {
    if (!this.result) return;
    this.update();
    this.result.replaceChildren(...(this.app.broken ? views.filter((view) => view.now).map((view) => this.broken(view)) : []));
  }

  broken(view) {
    const [now, before] = [view.now, view.before];
    const canvas = () => make("canvas", { className: "shown" });
    const [clean, attacked, difference] = [canvas(), canvas(), canvas()];
    paintPicture(clean, before.t.arrays.picture);
    paintPicture(attacked, now.t.arrays.picture);
    const { factor, largest } = paintDifference(difference, before.t.arrays.picture, now.t.arrays.picture);
    const figure = (shown, text) => make("figure", {}, shown, make("figcaption", {}, text));
    const box = make("section", { className: "broken-view" },
      make("h3", {}, `${view.facts.name}: ${now.t.steps.join(", then ")}`),
      make("div", { className: "pictures" }, figure(clean, `clean: ${before.name(before.t.answer)}`), figure(attacked, `now: ${now.name(now.t.answer)}`),
        figure(difference, largest ? `difference, ${factor >= 2 ? `${factor.toFixed(0)} times as strong` : "as it is"}; grey is no change; the largest is ${largest}/255` : "no difference")));
    const [right, wrong] = [now.t.label >= 0 ? now.t.label : before.t.answer, now.t.answer];
    if (right === wrong || !now.answer(0)) {
      box.append(make("p", { className: "lost" }, right === wrong ? `The answer is still “${now.name(wrong)}”.` : "The blocks of this model cannot be read, so where the decision is lost stays unknown."));
    } else {
      const margins = (reading) => Array.from({ length: now.blocks }, (_, b) => reading.answer(b).logit(right) - reading.answer(b).logit(wrong));
      const [old, now_] = [margins(before), margins(now)];
      const [won, lost] = [settled(old.map((m) => m > 0)), settled(now_.map((m) => m < 0))];
      const wonWords = won < now.blocks ? ` In the clean picture it is won in block ${won}.` : " In the clean picture it is never won.";
      box.append(make("p", { className: "lost" }, `The decision for “${now.name(right)}” is lost to “${now.name(wrong)}” in `, make("b", {}, `block ${lost}`), `: from there on “${now.name(wrong)}” stays ahead.${wonWords}`));
      box.append(lineChart({ lines: [{ name: "clean", values: old, colour: "muted" }, { name: "now", values: now_, colour: "vermillion" }], labels: old.map((_, b) => String(b)), at: lost,
        title: "How far the true class is ahead, block by block", room: this.result.clientWidth, unit: `“${now.name(right)}” ahead of “${now.name(wrong)}” (logits), by block` }));
    }
    exportable(box, `${view.facts.name}-broken`);
    return box;
  }
}
