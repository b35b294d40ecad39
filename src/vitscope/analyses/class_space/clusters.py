"""Means over tokens with honest intervals: tokens of one image are not independent, images are.

For every image i a group of tokens has m_i members and a sum y_i of some value over them. The mean over all tokens is
the ratio R = sum y_i / sum m_i, and its standard error follows from the spread *between images* (the usual linearised
variance of a ratio, Cochran, Sampling Techniques, ch. 6):

    se^2 = n / (n - 1) * sum_i (y_i - R m_i)^2 / (sum m_i)^2

All that is needed adds up over images: n, sum m, sum m^2, and for each value sum y, sum y^2, sum y m, sum y/m.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vitscope.analyses.accumulators import Z95, wilson

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


def ratio(sums: Mapping[str, float], *, share: bool = False) -> Mean:
    """One value of one group from its sums n, m, mm, y, yy, ym, mean. `share`: it is 0 or 1 and gets Wilson's interval.

    Wilson's interval is taken with the number of independent tokens that would have the same standard error, so that
    it is right for one token per image, allows for the likeness of tokens within an image, and stays defined at 0 %.
    A single image says nothing about the spread between images: a share then has Wilson's interval for one observation.
    """
    n, m = sums["n"], sums["m"]
    r = sums["y"] / m
    residual = max(sums["yy"] - 2 * r * sums["ym"] + r * r * sums["mm"], 0.0)
    variance = n / (n - 1) * residual / m**2 if n > 1 else 0.0
    if share:
        effective = min(max(r * (1 - r) / variance, 1.0), m) if variance > 0 else n
        low, high = wilson(min(max(r, 0.0), 1.0) * effective, effective)
    else:
        low, high = r - Z95 * variance**0.5, r + Z95 * variance**0.5
    return Mean(r, low, high, sums["mean"] / n, round(m), round(n))
