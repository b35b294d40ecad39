"""Do two measures put things into the same order?"""

from __future__ import annotations

import torch
from torch import Tensor


def average_ranks(values: Tensor) -> Tensor:
    """(n,) -> ranks from 1 in float64; equal values share the mean of their ranks."""
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()  # rank of the last one of each value
    return (last - (counts.double() - 1) / 2)[place]


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's rho of two (n,): Pearson's correlation of the ranks; 0 where one of them does not vary."""
    a, b = (average_ranks(values) for values in (first, second))
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return float(torch.dot(a, b)) / size if size else 0.0
