"""How long are query features and head outputs? Distributions of ||phi(q)||^2 and ||h||^2 per block.

If h is a projection of phi(q), the second distribution lies below the first. Both span decades, so quantiles come from
histograms with fixed, log-spaced bins: exact to merge, and right to 2.3 % (half of a bin; interpolated inside it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitscope.analyses.accumulators import LogBins, histogram_quantile, log_histogram
from vitscope.analyses.base import Figure, register_analysis, zeros
from vitscope.analyses.kpca.analysis import KpcaAnalysis
from vitscope.analyses.kpca.reconstruction import MAX_LOG, shared_norms
from vitscope.errors import VitscopeError

if TYPE_CHECKING:
    import pandas as pd

    from vitscope.data.batch import Batch
    from vitscope.models import Model

NORMS = ("phi", "h")
BINS = LogBins(low=1e-120, high=1e20, per_decade=50)
QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
COARSE = 10  # inner bins that the table of the distribution puts together: five per decade
OUTLIERS = ("none", "above95", "iqr")


def cut_outliers(counts: Tensor, bins: LogBins, rule: str) -> Tensor:
    """A histogram (..., size) without its outliers.

    above95: everything above the 95th percentile goes, as published. iqr: everything further than 1.5 times the
    interquartile range (of the log values) outside the quartiles. Whole bins go or stay.
    """
    if rule == "none":
        return counts
    if rule not in OUTLIERS:
        raise VitscopeError(f"outliers={rule!r} is not known: expected one of {', '.join(OUTLIERS)}.")
    edges = bins.edges().log()
    middle = torch.cat([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])  # (size,) of every bin
    if rule == "above95":
        low, high = torch.full_like(counts[..., 0], -torch.inf, dtype=torch.float64), _log(counts, bins, 0.95)
    else:
        q1, q3 = _log(counts, bins, 0.25), _log(counts, bins, 0.75)
        low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    width = (edges[1] - edges[0]) / 2 + 1e-9  # the bin that holds the limit stays
    keep = (middle >= low[..., None] - width) & (middle <= high[..., None] + width)
    return counts * keep


def _log(counts: Tensor, bins: LogBins, q: float) -> Tensor:
    return histogram_quantile(counts, bins, q).log()


@register_analysis("kpca.norms")
class Norms(KpcaAnalysis):
    """Distributions of both squared norms per block, over all heads, tokens and images.

    outliers: 'none', 'above95' (as published: above the 95th percentile removed) or 'iqr'. Tables: `kpca_norms`, and
    `kpca_norms_distribution` for the picture. Mean, quantiles and shares are those of what an outlier rule keeps, block
    by block; `kept` is its share of the `tokens` that were seen.
    """

    variants = ("exact", "paper", "code")

    def __init__(
        self,
        variant: str = "exact",
        standardised: bool = False,
        outliers: str = "none",
        control: str | None = None,
        every: int = 1,
    ) -> None:
        super().__init__(variant, standardised, control, every)
        cut_outliers(BINS.zeros() + 1, BINS, outliers)  # refuse an unknown rule now
        self.outliers = outliers

    def start_sums(self, model: Model) -> None:
        self.sums["counts"] = BINS.zeros(self.layout.blocks, len(NORMS))
        self.sums["total"] = zeros(self.layout.blocks, len(NORMS))
        if self.outliers != "none":  # what goes is known at the end, in whole bins: so is what remains of the total
            self.sums["total_by_bin"] = zeros(self.layout.blocks, len(NORMS), BINS.size)

    def read(self, block: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> None:
        found = shared_norms(self.shared, q, k, v, self.variant, self.standardised)  # type: ignore[arg-type]
        both = torch.stack([found["log_phi"].clamp_max(MAX_LOG).exp(), found["h"]]).flatten(1)  # (2, B H N)
        self.sums["counts"][block] += log_histogram(both, BINS)
        self.sums["total"][block] += both.sum(-1).cpu()
        if self.outliers != "none":
            values = both.detach().to("cpu", torch.float64)
            self.sums["total_by_bin"][block].scatter_add_(-1, torch.bucketize(values, BINS.edges(), right=True), values)

    def kept_mean(self, counts: Tensor) -> Tensor:
        """Means (blocks, 2) of the values that a cut histogram still counts, exactly."""
        if self.outliers == "none":
            return self.sums["total"] / counts.sum(-1)
        return (self.sums["total_by_bin"] * (counts > 0)).sum(-1) / counts.sum(-1)

    def own_tables(self) -> dict[str, pd.DataFrame]:
        import pandas as pd

        if not self.images:
            return {}
        all_counts = self.sums["counts"]
        counts = cut_outliers(all_counts, BINS, self.outliers)  # (blocks, 2, size)
        tokens = all_counts.sum(-1).double()
        block, norm = (i.flatten() for i in torch.meshgrid(*map(torch.arange, tokens.shape), indexing="ij"))
        table = pd.DataFrame(
            {"block": block.numpy(), "norm": [NORMS[i] for i in norm.tolist()]}
            | {"mean": self.kept_mean(counts).flatten().numpy()}
            | {name: histogram_quantile(counts, BINS, p).flatten().numpy() for name, p in QUANTILES.items()}
            | {"kept": (counts.sum(-1) / tokens).flatten().numpy(), "outliers": self.outliers}
            | {"tokens": all_counts.sum(-1).flatten().numpy(), "n": self.images}
        )
        return {"kpca_norms": table, "kpca_norms_distribution": self._distribution(counts)}

    def _distribution(self, counts: Tensor) -> pd.DataFrame:
        """Shares in bins of a fifth of a decade, empty ones left out."""
        import pandas as pd

        edges = BINS.edges()[::COARSE]
        inner = counts[..., 1:-1].reshape(*counts.shape[:-1], -1, COARSE).sum(-1)
        inner[..., 0] += counts[..., 0]  # what is smaller or larger than all bins goes to the outermost
        inner[..., -1] += counts[..., -1]
        block, norm, place = inner.nonzero(as_tuple=True)
        share = inner / inner.sum(-1, keepdim=True).clamp_min(1)
        return pd.DataFrame(
            {"block": block.numpy(), "norm": [NORMS[i] for i in norm.tolist()]}
            | {"low": edges[place].numpy(), "high": edges[place + 1].numpy()}
            | {"share": share[block, norm, place].numpy(), "n": self.images}
        )

    def summary(self) -> dict[str, Figure]:
        if not self.images:
            return {}
        kept = cut_outliers(self.sums["counts"], BINS, self.outliers).sum(0)  # (2, size)
        phi, h = histogram_quantile(kept, BINS, 0.5).tolist()
        rule = "" if self.outliers == "none" else f", outliers removed ({self.outliers})"
        note = f"median over tokens, heads, blocks and images{rule}"
        return {"median_phi": self.figure(phi, "", f"‖φ(q)‖², {note}"), "median_h": self.figure(h, "", f"‖h‖², {note}")}
