"""Means over tokens with honest intervals: tokens of one image are not independent, images are.

For every image i a group of tokens has m_i members and a sum y_i of some value over them. The mean over all tokens is
the ratio R = sum y_i / sum m_i, and its standard error follows from the spread *between images* (the usual linearised
variance of a ratio, Cochran, Sampling Techniques, ch. 6):

    se^2 = n / (n - 1) * sum_i (y_i - R m_i)^2 / (sum m_i)^2

All that is needed adds up over images: n, sum m, sum m^2, and for each value sum y, sum y^2, sum y m, sum y/m.

An interval is never a point. One image says nothing about the spread between images: NaN (a share has Wilson's interval
for one observation). Where all images agree, the spread between them is zero and the standard error useless: values
in [0, 1] then get Wilson's interval for n images, and changes in [-1, 1] the one of Agresti & Min for paired shares,
both as if every image were all or nothing, which is the widest they can be spread; other numbers have NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitscope.statistics.intervals import Z95, paired, wilson

# What is averaged: any number, one in [0, 1] (r, an area), a share of zeros and ones, a change of the latter two.
Kind = Literal["number", "fraction", "share", "change"]
AGREE = 1e-12  # relative: a smaller spread between images is rounding
COUNTS = ("n", "m", "mm")  # per group of tokens
FIELDS = ("y", "yy", "ym", "mean")  # per value and group; `mean` is the sum of the images' own means


def cluster_sums(values: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """Values (..., V, B, n), group members (B, G, n) -> sums over images: COUNTS (3, G) and FIELDS (..., 4, V, G).

    Images without a member of a group do not count in it.
    """
    m = members.sum(-1)  # (B, G)
    y = torch.einsum("...vbn,bgn->...vbg", values.double(), members)  # (..., V, B, G); 0 where there is no member
    counts = torch.stack([(m > 0).double(), m, m.square()]).sum(1)
    return counts, torch.stack([y, y.square(), y * m, y / m.clamp(min=1)], -4).sum(-2)


def counted(numbers: Tensor, size: int) -> Tensor:
    """How often each of 0 .. size - 1 occurs along the last dimension: (..., n) int64 -> (..., size) int64."""
    *leading, _ = numbers.shape
    rows = math.prod(leading)
    places = numbers + size * torch.arange(rows).view(*leading, 1)
    return torch.bincount(places.flatten(), minlength=size * rows).view(*leading, size)


@dataclass(frozen=True)
class Mean:
    """A mean over tokens, its 95 % interval over images, and the mean of the images' own means."""

    value: float
    low: float
    high: float
    per_image: float
    tokens: int
    images: int

    def columns(self, name: str, scale: float = 1.0, ends: str | None = None) -> dict[str, float]:
        """NAME, NAME_low, NAME_high of a table, times `scale`: 100 for per cent. ends: NAME of the latter two."""
        ends = name if ends is None else ends
        return {name: scale * self.value, f"{ends}_low": scale * self.low, f"{ends}_high": scale * self.high}


def ratio(sums: Mapping[str, float], kind: Kind = "number") -> Mean:
    """One value of one group from its sums n, m, mm, y, yy, ym, mean.

    A share's interval is Wilson's with the number of independent tokens that would have the same standard error, so
    that it is right for one token per image, allows for the likeness of tokens within an image, and stays defined at
    0 %. For all others see above.
    """
    n, m = sums["n"], sums["m"]
    r = sums["y"] / m
    residual = sums["yy"] - 2 * r * sums["ym"] + r * r * sums["mm"]
    agree = residual <= AGREE * sums["yy"]
    variance = n / (n - 1) * residual / m**2 if n > 1 and not agree else 0.0
    half = Z95 * variance**0.5
    if kind == "share":
        effective = min(max(r * (1 - r) / variance, 1.0), m) if variance > 0 else n
        low, high = _wilson(r, effective)
    elif n == 1 or (agree and kind == "number"):
        low, high = math.nan, math.nan
    elif kind == "fraction":
        low, high = _wilson(r, n) if agree else (max(r - half, 0.0), min(r + half, 1.0))
    elif kind == "change":
        low, high = _agreed_change(r, n) if agree else (max(r - half, -1.0), min(r + half, 1.0))
    else:
        low, high = r - half, r + half
    return Mean(r, low, high, sums["mean"] / n, round(m), round(n))


def over_clusters(total: Tensor, members: Tensor, kind: Kind = "number") -> Mean | None:
    """The same from sums and numbers of members per cluster (D,), (D,); None where there is no member at all."""
    there = members > 0
    y, m = total[there].double(), members[there].double()
    if not len(m):
        return None
    sums = {"m": m, "mm": m * m, "y": y, "yy": y * y, "ym": y * m, "mean": y / m}
    return ratio({"n": float(len(m)), **{name: float(part.sum()) for name, part in sums.items()}}, kind)


def mean_over_images(n: float, total: float, squares: float, kind: Kind = "number") -> Mean:
    """The same for one value per image, from count, sum and sum of squares."""
    return ratio({"n": n, "m": n, "mm": n, "y": total, "yy": squares, "ym": total, "mean": total}, kind)


def _wilson(share: float, n: float) -> tuple[float, float]:
    return wilson(min(max(share, 0.0), 1.0) * n, n)  # rounding may lead out of [0, 1]


def _agreed_change(change: float, n: float) -> tuple[float, float]:
    """All n images change by the same in [-1, 1], most often by nothing."""
    moved = round(abs(change) * n)
    return paired(moved if change > 0 else 0, moved if change < 0 else 0, round(n))


def means_of_clusters(totals: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums per cluster (D, ...) over so many members (D,), or over other sums (D, ...) -> ratio and its 95 % interval.

    The same as `ratio` of numbers, for many values at once. Clusters of size 0 do not count. The interval is NaN with
    one cluster, and where all agree.
    """
    y, m = totals.double(), sizes.double()
    m = m.view(*m.shape, *(1,) * (y.ndim - m.ndim)).expand_as(y)
    n = (m != 0).sum(0).double()
    r = y.sum(0) / m.sum(0)
    residual = (y - r * m).square().sum(0)
    unknown = (n < 2) | (residual <= AGREE * y.square().sum(0))
    half = Z95 * (n / (n - 1).clamp(min=1) * residual).sqrt() / m.sum(0).abs()
    half = half.masked_fill(unknown, math.nan)
    return r, r - half, r + half
