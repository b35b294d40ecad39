"""In which block does a patch lose its own class? Clean and changed pictures go through the model together.

After every block the model's own final norm and decoder read each patch, as if the encoder ended there
(`analyses/patches`). Of the patches that carry their own class after the last block of the clean version, per block:

    right_clean, right_changed   the share that carry it if read here, in either version
    moved                        |x' - x| / |x| of the residual stream, mean over patches

and of those that no longer carry it after the last block of the changed version:

    lost    the block from which on another class stays the first in the changed version
    won     the block from which on their own class stays the first in the clean one

Where a corruption moves things, only patches that show the same class before and after count. Intervals are over
images. Cost: two more passes of each changed picture, and 2 L readings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.patches.analysis import PatchAnalysis, bundles_for, check_reads
from vitscope.analyses.patches.identifiability import in_columns
from vitscope.analyses.patches.truth import truth_for
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import UnsuitableDataError
from vitscope.models import Model
from vitscope.robustness.attack_lens import settled_block
from vitscope.robustness.segmentation.conditions import Corrupted
from vitscope.statistics.clusters import Kind, over_clusters

TABLE = "segmentation_lens"
VALUES: dict[str, Kind] = {"right_clean": "share", "right_changed": "share", "moved": "number"}
GROUPS = ("all", "inside", "border")
POINT = "blocks.{}.hook_resid_post"
OPTIONAL = tuple(f"{value}_{end}" for value in VALUES for end in ("low", "high"))


class PatchLens:
    """Compares versions of pictures and adds to sums that belong to somebody else."""

    def __init__(self, model: Model) -> None:
        check_reads(model)
        self.model, self.blocks, self.bundles = model, model.layout.blocks, bundles_for(model.num_classes)

    def new_sums(self, versions: int) -> dict[str, Tensor]:
        """`versions` ways in which pictures are changed; the second last numbers are inside, at a border."""
        cells = (versions, self.bundles, 2)
        return {
            "lens.images": zeros(versions, dtype=torch.int64),
            "lens.patches": zeros(*cells, dtype=torch.int64),  # that carry their class at the end, clean
            "lens.values": zeros(*cells, self.blocks, len(VALUES)),
            "lens.lost": zeros(versions, 2, self.blocks, dtype=torch.int64),
            "lens.won": zeros(versions, 2, self.blocks, dtype=torch.int64),
        }

    def compare(
        self,
        sums: Mapping[str, Tensor],
        version: int,
        clean: Tensor,
        changed: Tensor,
        maps: Sequence[Tensor],
        at: Tensor,
    ) -> None:
        """Normalised pictures, twice (B, C, H, W), the label maps of both (B, H, W), numbers of the images (B,)."""
        n, (before, after) = len(clean), (truth_for(labels, clean, self.model) for labels in maps)
        own, carries, moved = before.classes, [], []

        def on_block(block: int, points: Mapping[str, Tensor]) -> None:
            if not 0 <= block < self.blocks:
                return
            x = points[POINT.format(block)][:, self.model.layout.prefix_tokens :]  # (2B, T, C)
            first = self.model.to_class_space(x).argmax(-1).cpu()  # (2B, T)
            carries.append(torch.stack([first[:n] == own, first[n:] == own]))
            moved.append(((x[n:] - x[:n]).norm(dim=-1) / x[:n].norm(dim=-1)).double().cpu())

        with torch.no_grad():
            self.model.stream(self.model.place(torch.cat([clean, changed])), [POINT.format("*")], on_block)
        right = torch.stack(carries, -1)  # (2, B, T, L)
        counts = (own >= 0) & (own == after.classes) & right[0, ..., -1]  # (B, T)
        values = torch.stack([*right.double(), torch.stack(moved, -1)], -1)[counts]  # (n, L, values)
        row, border = (at % self.bundles)[:, None].expand_as(own)[counts], before.border[counts].long()
        sums["lens.images"][version] += int(counts.any(1).sum())
        sums["lens.patches"][version].index_put_((row, border), torch.ones_like(row), accumulate=True)
        sums["lens.values"][version].index_put_((row, border), values, accumulate=True)
        gone = ~right[1][counts][:, -1]
        for name, held in (("won", right[0][counts]), ("lost", ~right[1][counts])):
            where = settled_block(held[gone])  # always one of the blocks: the last one is what they were chosen by
            sums[f"lens.{name}"][version].index_put_((border[gone], where), torch.ones_like(where), accumulate=True)

    def table(self, sums: Mapping[str, Tensor], versions: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
        """A row per version, group of patches and block; `versions` are the first columns of each."""
        rows = []
        for version, key in enumerate(versions):
            for group, chosen in zip(GROUPS, ([0, 1], [0], [1])):
                n = sums["lens.patches"][version][:, chosen].sum(1)
                if not int(n.sum()):
                    continue
                total = sums["lens.values"][version][:, chosen].sum(1)  # (bundles, L, values)
                lost, won = (sums[f"lens.{name}"][version][chosen].sum(0) for name in ("lost", "won"))
                size = {"n_patches": int(n.sum()), "n_lost": int(lost.sum())}
                for block in range(self.blocks):
                    means = {
                        v: over_clusters(total[:, block, i], n, kind) for i, (v, kind) in enumerate(VALUES.items())
                    }
                    row = {"block": block, "tokens": group, **in_columns({v: m for v, m in means.items() if m})}
                    row |= {"won": int(won[block]), "lost": int(lost[block]), **size}
                    rows.append({**key, **row, "n_images": int(sums["lens.images"][version])})
        return pd.DataFrame(rows)


@register_analysis("segmentation.lens")
class SegmentationLens(PatchAnalysis):
    """Patches of clean and corrupted pictures, block by block: `vitscope.evaluate(..., corrupt=..., lens=True)`."""

    default = False
    optional = OPTIONAL

    def start_sums(self, model: Model) -> None:
        self.lens = PatchLens(model)
        self.conditions: list[tuple[str, int]] = []

    def check_data(self, data: Data) -> None:
        super().check_data(data)
        if len(getattr(data, "conditions", ())) < 2:
            raise UnsuitableDataError(f"{data.name} is not corrupted: `evaluate --corrupt all --lens` does that.")

    def prepare(self, data: Any, model: Model) -> None:
        self.data, self.clean = data, Corrupted(data, model.preprocess.whole())
        self.conditions = data.conditions[1:]
        self.sums = self.lens.new_sums(len(self.conditions))

    def end_batch(self, batch: Batch) -> None:
        places = [self.data.place(number) for number in batch.indices.tolist()]
        for condition in sorted({c for c, _ in places if c > 0}):
            chosen = [i for i, (c, _) in enumerate(places) if c == condition]
            numbers = [places[i][1] for i in chosen]
            pairs = [self.clean(self.data.read(number)) for number in numbers]  # of condition 0
            clean, labels = (torch.stack(part) for part in zip(*pairs))
            maps, at = (labels, batch.targets[chosen]), torch.tensor(numbers)
            self.lens.compare(self.sums, condition - 1, clean, batch.images[chosen].cpu(), maps, at)

    def tables(self) -> dict[str, pd.DataFrame]:
        told = [{"corruption": name, "severity": severity} for name, severity in self.conditions]
        table = self.lens.table(self.sums, told)
        return {TABLE: table} if len(table) else {}

    def summary(self) -> dict[str, Headline]:
        right, lost = int(self.sums["lens.patches"].sum()), int(self.sums["lens.lost"].sum())
        if not right:
            return {}
        note = f"of patches that carry their class in clean pictures, under {len(self.conditions)} conditions"
        return {"patches_lost": Headline(100 * lost / right, "%", int(self.sums["lens.images"].max()), note)}
