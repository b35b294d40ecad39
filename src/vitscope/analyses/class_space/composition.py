"""Whose class does the block output carry? The top class of `resid_post` against those of its three ingredients.

A token's top class after a block may be the one that the attention output says, the one that the MLP output says, the
one the residual already had before the block, several of these, or none (it is then a true composition). These shares
are exclusive and sum to 100 %. `variant="code"` gives the published figures instead: each match counted for itself, and
"composition" where neither attention nor the previous block matches (the published test looks at attention twice and
never at the MLP), which is why those bars reach far above 100 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.class_space.analysis import HOOKS, ClassSpaceAnalysis, with_rows
from vitscope.analyses.class_space.conventions import SOURCES, exclusive_shares
from vitscope.analyses.class_space.sharing import Readings
from vitscope.data.batch import Batch
from vitscope.models import Model
from vitscope.statistics.clusters import counted


def match_code(after: Tensor, attention: Tensor, mlp: Tensor, previous: Tensor) -> Tensor:
    """Top classes, each (..., n) -> (..., n) int64 in 0..7: bit 1 attention, bit 2 MLP, bit 4 previous block match."""
    return (attention == after).long() + 2 * (mlp == after).long() + 4 * (previous == after).long()


def published_shares(counts: Tensor) -> dict[str, float]:
    """What the published code computes from the same matches; the sum has no meaning."""
    c = counts.double() / counts.sum() * 100
    matches = {s: float(sum(c[i] for i in range(8) if i >> bit & 1)) for bit, s in enumerate(SOURCES)}
    return matches | {"composition": float(c[0] + c[2])}


@register_analysis("class_space.composition")
class Composition(ClassSpaceAnalysis):
    """Whose top class the block output carries: attention's, the MLP's, the previous block's, several, none."""

    keys: ClassVar = {
        "class_space_composition": ["block", "tokens", "source"],
        "class_space_matches": ["block", "tokens", "attention", "mlp", "previous"],
    }

    def start_sums(self, model: Model) -> None:
        self.sums["codes"] = zeros(self.layout.blocks, len(self.groups), 8)
        self.sums["images"] = zeros(self.layout.blocks, len(self.groups))
        self._tops: list[Tensor] = []  # of the embedding, then of the three points of each block

    def read(self, block: int, points: Mapping[str, Tensor], readings: Readings) -> None:
        if block == 0:
            self._tops = [readings.before(block, points).top]
        self._tops += [reading.top for reading in readings.get(block, points, *HOOKS)]

    def sum_up(self, readings: Readings, batch: Batch) -> None:
        after, attention, mlp = torch.stack(self._tops[1:]).unflatten(0, (-1, 3)).unbind(1)  # each (L, B, n)
        previous = torch.cat([self._tops[0][None], after[:-1]])
        code = match_code(after, attention, mlp, previous)  # (L, B, n)
        for g in range(len(self.groups)):
            inside = code[:, readings.members[:, g] > 0]  # (L, members)
            self.sums["codes"][:, g].add_(counted(inside, 8))
        self.sums["images"].add_((readings.members.sum(-1) > 0).double().sum(0))
        self._tops = []

    def tables(self) -> dict[str, pd.DataFrame]:
        shares_of = published_shares if self.variant == "code" else exclusive_shares
        shares, matches = [], []
        for block in range(self.layout.blocks):
            for g, group in enumerate(self.groups):
                counts = self.sums["codes"][block, g]
                if counts.sum() == 0:
                    continue
                key = {"block": block, "tokens": group}
                size = {"n_tokens": round(float(counts.sum())), "n_images": round(float(self.sums["images"][block, g]))}
                shares += [key | {"source": s, "share": v} | size for s, v in shares_of(counts).items()]
                for code, count in enumerate(counts.tolist()):
                    bits = {s: bool(code >> bit & 1) for bit, s in enumerate(SOURCES)}
                    matches.append(key | bits | {"share": 100 * count / size["n_tokens"]} | size)
        found = {"class_space_composition": shares, "class_space_matches": matches}
        return with_rows({name: pd.DataFrame(rows) for name, rows in found.items()})

    def summary(self) -> dict[str, Headline]:
        if self.variant == "code":
            return {}
        table = self.tables().get("class_space_composition")
        if table is None:  # no image has a label
            return {}
        last = table[(table["tokens"] == "image") & (table["block"] == self.layout.blocks - 1)]
        note = "last block, image tokens, exclusive shares"
        return {
            f"composition_{row['source']}": Headline(float(row["share"]), "%", int(row["n_images"]), note)
            for row in last.to_dict("records")
            if row["source"] in ("previous", "none")
        }
