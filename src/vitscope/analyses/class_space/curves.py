"""Is a relevance map faithful? Keep only some tokens and see how the accuracy follows.

*Negative* perturbation removes the least relevant tokens first, so n kept tokens are the n most relevant: the area
under accuracy against the share of tokens kept should be large. *Positive* perturbation removes the most relevant
first: it should be small. The area is the trapezoidal integral over the kept share from 0 (prefix tokens alone) to 1
(all tokens), in [0, 1]. The published figure instead is sum_n acc_n / (T max_n acc_n) over
n = 1 .. T-1, without end points.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitscope.analyses.class_space.removal import droppable, dropped, stream_kept, why_not_removable
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import Model

DIRECTIONS = ("negative", "positive")


def kept_counts(tokens: int, steps: int | None) -> list[int]:
    """How many tokens are kept at each point of the curve, 0 and all included. `steps=None`: every number."""
    if steps is None or steps >= tokens:
        return list(range(tokens + 1))
    if steps < 1:
        raise VitscopeError(f"steps={steps}: a curve needs at least one step.")
    return sorted({round(i * tokens / steps) for i in range(steps + 1)})


def most_relevant(relevance: Tensor, direction: str) -> Tensor:
    """(B, T) order in which tokens are kept: the most relevant first (negative) or last (positive).

    Ties are broken by the token's number, forwards in both directions, so that a constant map is nobody's advantage.
    """
    return relevance.argsort(dim=1, descending=direction == "negative", stable=True)


def curve_hits(
    model: Model, images: Tensor, labels: Tensor, order: Tensor, counts: Sequence[int], *, drop: bool | None = None
) -> Tensor:
    """(S, B) float64: is the image classified rightly from its first n tokens in `order` (B, T), for n in counts?

    Pooled models have nothing to read at n = 0: they get the chance level 1/K there. `drop` forces a way (for tests).
    Dropping is preferred: it costs less the fewer tokens are left.
    """
    p, t = model.layout.image.start, model.layout.image_tokens
    dropping = droppable(model) if drop is None else drop
    if drop is None and (reason := why_not_removable(model)):
        raise UnsupportedModelError(reason)
    pooled = (getattr(model.module, "global_pool", "token") or "token") != "token"
    prefix = torch.arange(p).expand(len(order), p)
    hits = torch.empty(len(counts), len(order), dtype=torch.float64)
    with torch.no_grad():
        for s, n in enumerate(counts):
            if n == 0 and pooled:
                hits[s] = 1 / model.num_classes
                continue
            if n == t:
                logits = model(images)
            elif dropping:
                chosen = torch.cat([prefix, order[:, :n].sort(1).values.cpu() + p], 1)
                with dropped(model, chosen):
                    logits = model(images)
            else:
                keep = torch.zeros(len(order), p + t, dtype=torch.bool)
                keep[:, :p] = True
                keep.scatter_(1, order[:, :n].cpu() + p, True)
                logits = stream_kept(model, images, keep)
            hits[s] = (logits.argmax(1).cpu() == labels.cpu()).double()
    return hits


def area(accuracy: Sequence[float], counts: Sequence[int]) -> float:
    """Trapezoidal area under accuracy against the share of tokens kept, from the first point to the last."""
    total = counts[-1]
    pairs = zip(zip(counts, accuracy), zip(counts[1:], accuracy[1:]))
    return sum((b[0] - a[0]) / total * (a[1] + b[1]) / 2 for a, b in pairs)


def published_area(accuracy: Sequence[float], counts: Sequence[int]) -> float:
    """sum_n acc_n / (T max acc) over n = 1 .. T-1. Needs every n; at most (T-1)/T."""
    tokens = counts[-1]
    if list(counts) != list(range(tokens + 1)):
        raise VitscopeError("The published area sums over every number of tokens: use steps=None.")
    inner = list(accuracy[1:-1])
    best = max(inner)
    return sum(inner) / (tokens * best) if best > 0 else 0.0
