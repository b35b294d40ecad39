"""Wilcoxon's signed ranks of hundreds of thousands of paired tokens, from counts of their differences alone.

Identifiability is a rank among K classes, so a token's difference between two models is one of 4K - 3 numbers (ranks
come in halves). Counts of these add up over images, and the statistic needs no more: with t_d pairs at distance |d|,
zeros left out, n = sum t_d, and the mean rank R_d of each distance,

    W = sum_d R_d * (number with d > 0),   mean n(n+1)/4,   variance n(n+1)(2n+1)/24 - sum_d (t_d^3 - t_d)/48

This is the published test of a trained against a random model. It takes tokens of one image for independent, so its p
is far too small; the intervals beside it are over images.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def difference_counts(first: Tensor, second: Tensor, classes: int) -> Tensor:
    """(4K - 3,) int64: how often the half ranks of two models differ by -(2K - 2) .. 2K - 2; ranks (...) of each.

    Positive: the true class stands higher in the first model, whose rank is then smaller.
    """
    half = (2 * (second - first)).round().long().flatten() + 2 * classes - 2
    return torch.bincount(half, minlength=4 * classes - 3)


def signed_rank_p(counts: Tensor) -> float:
    """One-sided p that differences are larger than 0, by the normal approximation; counts as above, zero in the middle.

    1 where there is no difference at all.
    """
    middle = len(counts) // 2
    above, below = counts[middle + 1 :].double(), counts[:middle].flip(0).double()  # by distance 1, 2, ...
    tied = above + below
    n = float(tied.sum())
    if n == 0:
        return 1.0
    mean_rank = tied.cumsum(0) - (tied - 1) / 2  # of those at each distance; those that do not occur count 0 times
    w = float((mean_rank * above).sum())
    variance = n * (n + 1) * (2 * n + 1) / 24 - float((tied**3 - tied).sum()) / 48
    return math.erfc((w - n * (n + 1) / 4) / math.sqrt(2 * variance)) / 2
