"""Does a relevance map point at the object? Against masks that the model never saw.

* Pointing game (Zhang et al., "Top-down neural attention by excitation backprop", 2016): is the most relevant token on
  the object? Tied tokens share the point.
* Average precision: object tokens ranked by relevance; the share of object tokens is what chance gives.

Tokens that a mask ignores take no part, nor do images that lack object or context.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitscope.data.batch import CONTEXT, OBJECT


def usable(masks: Tensor) -> Tensor:
    """(B, T) mask values per token -> (B,) bool: are there both object and context tokens?"""
    return (masks == OBJECT).any(1) & (masks == CONTEXT).any(1)


def pointing_game(relevance: Tensor, masks: Tensor) -> Tensor:
    """(B,) float64 in [0, 1]: is the most relevant token an object token? With ties, the share of them that are."""
    counted = (masks == OBJECT) | (masks == CONTEXT)
    scores = relevance.double().masked_fill(~counted, -torch.inf)
    top = (scores == scores.amax(1, keepdim=True)) & counted
    return (top & (masks == OBJECT)).sum(1).double() / top.sum(1).clamp(min=1)


def average_precision(relevance: Tensor, masks: Tensor) -> Tensor:
    """(B,) float64: sum over thresholds of (recall_n - recall_{n-1}) precision_n; tied tokens enter together."""
    values = [
        _average_precision(r[(m == OBJECT) | (m == CONTEXT)], (m == OBJECT)[(m == OBJECT) | (m == CONTEXT)])
        for r, m in zip(relevance.double(), masks)
    ]
    return torch.tensor(values, dtype=torch.float64)


def _average_precision(scores: Tensor, positive: Tensor) -> float:
    if not positive.any():
        return 0.0
    order = scores.argsort(descending=True)
    scores, hits = scores[order], positive[order].double().cumsum(0)
    last = torch.cat([scores[1:] != scores[:-1], torch.ones(1, dtype=torch.bool)])  # the end of each run of ties
    hits = hits[last]
    precision = hits / (torch.arange(1, len(scores) + 1)[last])
    recall = torch.cat([torch.zeros(1, dtype=torch.float64), hits / hits[-1]])
    return float((recall.diff() * precision).sum())


def object_share(masks: Tensor) -> Tensor:
    """(B,): what a random order scores in both, on average (average precision: in the limit of many tokens)."""
    target = (masks == OBJECT).sum(1).double()
    return target / (target + (masks == CONTEXT).sum(1)).clamp(min=1)
