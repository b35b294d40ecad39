"""How long are query features and head outputs? Distributions of ||phi(q)||^2, ||h||^2 and their quotient per block.

If h is a projection of phi(q), the second distribution lies below the first, and no token has ||h||^2 / ||phi(q)||^2
above 1. All span decades, so order statistics (minimum, quartiles, maximum, ...) come from counts and sums in fixed,
log-spaced bins (`order.py`): exact to merge; a number that is alone in its bin is exact, any other right to 0.47 %
between 1e-12 and 1e12, to 4.8 % out to 1e-120 and 1e120. Means are exact, or within the same bounds where an outlier
rule cuts a bin in two. Of each image by itself (`kpca_norms_images`) everything is exact.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis
from vitscope.analyses.kpca import order
from vitscope.analyses.kpca.analysis import KpcaAnalysis
from vitscope.analyses.kpca.reconstruction import MAX_LOG, shared_norms
from vitscope.data.batch import Batch
from vitscope.models import Model

NORMS = ("phi", "h")
KINDS = (*NORMS, "ratio")  # the last is ||h||^2 / ||phi(q)||^2 token by token
QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95, "min": 0.0, "max": 1.0}
PER_DECADE = 5  # bins of the table of the distribution


def three(log_phi: Tensor, h: Tensor) -> dict[str, Tensor]:
    """||phi||^2, ||h||^2 and their quotient of every token (...), which saturate at 1e150."""
    log_ratio = h.clamp_min(torch.finfo(h.dtype).tiny).log() - log_phi
    return {"phi": log_phi.clamp_max(MAX_LOG).exp(), "h": h, "ratio": log_ratio.clamp_max(MAX_LOG).exp()}


@register_analysis("kpca.norms")
class Norms(KpcaAnalysis):
    """Distributions of both squared norms per block, over all heads, tokens and images.

    outliers: 'none', 'above95' (as published: above the 95th percentile removed) or 'iqr'. Tables: `kpca_norms`,
    `kpca_norms_ratio` (of ||h||^2 / ||phi(q)||^2 token by token, and the quotients of the means and medians), and
    `kpca_norms_distribution` for the picture. Mean, quantiles and shares are those of what an outlier rule keeps, block
    by block; `kept` is its share of the `tokens` that were seen. `kpca_norms_images` has mean, minimum, quartiles and
    maximum of each image and block by itself, exactly, `kpca_norms_image_heads` (with `per_head`) those of each head;
    the rule is applied within each.
    """

    uses_queries = True
    variants = ("exact", "paper", "code")

    def __init__(self, *, outliers: str = "none", **common: Any) -> None:
        super().__init__(**common)
        order.check_rule(outliers)
        self.outliers = outliers

    def start_sums(self, model: Model) -> None:
        self.sums["counts"], self.sums["totals"] = order.empty(self.layout.blocks, len(KINDS))

    def read(self, block: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> None:
        found = three(**shared_norms(self.shared, q, k, v, self.variant, self.standardised))  # type: ignore[arg-type]
        numbers = torch.stack([found[kind] for kind in KINDS]).flatten(1)  # (3, B H N)
        order.add_numbers(self.sums["counts"][block], self.sums["totals"][block], numbers)
        self.emit_images(
            "kpca_norms_images", batch, {"block": block} | self._exact({k: x.flatten(1) for k, x in found.items()})
        )
        if self.per_head:
            self.emit_heads("kpca_norms_image_heads", batch, block, self._exact(found))

    def _exact(self, numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        """phi_mean, phi_min, ... of numbers by kind (..., n)."""
        return {
            f"{kind}_{name}": value
            for kind, x in numbers.items()
            for name, value in order.describe(x, self.outliers).items()
        }

    def kept(self) -> tuple[Tensor, Tensor]:
        """Counts and totals (blocks, 3, bins) of what the outlier rule keeps."""
        return order.cut_outliers(self.sums["counts"], self.sums["totals"], self.outliers)

    def tables(self) -> dict[str, pd.DataFrame]:
        if not self.images:
            return {}
        looked = self.seen.nonzero().flatten()  # the blocks that saw anything
        counts, totals = (x[looked] for x in self.kept())
        seen, left = self.sums["counts"][looked].sum(-1), counts.sum(-1)  # (blocks, 3)
        cells = {"mean": totals.sum(-1) / left}
        cells |= {name: order.quantile(counts, totals, p) for name, p in QUANTILES.items()}
        last = {"kept": left.double() / seen, "outliers": self.outliers, "tokens": seen}
        last["n"] = self.seen[looked][:, None].expand(-1, 3)

        def table(where: slice | int, first: dict[str, object], more: dict[str, Tensor]) -> pd.DataFrame:
            columns = {
                name: x[:, where].flatten().numpy() if isinstance(x, Tensor) else x
                for name, x in (cells | more | last).items()
            }
            return pd.DataFrame(first | columns)

        blocks = looked.tolist()
        quotients = {
            f"of_{name}s": (cells[name][:, 1:2] / cells[name][:, :1]).expand(-1, 3) for name in ("mean", "median")
        }
        places: dict[str, object] = {"block": [b for b in blocks for _ in NORMS], "norm": [*NORMS] * len(blocks)}
        tables = {
            "kpca_norms": table(slice(2), places, {}),
            "kpca_norms_ratio": table(2, {"block": [*blocks]}, quotients),
            "kpca_norms_distribution": self._distribution(counts[:, :2], looked),
        }
        return self.labelled(tables)

    def _distribution(self, counts: Tensor, blocks: Tensor) -> pd.DataFrame:
        """Shares in bins of a fifth of a decade, empty ones left out."""
        limits, inner = order.decades(counts, PER_DECADE)
        block, norm, place = inner.nonzero(as_tuple=True)
        share = inner / inner.sum(-1, keepdim=True).clamp_min(1)
        return pd.DataFrame(
            {"block": blocks[block].numpy(), "norm": [NORMS[i] for i in norm.tolist()]}
            | {"low": limits[place].numpy(), "high": limits[place + 1].numpy()}
            | {"share": share[block, norm, place].numpy(), "n": self.seen[blocks[block]].numpy()}
        )

    def summary(self) -> dict[str, Headline]:
        if not self.images:
            return {}
        counts, totals = self.kept()
        phi, h, _ = order.quantile(counts.sum(0), totals.sum(0), 0.5).tolist()
        rule = "" if self.outliers == "none" else f", outliers removed ({self.outliers})"
        note = f"median over tokens, heads, blocks and images{rule}"
        return {"median_phi": self.figure(phi, "", f"‖φ(q)‖², {note}"), "median_h": self.figure(h, "", f"‖h‖², {note}")}
