"""How does it break? Accuracy, calibration and anomaly detection per condition, each against the clean images.

Kept per image and reading: one byte (counted, top-1, top-5) and the confidence. Each is written by exactly one process
into an array of zeros, so arrays of several processes, or of a run that was killed, add up to those of a straight run.
9 bytes per image and reading: 34 MB for all of ImageNet-C.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch

from vitscope.analyses.base import Analysis, Headline, register_analysis, zeros
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError
from vitscope.models import Model
from vitscope.robustness.condition import CLEAN, Condition
from vitscope.robustness.evaluation.readings import judge, plan_readings
from vitscope.robustness.evaluation.results import Results
from vitscope.robustness.evaluation.tables import all_tables, headline


@register_analysis("evaluation")
class Evaluation(Analysis):
    """Every condition of a `ShiftedData`, which `vitscope.evaluate` makes. Other data are one clean condition."""

    default = False
    uses_labels = True
    optional = (
        "top5", "ece", "rms", "rms_code", "clean", "clean_n", "difference", "difference_low", "difference_high",
        "alexnet_error", "ce", "mce", "mce_low", "mce_high", "top1_low", "top1_high",
    )  # fmt: skip

    def start(self, model: Model) -> None:
        if model.num_classes == 0:
            raise UnsupportedModelError(f"{model.name} has no classes (num_classes=0), so it cannot be right or wrong.")
        self.size = model.preprocess.input_size[1:]

    def prepare(self, data: Any, model: Model) -> None:
        from vitscope.robustness.evaluation.shifted import ShiftedData

        self.data = data if isinstance(data, ShiftedData) else ShiftedData([Condition(CLEAN, data)])
        self.readings = plan_readings(self.data.conditions)
        total = sum(reading.n for reading in self.readings)
        self.sums = {"outcome": zeros(total, dtype=torch.uint8), "confidence": zeros(total)}

    def end_batch(self, batch: Batch) -> None:
        assert batch.logits is not None
        logits = batch.logits.detach().cpu().double()  # (B, C)
        places = [self.data.locate(i) for i in batch.indices.tolist()]
        condition, inside = torch.tensor(places).unbind(1)  # (B,), (B,)
        present = set(condition.tolist())
        for reading in self.readings:
            if reading.condition not in present:
                continue
            rows = condition == reading.condition
            labelled = self.data.conditions[reading.condition].labelled
            outcome, confidence = judge(reading, logits[rows], batch.labels[rows], labelled)
            where = reading.start + inside[rows]
            self.sums["outcome"][where] += outcome
            self.sums["confidence"][where] += confidence

    def results(self) -> Results:
        """The measured arrays, ready to be put into tables."""
        outcome, confidence = (self.sums[key].numpy() for key in ("outcome", "confidence"))
        return Results(self.data.conditions, self.readings, outcome, confidence, self.size, self.setting.seed)

    def tables(self) -> dict[str, pd.DataFrame]:
        return all_tables(self.results())

    def answers(self) -> tuple[int, int] | None:
        results = self.results()
        clean = [r for r in self.readings if not r.beside and self.data.conditions[r.condition].set == CLEAN]
        found = [results.of(reading) for reading in clean]
        return (found[0].right, found[0].n) if found else None

    def summary(self) -> dict[str, Headline]:
        return headline(self.tables())
