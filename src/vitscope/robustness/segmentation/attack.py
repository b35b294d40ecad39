"""How easily does a segmentation break? Mean IoU against the attacker's budget.

The loss that is raised is that of the task, the cross-entropy summed over the pixels of a picture, under the same
threat model as elsewhere: pixels in [0, 1], clipped, held against the ball. A picture is never fooled as a whole, so
every one is attacked at every budget, and what is counted are pixels. The clean pass and each (attack, budget) are
conditions of one table: intervals are over images, differences to clean are paired. With `lens`, patches of clean and
attacked pictures are read block by block (`lens.py`), beside noise of the same budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis
from vitscope.analyses.segmentation.analysis import SegmentationFigures
from vitscope.analyses.segmentation.tables import figure_table
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.robustness.attack_study import Attacks, make_attacks, watched_eps
from vitscope.robustness.attacks import Victims, create_attack
from vitscope.robustness.conventions import NOISE
from vitscope.robustness.segmentation.lens import OPTIONAL, PatchLens
from vitscope.robustness.target import Target, attacking, normalised_where
from vitscope.robustness.threat import make_threat, normalised, pixels_of
from vitscope.tasks.segmentation import answered, confusions

TABLE, LENS = "segmentation_attack", "segmentation_attack_lens"


@register_analysis("segmentation.attack")
class SegmentationAttack(SegmentationFigures):
    """Attacks on the pixel loss. attacks, eps, norm, steps, normalise, lens_eps: as for `attack`; lens: yes or no."""

    default = False
    optional = (*SegmentationFigures.optional, *OPTIONAL)

    def __init__(
        self,
        attacks: Attacks = ("fgsm", "pgd"),
        eps: str | float | Sequence[str | float] = ("1/255..6/255",),
        norm: str = "linf",
        steps: int | None = None,
        normalise: str = "auto",
        lens: bool = False,
        lens_eps: str | float | None = None,
    ) -> None:
        super().__init__()
        self.threat = make_threat(eps, norm)
        self._attacks = make_attacks(attacks, steps)
        for attack in self._attacks:
            attack.check(self.threat)
            attack.check_pixels()
        self.attacks = {attack.name: attack.options() for attack in self._attacks}
        self.eps = [e.text for e in self.threat.epsilons]
        self.norm, self.steps, self.normalise = norm, None, normalise
        self.lens = lens
        self.lens_eps = watched_eps(self.threat, lens_eps, norm).text if lens else None

    def start(self, model: Model) -> None:
        super().start(model)
        same, remark = normalised_where(model, self.normalise)
        if same is not model:
            raise VitscopeError(f"{model.name} shall normalise inside: say --normalise inside to `vitscope attack`.")
        self.remarks = [remark] if remark else []
        self.threat.check_reach(math.prod(model.preprocess.input_size))
        self.model, self.target = model, Target(model, self.threat, self.setting.task)
        tried = [(a.name, e + 1) for a in self._attacks for e in range(len(self.threat.epsilons))]
        self._allocate([("none", 0), *tried])
        if self.lens:
            self._lens = PatchLens(model)
            self._watched = [*self.attacks, *([NOISE] if NOISE not in self.attacks else [])]
            self.sums |= self._lens.new_sums(len(self._watched))

    def prepare(self, data: Data, model: Model) -> None:
        """Nothing has to be known of the data."""

    def end_batch(self, batch: Batch) -> None:
        super().end_batch(batch)  # as they are
        images = pixels_of(batch.images.to(self.model.device), self.model.preprocess)
        self.threat.check_clean(images)
        targets = batch.targets.to(images.device)
        victims = Victims(images, targets, batch.indices, self.threat, self.setting.seed)
        number = 0
        with attacking(self.model):
            for attack in self._attacks:
                for eps in self.threat.epsilons:
                    number += 1
                    found = attack.perturb(self.target, victims, eps.value)
                    self.threat.verify(found, images, eps.value, attack.name)
                    answers = answered(self.target.answer(found), targets).cpu()
                    matrices = confusions(answers, batch.targets, self.classes)
                    self._count([(number, item) for item in batch.indices.tolist()], matrices)
                    if eps.text == self.lens_eps:
                        self._look(attack.name, found, batch)
            if self.lens and NOISE not in self.attacks:  # the null
                eps = next(e for e in self.threat.epsilons if e.text == self.lens_eps)
                self._look(NOISE, create_attack(NOISE).perturb(self.target, victims, eps.value), batch)

    def _look(self, attack: str, found: Tensor, batch: Batch) -> None:
        maps, changed = (batch.targets, batch.targets), normalised(found, self.model.preprocess).cpu()
        self._lens.compare(self.sums, self._watched.index(attack), batch.images.cpu(), changed, maps, batch.indices)

    def tables(self) -> dict[str, pd.DataFrame]:
        clean = super().tables()
        table = figure_table(
            self.conditions, self.sums["confusions"], self.sums["samples"].numpy(), self.sums["images"]
        )
        attacked = table[table["severity"] > 0]
        level = attacked["severity"] - 1
        columns: dict[str, Any] = {
            "attack": attacked["corruption"],
            "norm": self.norm,
            "eps": [self.eps[e] for e in level],
            "epsilon": [self.threat.epsilons[e].value for e in level],
        }
        first = attacked.drop(columns=["corruption", "severity"]).assign(**columns, protocol=self.threat.protocol)
        order = [*columns, *(c for c in first.columns if c not in columns)]
        plain = clean["segmentation"]
        plain = plain[plain["severity"] == 0].drop(columns=["clean", "change", "change_low", "change_high"])
        classes = clean["segmentation_classes"]
        versions = [{"attack": a, "eps": self.lens_eps} for a in self._watched] if self.lens else []
        seen = self._lens.table(self.sums, versions) if versions else plain[:0]
        return {
            **clean,
            **({LENS: seen.assign(protocol=self.threat.protocol)} if len(seen) else {}),
            "segmentation": plain.reset_index(drop=True),
            "segmentation_classes": classes[classes["severity"] == 0].reset_index(drop=True),
            TABLE: first[order].reset_index(drop=True),
        }

    def summary(self) -> dict[str, Headline]:
        tables = self.tables()
        found: dict[str, Headline] = {}
        for row in tables["segmentation"].to_dict("records"):
            found[f"clean_{row['metric']}"] = Headline(float(row["value"]), "%", int(row["n"]), "without an attack")
        for row in tables[TABLE].to_dict("records"):
            if row["metric"] == "mean_iou":
                note = f"mean IoU, {row['norm']}; {row['protocol']}; clean {row['clean']:.3g} %"
                found[f"{row['attack']}@{row['eps']}"] = Headline(float(row["value"]), "%", int(row["n"]), note)
        return found
