"""Do two measures put things into the same order?"""

from __future__ import annotations

import torch
from torch import Tensor

from vitscope.statistics.bootstrap import percentiles

DRAWS = 1000


def average_ranks(values: Tensor) -> Tensor:
    """(..., n) -> ranks from 1 in float64; equal values share the mean of their ranks."""
    ordered = values.contiguous().sort(-1).values
    first, last = (torch.searchsorted(ordered, values.contiguous(), right=right) for right in (False, True))
    return (first + last + 1).double() / 2


def rank_correlations(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's rho of two (..., n): Pearson's correlation of the ranks; 0 where one of them does not vary."""
    a, b = (average_ranks(values) for values in (first, second))
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    size = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(size > 0, (a * b).sum(-1) / size.clamp(min=1e-300), 0.0)


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Of two (n,)."""
    return float(rank_correlations(first, second))


def ranks_of_sums(first: Tensor, second: Tensor, weight: Tensor, seed: int = 0) -> tuple[float, float, float]:
    """Spearman's rho of two rankings of E things, each by sum over images / sum of weights, with its 95 % interval.

    All three (D, E), a row per image. The interval is that of images drawn again with replacement.
    """
    images = len(first)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, images, (DRAWS, images), generator=generator)
    counts = torch.zeros(DRAWS, images, dtype=torch.float64).scatter_add_(1, drawn, torch.ones(DRAWS, images).double())
    counts = torch.cat([torch.ones(1, images, dtype=torch.float64), counts])  # the images themselves come first
    total = counts @ weight.double()  # (1 + DRAWS, E)
    a, b = (counts @ values.double() / total for values in (first, second))
    found = torch.where((total > 0).all(1), rank_correlations(a, b), torch.nan)
    if images < 2:
        return float(found[0]), float("nan"), float("nan")
    return float(found[0]), *percentiles(found[1:].numpy())
