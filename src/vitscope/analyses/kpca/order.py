"""Order statistics of numbers that span decades, from counts and sums in fixed bins.

Both add up, so that two halves of a run merge to the whole, exactly. A bin stands for its numbers by their mean: a
number that is alone in its bin comes back as it was, any other is off by at most the bin's width (`BOUND`). Quantiles
are those of numpy, linear between two neighbours in rank, hence within the same bound.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from vitscope.analyses.kpca.pairs import sort_values
from vitscope.errors import VitscopeError

REACH, CORE = 120, 12  # decades on both sides of 1 that have bins, and of these the ones with fine bins
COARSE, FINE = 50, 500  # bins per decade
BOUND = 10 ** (1 / FINE) - 1  # below 0.47 %: relative error between 1e-12 and 1e12; with COARSE below 4.8 %
FIVE = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}
OUTLIERS = ("none", "above95", "iqr")


@cache
def edges() -> Tensor:
    """Of the bins `[edge_i, edge_i+1)`. The first bin has everything below them, the last everything from them on."""
    places = [
        torch.arange(-REACH * COARSE, -CORE * COARSE) / COARSE,
        torch.arange(-CORE * FINE, CORE * FINE) / FINE,
        torch.arange(CORE * COARSE, REACH * COARSE + 1) / COARSE,
    ]
    return 10 ** torch.cat([place.double() for place in places])


def empty(*leading: int) -> tuple[Tensor, Tensor]:
    """Counts (..., bins), int64, and sums, float64, of nothing."""
    shape = (*leading, len(edges()) + 1)
    return torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.float64)


def add_numbers(counts: Tensor, sums: Tensor, numbers: Tensor) -> None:
    """Add numbers >= 0 (..., n) to counts and sums (..., bins), in place."""
    numbers = numbers.detach().to("cpu", torch.float64)
    where = torch.bucketize(numbers, edges(), right=True)
    counts.scatter_add_(-1, where, torch.ones_like(where))
    sums.scatter_add_(-1, where, numbers)


def order_statistic(counts: Tensor, sums: Tensor, place: Tensor) -> Tensor:
    """The number at `place` (...), counted from 0, of the ordered numbers: (..., bins) -> (...)."""
    index = torch.searchsorted(counts.cumsum(-1), place[..., None], right=True)
    return (sums.gather(-1, index) / counts.gather(-1, index)).squeeze(-1)


def quantile(counts: Tensor, sums: Tensor, q: float) -> Tensor:
    """x_(k) + f (x_(k+1) - x_(k)) with k + f = q (n - 1): (..., bins) -> (...). 0 and 1 give the ends."""
    n = counts.sum(-1)
    position = q * (n - 1).double()
    low = position.floor().long()
    first, second = (order_statistic(counts, sums, place) for place in (low, (low + 1).minimum(n - 1)))
    return first + (position - low) * (second - first)


def decades(counts: Tensor, per_decade: int) -> tuple[Tensor, Tensor]:
    """Edges of wider bins, so many per decade, and their counts: (..., bins) -> (m + 1,), (..., m).

    What is smaller or larger than all of them goes to the outermost. `per_decade` divides `COARSE`, so that no bin is
    cut in two.
    """
    limits = 10 ** (torch.arange(-REACH * per_decade, REACH * per_decade + 1).double() / per_decade)
    middle = (edges()[1:] * edges()[:-1]).sqrt()
    middle = torch.cat([edges()[:1], middle, edges()[-1:]])
    place = (torch.bucketize(middle, limits, right=True) - 1).clamp(0, len(limits) - 2)
    wide = counts.new_zeros(*counts.shape[:-1], len(limits) - 1)
    return limits, wide.index_add_(-1, place, counts)


def check_rule(rule: str) -> None:
    if rule not in OUTLIERS:
        raise VitscopeError(f"outliers={rule!r} is not known: expected one of {', '.join(OUTLIERS)}.")


def cut_outliers(counts: Tensor, sums: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """Counts and sums (..., bins) without outliers.

    above95: what exceeds the 95th percentile goes, as published: of n different numbers the floor(0.95 (n - 1)) + 1
    smallest stay. Of a bin that is cut in two, the part that stays has its mean. iqr: everything further than 1.5 times
    the interquartile range (of the log values) outside the quartiles goes, in whole bins.
    """
    check_rule(rule)
    if rule == "none":
        return counts, sums
    if rule == "above95":
        stay = (0.95 * (counts.sum(-1, keepdim=True) - 1).double()).floor().long() + 1
        kept = torch.minimum(stay - counts.cumsum(-1) + counts, counts).clamp_min(0)
    else:
        q1, q3 = (_log(quantile(counts, sums, q))[..., None] for q in (0.25, 0.75))
        value, reach = _log(sums / counts.clamp_min(1)), 1.5 * (q3 - q1) + 1e-9
        kept = counts * ((value >= q1 - reach) & (value <= q3 + reach))
    return kept, sums * (kept.double() / counts.clamp_min(1))  # whole numbers divide to float32


def describe(numbers: Tensor, rule: str) -> dict[str, Tensor]:
    """Mean, minimum, quartiles and maximum of what the rule keeps of numbers at hand, exactly: (..., n) -> (...)."""
    check_rule(rule)
    ordered = sort_values(numbers)
    n = ordered.shape[-1]
    first, count = torch.zeros_like(ordered[..., 0], dtype=torch.int64), torch.full_like(ordered[..., 0], n).long()
    if rule == "above95":
        count = count * 0 + math.floor(0.95 * (n - 1)) + 1
    elif rule == "iqr":
        value = _log(ordered)
        q1, q3 = (_between(value, first, count, q)[..., None] for q in (0.25, 0.75))
        reach = 1.5 * (q3 - q1) + 1e-9
        first = (value < q1 - reach).sum(-1)
        count = (value <= q3 + reach).sum(-1) - first
    place = torch.arange(n, device=ordered.device)
    kept = (place >= first[..., None]) & (place < (first + count)[..., None])
    mean = torch.where(kept, ordered, 0.0).sum(-1) / count
    return {"mean": mean} | {name: _between(ordered, first, count, q) for name, q in FIVE.items()}


def _between(ordered: Tensor, first: Tensor, count: Tensor, q: float) -> Tensor:
    """The q-quantile of the `count` ordered numbers from place `first` on: (..., n) -> (...)."""
    position = q * (count - 1).double()
    low = position.floor().long()
    a, b = (ordered.gather(-1, (first + place)[..., None]).squeeze(-1) for place in (low, (low + 1).minimum(count - 1)))
    return a + (position - low) * (b - a)


def _log(x: Tensor) -> Tensor:
    """Zero counts as the lowest edge."""
    return x.clamp_min(float(edges()[0])).log()
