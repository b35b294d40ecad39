"""What is kept of the ranks of many tokens, and the rows that they become: level, change and distribution of r."""

from __future__ import annotations

import torch
from torch import Tensor

from vitscope.analyses.class_space.ranks import identifiability
from vitscope.statistics.clusters import Mean
from vitscope.statistics.intervals import wilson

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 20


def token_values(rank: Tensor, change: Tensor, classes: int) -> Tensor:
    """Ranks and rises of the logit (..., B, n) -> (..., 4, B, n) float64: r, is r = 1, did the logit rise, how much."""
    return torch.stack([identifiability(rank.double(), classes), rank == 0, change > 0, change], -3)


def rank_quantile(counts: Tensor, q: float) -> float:
    """The q-quantile of r from counts of half ranks (2K - 1,): the smallest r that a share q does not exceed."""
    by_r = counts.flip(0).cumsum(0)  # r rises as the rank falls
    place = int((by_r >= q * by_r[-1]).to(torch.int8).argmax())
    k = (len(counts) + 1) / 2
    return 1 - (len(counts) - 1 - place) / 2 / k


def level_row(r: Mean, rate: Mean, counts: Tensor, some: float) -> dict[str, float]:
    low, high = wilson(some / 100 * r.images, r.images)
    quantiles = {f"q{round(100 * q):02d}": rank_quantile(counts, q) for q in QUANTILES}
    return {
        "mean": r.value, "low": r.low, "high": r.high, "mean_per_image": r.per_image, **quantiles,
        **rate.columns("rate", 100), "rate_per_image": 100 * rate.per_image,
        "images_with": some, "images_with_low": 100 * low, "images_with_high": 100 * high,
        "n_tokens": r.tokens, "n_images": r.images,
    }  # fmt: skip


def change_row(rose: Mean, rise: Mean) -> dict[str, float]:
    return {
        **rose.columns("rate", 100), "rate_per_image": 100 * rose.per_image, **rise.columns("logit_change"),
        "n_tokens": rose.tokens, "n_images": rose.images,
    }  # fmt: skip


def bins(counts: Tensor) -> list[dict[str, float]]:
    """Twenty bins of r, (from, to], from the exact counts of half ranks."""
    k = (len(counts) + 1) / 2
    r = 1 - torch.arange(len(counts), dtype=torch.float64) / 2 / k
    where = ((r * BINS).ceil().long() - 1).clamp(0, BINS - 1)
    shares = torch.zeros(BINS, dtype=torch.float64).index_add_(0, where, counts.double()) / counts.sum()
    return [{"from": b / BINS, "to": (b + 1) / BINS, "share": 100 * share} for b, share in enumerate(shares.tolist())]
