"""How much of each class does a segmentation find, and what does it take for what?

All figures come from confusions n[t, p], summed over all pixels of all images (`vitscope.tasks.segmentation`): mean IoU
and mean accuracy over classes, pixel accuracy. Their intervals are over images, by a bootstrap that adds up: image i is
w_i times in a sample, w_i Poisson with mean 1 from (seed, i), and a sample is nothing but sums. Conditions of the same
images (corruptions) share the weights, so that differences to the clean images are paired.

Kept: confusions (K, C, C) and samples (K, R, 3, C) of K conditions. Per image and class, counts go to disk.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Analysis, Headline, register_analysis, zeros
from vitscope.analyses.one_pass import evaluating
from vitscope.analyses.segmentation.pictures import TABLE as GALLERY
from vitscope.analyses.segmentation.pictures import save_maps
from vitscope.analyses.segmentation.tables import class_table, confusion_table, figure_table
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import DataError
from vitscope.models import Model
from vitscope.statistics.bootstrap import poisson_weights
from vitscope.tasks.segmentation import answered, check_pixels, check_segmenter, confusions

DRAWS, FEWEST = 500, 100  # samples of the bootstrap, fewer where conditions and classes are many
ROOM = 2**25  # numbers of all samples together: 256 MB


@register_analysis("segmentation")
class SegmentationFigures(Analysis):
    """Mean IoU, mean accuracy and pixel accuracy, overall and per class, with intervals over images; confusions."""

    tasks = ("segmentation",)
    optional: ClassVar[tuple[str, ...]] = (
        *(f"{name}{end}" for name in ("value", "iou", "accuracy", "change") for end in ("", "_low", "_high")),
        *("low", "high", "clean"),
    )

    def start(self, model: Model) -> None:
        check_segmenter(model)
        with evaluating(model.module), torch.no_grad():  # a picture of nothing, to see what answers are like
            check_pixels(model(model.place(torch.zeros(1, *model.preprocess.input_size))))
        self.classes, self.recipe = model.num_classes, model.preprocess
        self._allocate([("none", 0)])

    def check_data(self, data: Data) -> None:
        data.check_head(self.classes, "the model")

    def prepare(self, data: Any, model: Model) -> None:
        """`conditions` of the data: (corruption, severity), the clean images first; `place`: which item is which."""
        self._allocate(list(getattr(data, "conditions", [("none", 0)])))
        self.place = getattr(data, "place", lambda item: (0, item))

    def _allocate(self, conditions: list[tuple[str, int]]) -> None:
        self.conditions, self.place = conditions, lambda item: (0, item)
        k, c = len(conditions), self.classes
        self.draws = max(FEWEST, min(DRAWS, ROOM // (3 * k * c)))
        self.sums = {
            "confusions": zeros(k, c, c, dtype=torch.int64),
            "samples": zeros(k, self.draws, 3, c, dtype=torch.int64),  # right, there, answered
            "images": zeros(k, dtype=torch.int64),  # with a pixel to judge
        }

    def end_batch(self, batch: Batch) -> None:
        assert batch.outputs is not None
        answers = answered(batch.outputs.detach(), batch.targets).cpu()
        matrices = confusions(answers, batch.targets, self.classes)  # (B, C, C)
        self._count([self.place(number) for number in batch.indices.tolist()], matrices)
        self._emit(batch, matrices)
        shown = [i for i, number in enumerate(batch.indices.tolist()) if number in self.setting.gallery]
        if shown and self.setting.folder is not None and not self.setting.control:
            folder = self.setting.folder / "images"
            places = [self.conditions[self.place(number)[0]] for number in batch.indices.tolist()]
            told = [f"{name.replace('_', ' ')} {severity}" if severity else "" for name, severity in places]
            self.emit(GALLERY, save_maps(folder, batch, shown, answers, matrices, told))

    def _count(self, places: list[tuple[int, int]], matrices: Tensor) -> None:
        """Confusions (B, C, C) of (condition, item). Whole numbers below 2^53: products in float64 are exact."""
        weights = np.stack([poisson_weights(self.setting.seed, item, self.draws) for _, item in places])  # (B, R)
        counts = torch.stack([matrices.diagonal(dim1=1, dim2=2), matrices.sum(2), matrices.sum(1)], 1)  # (B, 3, C)
        for condition in {condition for condition, _ in places}:
            which = [i for i, place in enumerate(places) if place[0] == condition]
            drawn = weights[which].T.astype(np.float64) @ counts[which].flatten(1).numpy().astype(np.float64)
            self.sums["samples"][condition] += torch.from_numpy(drawn).long().view(self.draws, *counts.shape[1:])
            self.sums["confusions"][condition] += matrices[which].sum(0)
            self.sums["images"][condition] += (counts[which, 1].sum(1) > 0).sum()

    def _emit(self, batch: Batch, matrices: Tensor) -> None:
        """One row per image and class that is there or answered."""
        right, there, said = matrices.diagonal(dim1=1, dim2=2), matrices.sum(2), matrices.sum(1)  # (B, C)
        item, label = ((there + said) > 0).nonzero(as_tuple=True)
        if not len(item):
            return
        numbers, items = batch.indices.tolist(), item.tolist()
        conditions = [self.conditions[self.place(number)[0]] for number in numbers]
        rows: dict[str, Any] = {"image": [numbers[i] for i in items], "path": [batch.names[i] for i in items]}
        rows |= {"corruption": [conditions[i][0] for i in items], "severity": [conditions[i][1] for i in items]}
        rows["label"] = label.numpy()
        counts = {"pixels": there, "answered": said, "right": right}
        rows |= {name: count[item, label].numpy() for name, count in counts.items()}
        self.emit("segmentation_images", pd.DataFrame(rows))

    def tables(self) -> dict[str, pd.DataFrame]:
        found = self.sums["confusions"], self.sums["samples"].numpy(), self.sums["images"]
        if not int(found[0][0].sum()):
            raise DataError("No image that could be read has a pixel with a class: there is nothing to judge.")
        names = self.names()
        return {
            "segmentation": figure_table(self.conditions, *found),
            "segmentation_classes": class_table(self.conditions, *found, names),
            "segmentation_confusions": confusion_table(found[0][0], names),
        }

    def names(self) -> list[str]:
        told = self.setting.classes
        return list(told) if len(told) == self.classes else [str(c) for c in range(self.classes)]

    def summary(self) -> dict[str, Headline]:
        found: dict[str, Headline] = {}
        table = self.tables()["segmentation"]
        for row in table[table["severity"] == 0].to_dict("records"):
            note = (
                f"95 % interval {row['low']:.3g} to {row['high']:.3g} over images" if row["low"] == row["low"] else ""
            )
            found[row["metric"]] = Headline(float(row["value"]), "%", int(row["n"]), note)
        worse = table[(table["severity"] > 0) & (table["metric"] == "mean_iou")]
        if len(worse):
            note = f"mean over {len(worse)} conditions: {worse['corruption'].nunique()} corruptions"
            found["corrupted_mean_iou"] = Headline(float(np.mean(worse["value"])), "%", int(worse["n"].max()), note)
        return found
