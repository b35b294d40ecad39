"""At which block does a patch carry its own class?

The class of a patch is that of most of its pixels (`truth.py`). What stands in the residual stream goes through the
model's own final norm and decoder, as if the encoder ended there (`model.to_class_space`): through the linear decoder
patch by patch, through the mask decoder all patches of the picture together. rank = how many classes have a larger
logit, r = 1 - rank / |C|, and a patch is *known* where the rank is 0.

What attention and MLP *add* is the change of log p of the patch's class: attention from `resid_pre` to `resid_mid`, the
MLP on to `resid_post`. Groups of patches: all, inside of objects, at borders, of frequent and of rare classes (those
with less than the share `rare` of all patches of the run). Tables:

* `patches_identifiability`: r, the share that is known, log p per block and group; `majority` is the share that would
  be known to one who always says the most frequent class;
* `patches_change`: what attention and MLP add to log p, and how often it rises;
* `patches_known`: from which block on the patch's class stays the first, up to the last block; 'never' too;
* `patches_classes`: the share that is known per class and block;
* `patches_maps`, `maps_patches`: images of the gallery, patch by patch.

Intervals are over images. Cost: 1 + 2 L readings (1 + L without branches). A linear one is T C |C| multiplications
per image; one by the mask decoder is its 2 blocks, so that 12 blocks of encoder cost about 4 forward passes. Memory:
15 L numbers per class and image or bundle (20,000 of both together, at least 100 bundles).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.class_space.ranks import identifiability, true_rank
from vitscope.analyses.patches.analysis import PatchAnalysis
from vitscope.analyses.patches.maps import map_rows, reading_rows
from vitscope.analyses.patches.truth import Truth, truth_of
from vitscope.data.batch import Batch
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.statistics.clusters import Kind, Mean, over_clusters

LEVELS: dict[str, Kind] = {"identifiability": "fraction", "rate": "share", "log_probability": "number"}
BRANCHES = ("attn_out", "mlp_out")
CHANGES: dict[str, Kind] = {"change": "number", "rose": "share"}
EMBEDDING, NEVER = "embedding", "never"
GROUPS = ("all", "inside", "border", "frequent", "rare")


@register_analysis("patches.identifiability")
class PatchIdentifiability(PatchAnalysis):
    """Rank and log-probability of each patch's own class after every block.

    branches: read also between attention and MLP, which tells what each of them adds; twice the cost. rare: classes
    with a smaller share of the patches are rare.
    """

    optional = tuple(f"{value}_{end}" for value in {**LEVELS, **CHANGES} for end in ("low", "high"))

    def __init__(self, branches: bool = True, rare: float = 0.05) -> None:
        super().__init__()
        if not 0 <= rare <= 1:
            raise VitscopeError(f"rare={rare}: expected a share of the patches from 0 to 1, such as 0.05.")
        self.branches, self.rare = branches, rare

    def needs(self, model: Model) -> list[str]:
        middle = ["blocks.*.hook_resid_mid"] if self.branches else []
        return ["blocks.0.hook_resid_pre", *middle, "blocks.*.hook_resid_post"]

    def start_sums(self, model: Model) -> None:
        blocks, cells = self.layout.blocks, (self.bundles, self.classes, 2)  # inside, at a border
        self.sums = {
            "images": zeros(1, dtype=torch.int64),
            "patches": zeros(*cells, dtype=torch.int64),
            "levels": zeros(blocks + 1, *cells, len(LEVELS)),  # the embedding first
            "changes": zeros(blocks, *cells, len(BRANCHES) * len(CHANGES)),
            "known": zeros(*cells, blocks + 2, dtype=torch.int64),  # the embedding, the blocks, never
        }
        self._log_p = self._since = torch.empty(0)  # (n,) of the batch under way, after its last block

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        truth = truth_of(batch, self.model)
        if not 0 <= block < self.layout.blocks or not truth.known.any():
            return
        at = f"blocks.{block}.hook_resid_"
        if block == 0:
            self._begin(points[f"{at}pre"], truth, batch)
        between = self._read(points[f"{at}mid"], truth)[2] if self.branches else self._log_p
        before = self._log_p
        self._note(block + 1, points[f"{at}post"], truth, batch)
        changes = torch.stack([between - before, self._log_p - between], 1)  # (n, branches)
        self._add(self.sums["changes"][block], torch.stack([changes, (changes > 0).double()], 2))

    def _begin(self, embedding: Tensor, truth: Truth, batch: Batch) -> None:
        row = self.rows_of(batch)[:, None].expand_as(truth.classes)
        where = (row * self.classes + truth.classes) * 2 + truth.border
        self._where, self._targets = where[truth.known], truth.classes[truth.known]  # (n,)
        self._since = torch.full_like(self._targets, self.layout.blocks + 1)
        self._add(self.sums["patches"], torch.ones_like(self._where))
        self.sums["images"] += int(truth.known.any(1).sum())
        self._note(0, embedding, truth, batch)

    def _note(self, level: int, x: Tensor, truth: Truth, batch: Batch) -> None:
        """What is known at the embedding (0), or after block `level` - 1."""
        logits, rank, self._log_p = self._read(x, truth)
        known = rank == 0
        values = [identifiability(rank, self.classes), known, self._log_p]
        self._add(self.sums["levels"][level], torch.stack(values, 1))
        self._since = torch.where(known, self._since.clamp(max=level), self.layout.blocks + 1)
        self._show(level - 1, logits, truth, batch)

    def _read(self, x: Tensor, truth: Truth) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (B, T, K), and rank and log-probability of the class of each known patch, (n,) float64 on the CPU."""
        logits = self.model.to_class_space(self.patches(x)).detach().cpu()
        own = logits[truth.known].double()  # (n, K)
        rank = true_rank(own, self._targets, where="some patch")
        return logits, rank, own.log_softmax(-1).gather(1, self._targets[:, None])[:, 0]

    def _add(self, sums: Tensor, values: Tensor) -> None:
        """Values of patches (n, ...) to the sums of their images, classes and places."""
        flat = sums.view(self.bundles * self.classes * 2, -1)  # the same memory
        flat.index_add_(0, self._where, values.reshape(len(values), -1).to(sums.dtype))

    def end_batch(self, batch: Batch) -> None:
        if truth_of(batch, self.model).known.any():
            self._add(self.sums["known"], torch.nn.functional.one_hot(self._since, self.layout.blocks + 2))

    def _show(self, block: int, logits: Tensor, truth: Truth, batch: Batch) -> None:
        shown = [i for i, number in enumerate(batch.indices.tolist()) if number in self.setting.gallery]
        if not shown or self.setting.control:
            return
        self.emit("patches_maps", reading_rows(block, logits, truth, batch, shown))
        if block >= 0:
            self.emit("maps_patches", map_rows(block, logits, truth, batch, shown))

    # from sums to tables

    def _rare(self) -> Tensor:
        """(K,) bool: classes with less than their share of the patches."""
        counts = self.sums["patches"].sum((0, 2))
        return counts < self.rare * counts.sum()

    def _group(self, sums: Tensor, group: str) -> Tensor:
        """Sums (bundles, K, 2, ...) -> those of a group of patches, (bundles, ...)"""
        if group in ("inside", "border"):
            sums = sums[:, :, ("inside", "border").index(group)].unsqueeze(2)
        elif group in ("frequent", "rare"):
            sums = sums[:, self._rare() == (group == "rare")]
        return sums.sum((1, 2))

    def _means(self, sums: Tensor, values: Mapping[str, Kind]) -> Iterator[tuple[str, Tensor, dict[str, Mean]]]:
        """Sums (bundles, K, 2, values) -> (group, its patches per image, {value: mean}) for each that there is."""
        for group in GROUPS:
            n, total = self._group(self.sums["patches"], group), self._group(sums, group)
            if int(n.sum()):
                found = {value: over_clusters(total[:, i], n, kind) for i, (value, kind) in enumerate(values.items())}
                yield group, n, {value: mean for value, mean in found.items() if mean is not None}

    def _size(self, n: Tensor) -> dict[str, int]:
        return {"n_patches": int(n.sum()), "n_images": int(self.sums["images"])}

    def _majority(self, group: str) -> float:
        """Per cent of a group's patches that have the most frequent class of all."""
        most = int(self.sums["patches"].sum((0, 2)).argmax())
        only = torch.zeros_like(self.sums["patches"])
        only[:, most] = self.sums["patches"][:, most]
        of_group = self._group(self.sums["patches"], group)
        return 100 * int(self._group(only, group).sum()) / int(of_group.sum())

    def tables(self) -> dict[str, pd.DataFrame]:
        level, change, known = [], [], []
        for at, sums in enumerate(self.sums["levels"]):
            key = {"block": max(at - 1, 0), "point": "resid_post" if at else "resid_pre"}
            for group, n, means in self._means(sums, LEVELS):
                majority = {"majority": self._majority(group)}
                level.append(key | {"tokens": group} | in_columns(means) | majority | self._size(n))
        for block, sums in enumerate(self.sums["changes"] if self.branches else ()):
            for b, branch in enumerate(BRANCHES):
                of_branch = sums[..., b * len(CHANGES) : (b + 1) * len(CHANGES)]
                for group, n, means in self._means(of_branch, CHANGES):
                    key = {"block": block, "point": branch, "tokens": group}
                    change.append(key | in_columns(means) | self._size(n))
        names = [EMBEDDING, *map(str, range(self.layout.blocks)), NEVER]
        for group, n, means in self._means(self.sums["known"], dict.fromkeys(names, "share")):
            so_far = 0.0
            for name in names:
                so_far += 100 * means[name].value
                row = {"tokens": group, "known_from": name, **in_columns({"rate": means[name]})}
                known.append(row | {"known": so_far if name != NEVER else 100.0} | self._size(n))
        found: dict[str, list[dict[str, Any]]] = {
            "patches_identifiability": level, "patches_change": change, "patches_known": known
        }  # fmt: skip
        found["patches_classes"] = list(self._classes())
        return {name: pd.DataFrame(rows) for name, rows in found.items() if rows}

    def _classes(self) -> Iterator[dict[str, Any]]:
        counts, rare = self.sums["patches"].sum(2), self._rare()  # (bundles, K), (K,)
        names = self.setting.classes if len(self.setting.classes) == self.classes else self.model.classes
        for number, n in enumerate(counts.unbind(1)):
            if not int(n.sum()):
                continue
            share = 100 * int(n.sum()) / int(counts.sum())
            of_class = {"class": number, "class_name": names[number] if names else str(number), "share": share}
            of_class["frequency"] = "rare" if rare[number] else "frequent"
            for at, sums in enumerate(self.sums["levels"]):
                total = sums[:, number].sum(1)  # (bundles, values)
                found = {v: over_clusters(total[:, i], n, kind) for i, (v, kind) in enumerate(LEVELS.items())}
                key = {"block": max(at - 1, 0), "point": "resid_post" if at else "resid_pre"}
                yield key | of_class | in_columns({v: m for v, m in found.items() if m is not None}) | self._size(n)

    def summary(self) -> dict[str, Headline]:
        found = {}
        for group, n, means in self._means(self.sums["levels"][-1], LEVELS):
            if group in ("all", "inside", "border"):
                note = f"patches ({group}) whose own class is the first after the last block; n: images"
                found[f"patches_known_{group}"] = Headline(
                    100 * means["rate"].value, "%", self._size(n)["n_images"], note
                )
        return found


def in_columns(means: Mapping[str, Mean]) -> dict[str, float]:
    """Value and both ends of each; shares of zeros and ones in per cent."""
    row: dict[str, float] = {}
    for name, mean in means.items():
        row |= mean.columns(name, 100 if name in ("rate", "rose", "right_clean", "right_changed") else 1)
    return row
