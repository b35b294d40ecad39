"""What does a token's knowledge rest on? Perturb attention or take tokens away, and compare the same tokens.

| perturbation | what is done | compared |
|---|---|---|
| self_only | image tokens attend only to themselves | class and image tokens |
| no_cls | image tokens do not attend to the class token; rows renormalised | class and image tokens |
| no_cls_bare | the same without renormalisation, as published | class and image tokens |
| without_context | context tokens are removed after the position embedding | class token and class-labelled tokens |
| without_class | class-labelled tokens are removed | class token and context tokens |

Both sides are the same images and the same tokens; removals need masks and take images that have both kinds of tokens.
Without masks they are left out, and refused where they were asked for by name.
Each costs one forward pass per image (the unperturbed side is the run's own pass). variant 'code' adds the published
rate after a perturbation, which counts the class token among the image tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.class_space.analysis import ClassSpaceAnalysis, with_control, with_rows
from vitscope.analyses.class_space.attention_edits import attention_edit
from vitscope.analyses.class_space.conventions import REMOVALS
from vitscope.analyses.class_space.localisation import usable
from vitscope.analyses.class_space.ranks import identifiability, ties_of
from vitscope.analyses.class_space.removal import stream_kept, why_not_removable
from vitscope.analyses.class_space.sharing import Readings
from vitscope.analyses.naming import check_known
from vitscope.data import Data
from vitscope.data.batch import CONTEXT, OBJECT, Batch
from vitscope.errors import UnsuitableDataError, UnsupportedModelError, VitscopeError
from vitscope.models import Model
from vitscope.statistics.intervals import share_columns

ATTENTION = ("self_only", "no_cls", "no_cls_bare")
REMOVAL = dict(zip(REMOVALS, ((CONTEXT, "object"), (OBJECT, "context"))))  # removed, compared
KINDS = (*ATTENTION, *REMOVAL)
COUNTED = ("class", "image", "object", "context")  # of which a perturbation compares the first and one other
VALUES = ("before", "after", "change")  # of r, then of r = 1


@register_analysis("perturbation")
class Perturbation(ClassSpaceAnalysis):
    """Accuracy and identifiability before and after perturbing attention or removing tokens.

    kinds: perturbations, all by default. blocks: those whose attention is edited, all by default.
    """

    keys: ClassVar = {
        "perturbation": ["perturbation", "edited", "block", "tokens"],
        "perturbation_accuracy": ["perturbation", "edited"],
    }
    optional = with_control(
        *(f"{v}_change_{end}" for v in ("identifiability", "rate") for end in ("low", "high")), "rate_after_with_class"
    )

    def __init__(
        self, *, kinds: Sequence[str] | None = None, blocks: Sequence[int] | None = None, **common: Any
    ) -> None:
        super().__init__(**common)
        for kind in kinds or ():
            check_known("perturbation", kind, KINDS)
        if self.tokens == "class":
            raise VitscopeError("Perturbations compare image tokens: use tokens='all' or 'image'.")
        self.kinds = list(kinds) if kinds is not None else None
        self.blocks = list(blocks) if blocks is not None else None

    def needs(self, model: Model) -> list[str]:
        return ["blocks.*.hook_resid_post"]

    def check_data(self, data: Data) -> None:
        removals = [kind for kind in self.kinds or () if kind in REMOVAL]
        if removals and not data.has_masks:
            raise UnsuitableDataError(
                f"{removals[0]} removes tokens by what a mask says they show, and {data.name} has no masks. Choose "
                f"data with masks, or perturbations of attention: {', '.join(ATTENTION)}."
            )

    def start_sums(self, model: Model) -> None:
        self.model = model
        chosen = self.kinds or [k for k in KINDS if model.layout.class_tokens or not k.startswith("no_cls")]
        reason = why_not_removable(model) if any(kind in REMOVAL for kind in chosen) else None
        if reason and self.kinds:
            raise UnsupportedModelError(reason)
        if reason:
            chosen = [kind for kind in chosen if kind not in REMOVAL]
            self.remarks = [f"no tokens are removed. {reason}"]
        self.chosen = chosen
        for kind in chosen:
            if kind in ATTENTION:
                self._edits(kind)  # refuses what cannot be done before any image is read
        self.start_clusters("tokens", 2 * len(VALUES), len(chosen), self.layout.blocks)
        self.sums |= {key: zeros(len(chosen)) for key in ("images", "right_before", "right_after", "both")}
        if self.variant == "code":
            self.sums["with_class"] = zeros(len(chosen), self.layout.blocks)
        self._before: list[Tensor] = []  # ranks (B, n) of each block of the unperturbed pass

    def _edits(self, kind: str) -> Mapping[str, object]:
        name = "self_only" if kind == "self_only" else "no_cls"
        return attention_edit(self.model, name, renormalise=kind != "no_cls_bare", blocks=self.blocks)  # type: ignore[arg-type]

    def _edited(self, kind: str) -> str:
        """The blocks whose attention is edited: 'all', '0 1', or 'none' for a removal."""
        if kind in REMOVAL:
            return "none"
        return "all" if self.blocks is None else " ".join(map(str, self.blocks))

    def read(self, block: int, points: Mapping[str, Tensor], readings: Readings) -> None:
        if block == 0:
            self._before = []
        (reading,) = readings.get(block, points, "hook_resid_post")
        self._before.append(reading.rank)

    def sum_up(self, readings: Readings, batch: Batch) -> None:
        assert batch.logits is not None
        images = self.model.place(readings.rows(batch.images))
        right = readings.rows(batch.logits).argmax(1).cpu() == readings.labels
        for number, kind in enumerate(self.chosen if len(readings.labels) else []):
            if kind in ATTENTION:
                self._attention(number, kind, images, right, readings)
            elif readings.masks is not None:
                self._removal(number, kind, images, right, readings)
        self._before = []

    def _attention(self, number: int, kind: str, images: Tensor, right: Tensor, readings: Readings) -> None:
        after: list[Tensor] = []

        def on_block(block: int, points: Mapping[str, Tensor]) -> None:
            (x,) = points.values()
            after.append(self._rank(block, x[:, self.selection.where], readings.labels, self.selection.first))

        with self.model.edits(self._edits(kind)):  # type: ignore[arg-type]
            logits = self.model.stream(images, "blocks.*.hook_resid_post", on_block)
        members = readings.members.clone()
        for g, group in enumerate(self.groups):
            if group in ("object", "context"):  # parts of image: those belong to the removals
                members[:, g] = 0
        self._add(number, self._before, after, members, right, logits.argmax(1).cpu() == readings.labels)

    def _removal(self, number: int, kind: str, images: Tensor, right: Tensor, readings: Readings) -> None:
        assert readings.masks is not None
        removed, compared = REMOVAL[kind]
        rows = usable(readings.masks).nonzero().flatten()  # images that have both kinds of tokens
        if not len(rows):
            return
        keep = torch.ones(len(rows), self.layout.tokens, dtype=torch.bool)
        keep[:, self.layout.image] = readings.masks[rows] != removed
        labels = readings.labels[rows]
        after = [torch.zeros(len(rows), self.layout.tokens) for _ in range(self.layout.blocks)]

        def on_block(block: int, points: Mapping[str, Tensor], which: Tensor, tokens: Tensor) -> None:
            (x,) = points.values()
            after[block][which[:, None], tokens] = self._rank(block, x, labels[which], 0)

        logits = stream_kept(self.model, images[rows.to(images.device)], keep, "blocks.*.hook_resid_post", on_block)
        members = readings.members[rows]
        for g, group in enumerate(self.groups):
            if group not in ("class", "distillation", "register", compared):
                members[:, g] = 0
        after = [a[:, self.selection.where] for a in after]
        before = [b[rows] for b in self._before]
        self._add(number, before, after, members, right[rows], logits.argmax(1).cpu() == labels)

    def _rank(self, block: int, x: Tensor, labels: Tensor, first: int) -> Tensor:
        where = f"blocks.{block}.hook_resid_post"
        ties = ties_of(self.variant)
        return self.projector.read(x, labels, first_token=first, ties=ties, where=where).rank.cpu()

    def _add(
        self,
        number: int,
        before: Sequence[Tensor],
        after: Sequence[Tensor],
        members: Tensor,
        right: Tensor,
        still: Tensor,
    ) -> None:
        b, a = torch.stack(list(before)), torch.stack(list(after))  # (L, B, n)
        values = []
        for now in (lambda rank: identifiability(rank.double(), self.projector.classes), lambda rank: rank == 0):
            x, y = now(b).double(), now(a).double()
            values += [x, y, y - x]
        self.add_clusters("tokens", number, torch.stack(values, 1), members)
        if self.variant == "code" and "class" in self.groups:
            kept = members[:, [g for g, group in enumerate(self.groups) if group in COUNTED]].sum(1)  # (B, n)
            self.sums["with_class"][number] += ((a == 0) * kept).sum(-1).div(kept.sum(-1)).sum(-1)
        for key, value in (("images", torch.ones_like(right)), ("right_before", right), ("right_after", still)):
            self.sums[key][number] += value.double().sum()
        self.sums["both"][number] += (right & still).double().sum()

    def tables(self) -> dict[str, pd.DataFrame]:
        rows = []
        for number, kind in enumerate(self.chosen):
            for block in range(self.layout.blocks):
                for g, group in enumerate(self.groups):
                    row: dict[str, object] = {"perturbation": kind, "edited": self._edited(kind), "block": block}
                    row["tokens"] = group
                    means = [self.mean_of("tokens", (number, block), v, g, "change") for v in range(6)]
                    if means[0] is None:
                        continue
                    for v, mean in enumerate(means):
                        assert mean is not None
                        name, scale = ("identifiability", 1) if v < 3 else ("rate", 100)
                        column, change = f"{name}_{VALUES[v % 3]}", VALUES[v % 3] == "change"
                        row |= mean.columns(column, scale) if change else {column: scale * mean.value}
                    if self.variant == "code":
                        row["rate_after_with_class"] = self._with_class(number, block, group)
                    rows.append(row | {"n_tokens": means[0].tokens, "n_images": means[0].images})
        return with_rows({"perturbation": pd.DataFrame(rows), "perturbation_accuracy": self._accuracy()})

    def _with_class(self, number: int, block: int, group: str) -> float:
        """The published rate after a perturbation: per image of these tokens and the class token; NaN for others."""
        if group not in COUNTED[1:] or "class" not in self.groups:
            return math.nan
        return 100 * float(self.sums["with_class"][number, block] / self.sums["images"][number])

    def _accuracy(self) -> pd.DataFrame:
        rows = []
        for number, kind in enumerate(self.chosen):
            n, before, after, both = (
                float(self.sums[k][number]) for k in ("images", "right_before", "right_after", "both")
            )
            if n == 0:  # a removal, and no masks
                continue
            row: dict[str, object] = {"perturbation": kind, "edited": self._edited(kind)}
            for name, hits in (("before", before), ("after", after)):
                row |= share_columns(f"accuracy_{name}", hits, n)
            rows.append(row | {"lost": round(before - both), "gained": round(after - both), "n_images": round(n)})
        return pd.DataFrame(rows)

    def summary(self) -> dict[str, Headline]:
        table = self.tables().get("perturbation")
        if table is None:  # no image has a label
            return {}
        last = table[(table["block"] == self.layout.blocks - 1) & table["tokens"].isin(["image", "object", "context"])]
        return {
            str(row["perturbation"]): Headline(
                float(row["rate_after"]),
                "%",
                int(row["n_images"]),
                f"identifiable {row['tokens']} tokens, last block; unperturbed {row['rate_before']:.2f} %",
            )
            for row in last.to_dict("records")
        }
