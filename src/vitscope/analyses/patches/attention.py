"""Does attention stay within the class?

Of what a patch i gives to the other patches of its picture that have a class, the share that goes to those of its own:

    within_i = sum_{j != i, c_j = c_i} a_ij / sum_{j != i} a_ij,    chance_i = (n_c - 1) / (n - 1)

with n labelled patches, n_c of them of its class. The patch itself, which is always of its class, is left out of both,
and so are class and register tokens and patches without a class. Chance is what a head reaches that looks at all others
alike; excess = within - chance. Heads look at what is near, and near patches are often of one class: an excess alone is
no sign that a head knows classes. With RPC the pattern is that of its last iteration, the one that makes the output.

Tables: `patches_attention` per block and head, `patches_attention_blocks` over all heads of a block, each for all
patches, those inside of objects and those at borders. Intervals are over images. Cost: one attention pattern per block,
computed again and freed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.patches.analysis import BUNDLES, PatchAnalysis
from vitscope.analyses.patches.truth import truth_of
from vitscope.data.batch import Batch
from vitscope.models import Model
from vitscope.statistics.clusters import over_clusters

PLACES = ("inside", "border")
GROUPS = {"all": slice(0, 2), "inside": slice(0, 1), "border": slice(1, 2)}


def attention_within(pattern: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Patterns of patches (B, H, T, T) and their classes (B, T), -1 where unknown -> within (B, H, T), chance (B, T).

    NaN where a patch has no class, nobody beside it, or gives nothing to other patches.
    """
    known = classes >= 0
    others = (known[:, :, None] & known[:, None]) & ~torch.eye(classes.shape[1], dtype=torch.bool)  # (B, T, T)
    same = others & (classes[:, :, None] == classes[:, None])
    pattern = pattern.double()
    given = torch.einsum("bhij,bij->bhi", pattern, others.double())
    within = torch.einsum("bhij,bij->bhi", pattern, same.double()) / given  # 0 / 0 is NaN
    return within, same.sum(-1) / others.sum(-1).double()


@register_analysis("patches.attention")
class PatchAttention(PatchAnalysis):
    """The share of attention that stays within the class, per block and head, against chance."""

    optional = tuple(f"{value}_{end}" for value in ("within", "excess") for end in ("low", "high"))

    def needs(self, model: Model) -> list[str]:
        return ["blocks.*.attn.hook_pattern"]

    def start_sums(self, model: Model) -> None:
        self.bundles = BUNDLES
        cells = self.layout.blocks, BUNDLES, self.layout.heads, len(PLACES)
        self.sums = {"within": zeros(*cells), "chance": zeros(*cells), "patches": zeros(*cells, dtype=torch.int64)}
        self.sums["images"] = zeros(1, dtype=torch.int64)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        (pattern,) = points.values()
        truth, first = truth_of(batch, self.model), self.layout.prefix_tokens
        within, chance = attention_within(pattern.detach()[:, :, first:, first:].cpu(), truth.classes)  # (B, H, T)
        counted = within.isfinite()
        chance = chance[:, None].expand_as(within)
        rows = self.rows_of(batch)
        for place, inside in enumerate((~truth.border, truth.border)):
            chosen = counted & inside[:, None]
            for key, values in (("within", within), ("chance", chance), ("patches", torch.ones_like(within))):
                sums = self.sums[key][block, :, :, place]  # (bundles, H), the same memory
                sums.index_add_(0, rows, torch.where(chosen, values, 0).sum(-1).to(sums.dtype))
        if block == 0:
            self.sums["images"] += int(counted.flatten(1).any(1).sum())

    def tables(self) -> dict[str, pd.DataFrame]:
        heads = [
            {"block": block, "head": head} | row
            for block in range(self.layout.blocks)
            for head in range(self.layout.heads)
            for row in self._rows(block, slice(head, head + 1))
        ]
        blocks = [
            {"block": block} | row for block in range(self.layout.blocks) for row in self._rows(block, slice(None))
        ]
        found = {"patches_attention": heads, "patches_attention_blocks": blocks}
        return {name: pd.DataFrame(rows) for name, rows in found.items() if rows}

    def _rows(self, block: int, heads: slice) -> Iterator[dict[str, Any]]:
        """A row per group of patches, of some heads together; all in per cent."""
        for group, places in GROUPS.items():
            within, chance, n = (
                self.sums[key][block][:, heads, places].sum((1, 2)) for key in ("within", "chance", "patches")
            )  # (bundles,)
            share, above = over_clusters(within, n, "fraction"), over_clusters(within - chance, n, "change")
            if share is None or above is None:
                continue
            row: dict[str, Any] = {"tokens": group}
            for name, mean in (("within", share), ("excess", above)):
                row |= mean.columns(name, 100)
            count = int(self.sums["patches"][block, :, 0, places].sum())
            row |= {"chance": 100 * float(chance.sum() / n.sum()), "n_patches": count}
            yield row | {"n_images": int(self.sums["images"])}

    def summary(self) -> dict[str, Headline]:
        table = self.tables().get("patches_attention")
        if table is None:
            return {}
        best = table[table["tokens"] == "all"].sort_values("excess").to_dict("records")[-1]
        note = f"block {best['block']}, head {best['head']}: attention within the class, above chance"
        return {"attention_within": Headline(float(best["excess"]), "points", int(best["n_images"]), note)}
