"""Which relevance method is faithful, which one finds the object, and what does each cost? One table.

For every image and method: a map (`relevance.py`), accuracy curves under negative and positive perturbation with their
areas (`curves.py`), and, with masks, pointing game and average precision (`localisation.py`). Relevance is asked for
the true class unless `target` names another; curves always count answers with the true class. Areas are means over
images of each image's own area, so their intervals are over images; the difference to random relevance is paired by
image (and has no interval for random relevance itself: it is 0 by definition).

Cost per image: the methods' own passes and, for each method and direction, `steps` - 1 passes over a share of the
tokens (together about steps / 2 forward passes where tokens can be dropped, steps where they must be masked).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.attention_facts import check_points
from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.class_space.analysis import ClassSpaceAnalysis, with_control, with_rows
from vitscope.analyses.class_space.curves import (
    DIRECTIONS,
    area,
    curve_hits,
    kept_counts,
    most_relevant,
    published_area,
)
from vitscope.analyses.class_space.localisation import average_precision, object_share, pointing_game, usable
from vitscope.analyses.class_space.ranks import check_labels
from vitscope.analyses.class_space.relevance import (
    BLIND,
    COST,
    LOCAL,
    RANDOM,
    USUAL,
    Place,
    check_method,
    random_relevance,
    relevance,
)
from vitscope.analyses.class_space.removal import why_not_removable
from vitscope.analyses.class_space.targets import find_class
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import Model
from vitscope.statistics.clusters import mean_over_images
from vitscope.statistics.intervals import share_columns, wilson

PLACES = ("pointing", "average_precision")


@register_analysis("relevance")
class Relevance(ClassSpaceAnalysis):
    """Relevance methods: faithfulness under perturbation, localisation against masks, cost.

    methods: the usual six; random is always there. steps: points of a curve; 0: every number of tokens, which
    variant='code' needs. draws: random maps per image, 3 by default and 10 for variant='code'.
    block, attention_head: read maps off one block, one head of attention; class gradients and attention can.
    target: the class that is asked for: label, prediction, the number of a class, or its name.
    """

    keys: ClassVar = {"relevance": ["method"], "relevance_curves": ["method", "direction", "kept"]}
    optional = with_control(
        *(f"{d}_{part}{end}" for d in DIRECTIONS for part in ("", "gain_") for end in ("low", "high")),
        *(f"average_precision_{end}" for end in ("low", "high")),
    )

    def __init__(
        self,
        *,
        methods: Sequence[str] | None = None,
        steps: int = 20,
        draws: int | None = None,
        block: int | None = None,
        attention_head: int | None = None,
        target: int | str = "label",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.block, self.attention_head, self.target = block, attention_head, target
        self.place = Place(block, attention_head)
        for method in methods or ():
            if method != RANDOM:
                check_method(method)
        whole = [m for m in methods or () if m not in (*LOCAL, RANDOM)]
        if whole and not self.place.everywhere:
            raise VitscopeError(
                f"{whole[0]} is made of all blocks and heads. With block or attention_head, choose among the methods "
                f"{', '.join(LOCAL)}."
            )
        if (draws is not None and draws < 1) or steps < 0:
            raise VitscopeError(f"steps={steps}, draws={draws}: expected steps >= 0 (0: every token) and draws >= 1.")
        if self.head != "own":
            raise VitscopeError(
                f"head={self.head!r}: relevance is asked of the model's own answer, from all of its heads. Leave head "
                "out for relevance, and ask for parts that read single tokens with it in a run of their own. A head of "
                "attention is attention_head."
            )
        if self.variant == "code" and steps:
            raise VitscopeError("variant='code' sums over every number of tokens: use steps=0 with it.")
        self.methods = list(methods) if methods is not None else None
        self.steps, self.draws = steps, draws or (10 if self.variant == "code" else 3)

    def needs(self, model: Model) -> list[str]:
        return []

    def start_sums(self, model: Model) -> None:
        self.model = model
        self.place.check(model)
        self.asked = find_class(self.target, model.num_classes, model.classes, self.setting.classes)
        usual = [m for m in USUAL if self.place.everywhere or m in LOCAL]
        self.chosen = [m for m in self.methods or usual if m != RANDOM] + [RANDOM]
        if any(m not in BLIND for m in self.chosen):
            check_points(model, ["blocks.*.attn.hook_pattern"])
        if reason := why_not_removable(model):
            raise UnsupportedModelError(reason)
        self.counts = kept_counts(model.layout.image_tokens, self.steps or None)
        m, s = len(self.chosen), len(self.counts)
        self.sums = {"n": zeros(1), "hits": zeros(m, 2, s)}
        self.sums |= {key: zeros(m, 2) for key in ("area_squared", "gain", "gain_squared")}  # gain: over random
        self.sums |= {"n_masked": zeros(1), "chance": zeros(1)}
        self.sums |= {key: zeros(m) for p in PLACES for key in (p, f"{p}_squared")}

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        pass

    def end_batch(self, batch: Batch) -> None:
        check_labels(batch.labels, self.projector.classes)
        known = batch.labels >= 0
        if known.any():
            masks = batch.token_masks(self.layout.grid)
            self._images(batch, known, None if masks is None else masks[known])
        super().end_batch(batch)

    def _images(self, batch: Batch, known: Tensor, masks: Tensor | None) -> None:
        assert batch.logits is not None
        images, labels = self.model.place(batch.images[known]), batch.labels[known]
        numbers = batch.indices[known].tolist()
        asked = self._asked(labels, batch.logits[known])
        tokens, inner = self.layout.image_tokens, self.counts[1:-1]
        ends = curve_hits(self.model, images, labels, torch.zeros(len(labels), tokens, dtype=torch.int64), [0])
        full = (batch.logits[known].argmax(1).cpu() == labels).double()[None]  # (1, B)
        areas = torch.empty(len(self.chosen), 2, len(labels), dtype=torch.float64)
        for m, method in enumerate(self.chosen):
            draws = self.draws if method == RANDOM else 1
            for draw in range(draws):
                if method == RANDOM:
                    found = random_relevance(numbers, tokens, self.seed, draw)
                else:
                    found = relevance(self.model, images, asked, method, self.place).cpu()
                for d, direction in enumerate(DIRECTIONS):
                    order = most_relevant(found, direction)
                    hits = torch.cat([ends, curve_hits(self.model, images, labels, order, inner), full])  # (S, B)
                    self.sums["hits"][m, d] += hits.sum(1) / draws
                    curve = self._area(hits)
                    areas[m, d] = curve / draws if draw == 0 else areas[m, d] + curve / draws
                if masks is not None:
                    self._localise(m, found, masks, draws)
            if method != RANDOM:
                self._emit_maps(method, found, numbers)
        gain = areas - areas[-1]
        for key, value in (("area_squared", areas**2), ("gain", gain), ("gain_squared", gain**2)):
            self.sums[key] += value.sum(-1)
        self.sums["n"] += len(labels)
        if masks is not None:
            good = usable(masks)
            self.sums["n_masked"] += good.sum()
            self.sums["chance"] += object_share(masks)[good].sum()

    def _asked(self, labels: Tensor, logits: Tensor) -> Tensor:
        """(B,): the class that each image's map is asked for."""
        if self.target == "label":
            return labels
        return logits.argmax(1).cpu() if self.asked is None else torch.full_like(labels, self.asked)

    def _title(self, method: str) -> str:
        """Of a map, with whatever is not usual about it."""
        target = (
            "" if self.target == "label" else f"for {self.target}" if self.asked is None else f"class {self.target}"
        )
        unusual = ", ".join(word for word in (str(self.place), target) if word)
        return f"relevance: {method} ({unusual})" if unusual else f"relevance: {method}"

    def _area(self, hits: Tensor) -> Tensor:
        """Each image's own area, (S, B) -> (B,)."""
        share = torch.tensor(self.counts, dtype=torch.float64) / self.counts[-1]
        return torch.trapezoid(hits, share[:, None], dim=0)

    def _localise(self, m: int, found: Tensor, masks: Tensor, draws: int) -> None:
        good = usable(masks)
        for name, measure in (("pointing", pointing_game), ("average_precision", average_precision)):
            values = measure(found[good], masks[good])
            self.sums[name][m] += values.sum() / draws
            self.sums[f"{name}_squared"][m] += values.square().sum() / draws

    def _emit_maps(self, method: str, found: Tensor, images: Sequence[int]) -> None:
        shown = [i for i, image in enumerate(images) if image in self.setting.gallery]
        if not shown:
            return
        row, column = np.indices(self.layout.grid).reshape(2, -1)
        block, frames = self.layout.blocks - 1 if self.block is None else self.block, []
        for i in shown:
            largest = found[i].abs().max().clamp(min=1e-30)  # maps have no unit: the largest is 1
            cells = {"block": block, "row": row, "col": column}
            value = (found[i] / largest).double().numpy()
            frames.append(pd.DataFrame({"image": images[i], "map": self._title(method), **cells, "value": value}))
        self.emit("maps_relevance", pd.concat(frames, ignore_index=True))

    def tables(self) -> dict[str, pd.DataFrame]:
        n, rows, curves = float(self.sums["n"]), [], []
        for m, method in enumerate(self.chosen if n else []):  # none: no image has a label
            row: dict[str, object] = {"method": method}
            for d, direction in enumerate(DIRECTIONS):
                accuracy = (self.sums["hits"][m, d] / n).tolist()
                total = n * area(accuracy, self.counts)
                mean = mean_over_images(n, total, float(self.sums["area_squared"][m, d]), "fraction")
                row |= mean.columns(f"{direction}_area", ends=direction)
                total, squares = (float(self.sums[key][m, d]) for key in ("gain", "gain_squared"))
                gain = mean_over_images(n, total, squares, "change")
                gain = replace(gain, low=math.nan, high=math.nan) if method == RANDOM else gain
                row |= gain.columns(f"{direction}_gain")
                if self.variant == "code":
                    row[f"{direction}_published"] = published_area(accuracy, self.counts)
                for kept, share in zip(self.counts, accuracy):
                    low, high = wilson(min(max(share, 0.0), 1.0) * n, n)
                    key = {"method": method, "direction": direction, "kept": kept}
                    numbers = {"accuracy": 100 * share, "low": 100 * low, "high": 100 * high, "n_images": round(n)}
                    curves.append(key | {"share": kept / self.counts[-1]} | numbers)
            forward, backward = COST[method]
            cost = {"forward_passes": forward, "backward_passes": backward, "n_images": round(n)}
            rows.append(row | self._places(m) | cost)
        return with_rows({"relevance": pd.DataFrame(rows), "relevance_curves": pd.DataFrame(curves)})

    def _places(self, m: int) -> dict[str, object]:
        n = float(self.sums["n_masked"])
        if n == 0:  # no masks: these columns are left out
            return {}
        row: dict[str, object] = {**share_columns("pointing", float(self.sums["pointing"][m]), n)}
        total, squares = (float(self.sums[key][m]) for key in ("average_precision", "average_precision_squared"))
        mean = mean_over_images(n, total, squares, "fraction")
        row |= mean.columns("average_precision")
        return row | {"object_share": float(self.sums["chance"]) / n, "n_masked": round(n)}

    def summary(self) -> dict[str, Headline]:
        found = self.tables().get("relevance")
        if found is None:  # no image has a label
            return {}
        table = found.set_index("method")
        best = table.drop(index=RANDOM).sort_values("negative_area")
        if not len(best):
            return {}
        name = str(best.index[-1])
        chance = float(table["negative_area"][RANDOM])
        note = f"largest of {len(best)} methods ({name}); random {chance:.3f}"
        return {"negative_area": Headline(float(best["negative_area"].iloc[-1]), "area", int(self.sums["n"]), note)}
