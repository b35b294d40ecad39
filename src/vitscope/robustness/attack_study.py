"""The study `attack`: how often is the model still right when someone changes its pictures?

The engine's own pass gives the clean answers; every attack then works on the batch at every epsilon. What is kept are
counts per attack and epsilon, and one row per image, attack and epsilon. So it resumes, and merges over processes,
like any analysis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Analysis, Headline, register_analysis, zeros
from vitscope.analyses.class_space.identifiability import Identifiability
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import Model
from vitscope.robustness.attack_gallery import TABLE as GALLERY
from vitscope.robustness.attack_gallery import gallery_pictures
from vitscope.robustness.attack_lens import DEFAULT_LENS, MARGINS, AttackLens
from vitscope.robustness.attacks import Attack, Victims, create_attack
from vitscope.robustness.budgets import Sweep, sweep
from vitscope.robustness.epsilons import Epsilon, UnitError
from vitscope.robustness.protocols import published_options
from vitscope.robustness.target import Target, attacking, normalised_where
from vitscope.robustness.threat import Threat, make_threat, pixels_of
from vitscope.statistics.intervals import paired, share_columns
from vitscope.tasks.classification import true_rank

Attacks = Sequence["str | Attack"] | Mapping[str, Mapping[str, Any]]
COUNTS = ("right", "top5", "surviving", "attacked")
ENOUGH = 6  # classes: with five of them everybody is among the first five
LENS = "lens."  # of the lens's sums among ours
CLEAN, NONE = "clean", "none"  # smallest epsilon of an image that is wrong anyway, and of one that nothing fooled


@register_analysis("attack")
class AttackStudy(Analysis):
    """Accuracy against the attacker's budget.

    attacks: names, or {name: options}. eps: budgets, e.g. ['1/255..6/255']. norm: linf, l2 or l1. steps: of every
    attack that has steps. cumulative: leave images alone that a smaller epsilon has fooled. protocol: pixels, or
    published. normalise: auto, outside or inside the model. lens: analyses run on clean and attacked pictures (True:
    the usual ones); lens_eps: at this budget, by default the smallest.
    """

    default = False  # asked for by name: a PGD of 20 steps costs some fifty forward passes
    uses_labels = True
    optional = (
        *(f"{c}{end}" for c in ("accuracy", "top5", "change", *MARGINS) for end in ("", "_low", "_high")),
        *Identifiability.optional,  # the lens: one image that was right has no interval
    )

    def __init__(
        self,
        attacks: Attacks = ("fgsm", "pgd"),
        eps: str | float | Sequence[str | float] = ("1/255..6/255",),
        norm: str = "linf",
        steps: int | None = None,
        cumulative: bool = False,
        protocol: str = "pixels",
        normalise: str = "auto",
        lens: bool | Sequence[str] = False,
        lens_eps: str | float | None = None,
    ) -> None:
        super().__init__()
        self.threat = make_threat(eps, norm, protocol)
        self._attacks = make_attacks(attacks, steps, protocol)
        for attack in self._attacks:
            attack.check(self.threat)
        if cumulative and protocol == "published":
            raise VitscopeError("The published protocol attacks every image at every epsilon: leave out --cumulative.")
        self.attacks = {attack.name: attack.options() for attack in self._attacks}
        self.eps = [e.text for e in self.threat.epsilons]
        self.norm, self.steps, self.cumulative = norm, None, cumulative
        self.protocol, self.normalise = protocol, normalise
        self.lens: list[str] = list(DEFAULT_LENS) if lens is True else list(lens or ())
        self.lens_eps = watched_eps(self.threat, lens_eps, norm, protocol).text if self.lens else None

    def start(self, model: Model) -> None:
        if model.num_classes == 0:
            raise UnsupportedModelError(f"{model.name} has no classes: there is no answer that could be changed.")
        same, remark = normalised_where(model, self.normalise)
        if same is not model:
            raise VitscopeError(
                f"{model.name} shall normalise inside, but its recipe has mean {model.preprocess.mean}: use "
                "vitscope.attack or `vitscope attack --normalise inside`, which hand it bare pixels."
            )
        self.threat.check_reach(math.prod(model.preprocess.input_size))
        self.model, self.target = model, Target(model, self.threat, self.setting.task)
        self.remarks = [remark] if remark else []
        if self.protocol == "published":
            self.remarks.append(
                "PUBLISHED PROTOCOL: attacks on normalised tensors, not clipped to pictures, against the model's own "
                "answers. These figures cannot be compared with those of other libraries."
            )
        shape = (len(self._attacks), len(self.threat.epsilons))
        self.sums = {key: zeros(*shape, dtype=torch.int64) for key in (*COUNTS, "won")} | {"size": zeros(*shape)}
        self.sums |= {key: zeros(1, dtype=torch.int64) for key in ("n", "clean")}
        self._lens: AttackLens | None = None
        if self.lens:
            eps = self.threat.epsilons[self.eps.index(str(self.lens_eps))]
            self._lens = AttackLens(model, self.lens, list(self.attacks), self.threat, eps, self.setting)
            self.remarks += self._lens.remarks
            self.sums |= {LENS + key: value for key, value in self._lens.sums.items()}

    def begin(self) -> None:
        """The lens adds to our sums: after a resume or a merge they are other tensors than before."""
        if self._lens is not None:
            self._lens.link({k.removeprefix(LENS): v for k, v in self.sums.items() if k.startswith(LENS)})

    def end_batch(self, batch: Batch) -> None:
        assert batch.logits is not None
        rows = (batch.labels >= 0).nonzero().flatten()
        if not len(rows):
            return
        truth, logits = batch.labels[rows], batch.logits.cpu()[rows]
        clean, five = logits.argmax(1), true_rank(logits, truth) <= 5
        images = batch.images[rows].to(self.model.device)
        wrong = clean != truth  # these may be won where answers are attacked
        if self.threat.space == "pixels":
            images = pixels_of(images, self.model.preprocess)
        self.threat.check_clean(images)
        labels = (truth if self.threat.labels == "true" else clean).to(images.device)
        victims = Victims(images, labels, batch.indices[rows], self.threat, self.setting.seed)
        self.add("n", torch.tensor([len(rows)]))
        self.add("clean", (clean == truth).sum()[None])
        watch = self.eps.index(str(self.lens_eps)) if self._lens is not None else None
        with attacking(self.model):
            if self._lens is not None:
                self._lens.look_at_clean(victims, truth, clean)
            for number, attack in enumerate(self._attacks):
                how: dict[str, Any] = {"five": five, "cumulative": self.cumulative, "watch": watch}
                done = sweep(self.target, victims, attack, truth, clean, **how)
                self._count(number, done, wrong)
                self._emit(attack.name, done, batch, rows, truth, clean)
                self._show(attack.name, done, victims, truth, clean)
                if self._lens is not None and done.watched is not None and watch is not None:
                    self._lens.look_at(attack.name, victims, done.watched, truth, clean, done.predictions[watch])

    def _count(self, number: int, done: Sweep, wrong: Tensor) -> None:
        for key in COUNTS:
            self.sums[key][number] += getattr(done, key).sum(1)
        self.sums["won"][number] += (done.right & wrong).sum(1)
        self.sums["size"][number] += done.size.sum(1)

    def _emit(self, attack: str, done: Sweep, batch: Batch, rows: Tensor, truth: Tensor, clean: Tensor) -> None:
        """One row per image and epsilon."""
        smallest = [self.smallest_text(int(i), bool(ok)) for i, ok in zip(done.smallest(), clean == truth)]
        paths = [batch.paths[i] for i in rows.tolist()]
        for e, eps in enumerate(self.threat.epsilons):
            cells = {
                "image": batch.indices[rows].numpy(),
                "path": paths,
                "label": truth.numpy(),
                "clean_prediction": clean.numpy(),
                "attack": attack,
                "eps": eps.text,
                "prediction": done.predictions[e].numpy(),
                "right": done.right[e].int().numpy(),
                "attacked": done.attacked[e].int().numpy(),
                "size": done.size[e].numpy(),
                "smallest_eps": smallest,
                "protocol": self.threat.protocol,
            }
            self.emit("attack_images", pd.DataFrame(cells))

    def _show(self, attack: str, done: Sweep, victims: Victims, truth: Tensor, clean: Tensor) -> None:
        """The gallery's pictures."""
        shown = [i for i, image in enumerate(victims.indices.tolist()) if image in self.setting.gallery]
        if not shown or self.setting.folder is None or self.setting.control:
            return
        folder, recipe = self.setting.folder / "images", self.model.preprocess
        names = self.setting.classes if len(self.setting.classes) == self.model.num_classes else ()
        rows = gallery_pictures(folder, shown, attack, done, victims, recipe, self.eps, truth, clean, names)
        self.emit(GALLERY, rows.assign(protocol=self.threat.protocol))

    def smallest_text(self, number: int, right: bool) -> str:
        """The smallest epsilon that fooled an image, by its number in a sweep."""
        if not right:
            return CLEAN
        return self.eps[number] if number < len(self.eps) else NONE

    def tables(self) -> dict[str, pd.DataFrame]:
        n, clean = int(self.sums["n"]), int(self.sums["clean"])
        if n == 0:
            raise VitscopeError("No image was attacked: none of them has a label.")
        rows: list[dict[str, object]] = []
        for a, attack in enumerate(self._attacks):
            for e, eps in enumerate(self.threat.epsilons):
                right, top5, surviving, attacked = (int(self.sums[key][a, e]) for key in COUNTS)
                row: dict[str, object] = {"attack": attack.name, "norm": self.norm, "eps": eps.text}
                row |= {"epsilon": eps.value, "epsilon_pixels": eps.value * self._pixel_scale()}
                row |= shares("clean", clean, n)
                row |= shares("accuracy", None if self.cumulative else right, n)
                if self.model.num_classes >= ENOUGH:
                    row |= shares("top5", None if self.cumulative else top5, n)
                row |= change(None if self.cumulative else right, clean, n, int(self.sums["won"][a, e]))
                row |= shares("accuracy_cumulative", surviving, n)
                row["mean_size"] = float(self.sums["size"][a, e]) / max(attacked, 1)
                row |= {
                    "attacked": attacked,
                    "n_images": n,
                    "options": ", ".join(f"{k} {v}" for k, v in attack.options().items() if v is not None)
                    or "no options",
                    "protocol": self.threat.protocol,
                }
                rows.append(row)
        self.begin()
        return {"attack": pd.DataFrame(rows)} | (self._lens.tables() if self._lens is not None else {})

    def _pixel_scale(self) -> float:
        """What one unit of epsilon is in pixels: 1, or about one standard deviation in normalised space."""
        std = self.model.preprocess.std
        return 1.0 if self.threat.space == "pixels" else sum(std) / len(std)

    def answers(self) -> tuple[int, int]:
        return int(self.sums["clean"]), int(self.sums["n"])

    def summary(self) -> dict[str, Headline]:
        n = int(self.sums["n"])
        figures = {"clean": Headline(100 * int(self.sums["clean"]) / n, "%", n, "accuracy without an attack")}
        column = "accuracy_cumulative" if self.cumulative else "accuracy"
        for row in self.tables()["attack"].to_dict("records"):
            note = f"{row['norm']}, {row['options']}; {row['protocol']}; 95 % interval "
            note += f"{row[f'{column}_low']:.3g} to {row[f'{column}_high']:.3g} (Wilson)"
            note += "; cumulative" if self.cumulative else ""
            figures[f"{row['attack']}@{row['eps']}"] = Headline(float(row[column]), "%", n, note)
            if "top5" in row and not self.cumulative:
                note = f"true class among the first five; {row['norm']}, {row['options']}; {row['protocol']}"
                figures[f"{row['attack']}_top5@{row['eps']}"] = Headline(float(row["top5"]), "%", n, note)
        return figures


def watched_eps(threat: Threat, asked: str | float | None, norm: str, protocol: str = "pixels") -> Epsilon:
    """The epsilon at which the lens looks: the smallest that is not 0, unless another one is asked for."""
    positive = [e for e in threat.epsilons if e.value > 0] or list(threat.epsilons)
    if asked is None:
        return positive[0]
    try:
        (wanted,) = make_threat(asked, norm, protocol).epsilons[:1]
    except UnitError as error:
        raise VitscopeError(f"--lens-eps {asked}: pixels lie in [0, 1]. Say --lens-eps {error.instead}.") from error
    if wanted not in threat.epsilons:
        known = ", ".join(e.text for e in threat.epsilons)
        raise VitscopeError(f"--lens-eps {wanted} is not among the epsilons: {known}.")
    return wanted


def make_attacks(attacks: Attacks, steps: int | None = None, protocol: str = "pixels") -> list[Attack]:
    """Names, `{name: options}` or attacks -> attacks. `steps` goes to every one that has steps."""
    wanted: list[tuple[str, dict[str, Any]]]
    inner = attacks.values() if isinstance(attacks, Mapping) else ()
    if not isinstance(attacks, str | Attack | Sequence | Mapping) or any(
        not isinstance(o or {}, Mapping) for o in inner
    ):
        raise VitscopeError(f"attacks={attacks!r}: expected names of attacks, or names with their options.")
    if isinstance(attacks, Mapping):
        wanted = [(str(name), dict(options or {})) for name, options in attacks.items()]
    else:
        items = [attacks] if isinstance(attacks, str | Attack) else attacks
        wanted = [(a.name, a.options()) if isinstance(a, Attack) else (str(a), {}) for a in items]
    if not wanted:
        raise VitscopeError("No attack is asked for: expected some of fgsm, pgd, ... (docs/attacks.md lists them).")
    names = [name for name, _ in wanted]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise VitscopeError(f"Attack {doubled[0]!r} is asked for twice; its rows could not be told apart.")
    made = []
    for name, options in wanted:
        if steps is not None and "steps" in create_attack(name).options():
            options.setdefault("steps", steps)
        made.append(create_attack(name, **(published_options(name, options) if protocol == "published" else options)))
    return made


def shares(name: str, count: int | None, n: int) -> dict[str, float]:
    """A share in percent with its Wilson interval; NaN where it was not measured."""
    if count is None:
        return {name: float("nan"), f"{name}_low": float("nan"), f"{name}_high": float("nan")}
    return share_columns(name, count, n)


def change(count: int | None, clean: int, n: int, won: int = 0) -> dict[str, float]:
    """The difference to the clean run in points. Attacks only take away, so its interval is that of the share lost.

    Where answers are attacked (published protocol) images are `won` as well: their pairs decide then.
    """
    if count is not None and won:
        low, high = paired(won, clean - (count - won), n)
        return {"change": 100 * (count - clean) / n, "change_low": 100 * low, "change_high": 100 * high}
    lost = shares("change", None if count is None else clean - count, n)
    return {"change": 0.0 - lost["change"], "change_low": -lost["change_high"], "change_high": -lost["change_low"]}
