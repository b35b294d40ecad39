"""Statistics that add up: what an analysis keeps instead of activations.

Everything here is a sum over images, so two halves of a run merge by addition and nothing is lost: counts, sums of
powers, and histograms whose bins are fixed before the first image. (Quantile sketches are smaller, but two merged
sketches are not the sketch of the whole.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vitscope.errors import NumericalError, VitscopeError


@dataclass(frozen=True)
class LogBins:
    """Histogram bins of equal width in log space, for non-negative values that span decades.

    A histogram has `size` = `inner` + 2 entries: first everything below `low` (zero included), then the inner bins
    `[edge_i, edge_{i+1})`, last everything from `high` on. A quantile read from it is off by at most the factor
    `10 ** (1 / per_decade)`: 4.7 % for the default.
    """

    low: float = 1e-6  # smaller values share one bin
    high: float = 1e6  # so do larger ones
    per_decade: int = 50  # resolution

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise VitscopeError(f"Log-spaced bins need 0 < low < high, got low={self.low}, high={self.high}.")
        if self.per_decade < 1:
            raise VitscopeError(f"Log-spaced bins need at least one bin per decade, got {self.per_decade}.")

    @property
    def inner(self) -> int:
        return max(1, round(math.log10(self.high / self.low) * self.per_decade))

    @property
    def size(self) -> int:
        return self.inner + 2

    def edges(self) -> Tensor:
        """The `inner + 1` edges, float64; the first is `low` and the last is `high` exactly."""
        edges = torch.logspace(math.log10(self.low), math.log10(self.high), self.inner + 1, dtype=torch.float64)
        edges[0], edges[-1] = self.low, self.high
        return edges

    def zeros(self, *leading: int) -> Tensor:
        """An empty histogram for each leading index, int64."""
        return torch.zeros(*leading, self.size, dtype=torch.int64)


def log_histogram(values: Tensor, bins: LogBins) -> Tensor:
    """Counts along the last dimension: (..., n) -> (..., bins.size) int64. NaN and negative values are errors."""
    values = values.detach().to("cpu", torch.float64)
    if values.isnan().any() or (values < 0).any():
        raise NumericalError("A log-spaced histogram takes numbers >= 0, but got NaN or a negative value.")
    where = torch.bucketize(values, bins.edges(), right=True)  # (..., n): 0 below low, size-1 from high on
    return torch.zeros(*values.shape[:-1], bins.size, dtype=torch.int64).scatter_add_(-1, where, torch.ones_like(where))


def histogram_quantile(counts: Tensor, bins: LogBins, q: float) -> Tensor:
    """The q-quantile of each histogram: (..., bins.size) -> (...), by linear interpolation of log value inside the bin.

    Quantiles that fall outside the inner bins are clamped to `low` and `high`. An empty histogram has none: an error.
    """
    if not 0 <= q <= 1:
        raise VitscopeError(f"A quantile is asked for by a number from 0 to 1, got {q}.")
    counts = counts.to(torch.float64)
    total = counts.sum(-1, keepdim=True)
    if (total <= 0).any():
        raise NumericalError("An empty histogram has no quantile.")
    cumulative = counts.cumsum(-1)
    target = q * total
    # The first bin that reaches the target and is not empty (for q = 0: the first that holds anything).
    reached = (cumulative >= target) & (cumulative > 0)
    index = reached.to(torch.int8).argmax(-1, keepdim=True)  # (..., 1): argmax takes the first maximum
    inside = counts.gather(-1, index)
    before = cumulative.gather(-1, index) - inside
    share = ((target - before) / inside).clamp(0, 1)
    log_edges = bins.edges().log()
    lower = (index - 1).clamp(0, bins.inner)
    upper = index.clamp(0, bins.inner)
    value = torch.exp(log_edges[lower] + share * (log_edges[upper] - log_edges[lower]))
    return value.clamp(bins.low, bins.high).squeeze(-1)


def mean_std(n: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation (divisor n) from count, sum and sum of squares, in float64.

    Entries without observations come back as NaN: leave their rows out of the table.
    """
    n = n.to(torch.float64)
    mean = total / n
    return mean, (squares / n - mean.square()).clamp_min(0).sqrt()
