"""Project tokens on the classes and keep three numbers of each: rank of the true class, its logit, the top class.

The logits of every token on every class are the largest thing this lens touches (197 tokens x 1,000 classes x 3 points
x 12 blocks = 28 MB per image of ViT-Tiny). They are never kept: a chunk of tokens that fits the processor's cache is
projected, read and overwritten by the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitscope.analyses.class_space.ranks import Ties, check_finite, rank_from_difference
from vitscope.architectures.families import final_norms, heads_of
from vitscope.errors import NumericalError, UnsupportedModelError, VitscopeError
from vitscope.models import Model

Heads = Literal["own", "mean", "class", "distillation"]
CHUNK = {"cpu": 2**20}  # logits at a time: 4 MB of float32 stay in the cache; elsewhere the kernel launch counts
LARGE_CHUNK = 2**26
ROWS = 256  # that are looked through for their largest values at a time: they stay in a core's own cache


@dataclass(frozen=True)
class Reading:
    """What is kept of projected tokens, each (B, n)."""

    rank: Tensor  # of the true class: number of classes with a larger logit
    logit: Tensor  # of the true class
    top: Tensor  # int64: the class with the largest logit


@dataclass(frozen=True)
class Head:
    """A linear map from normalised tokens to classes."""

    weight: Tensor  # (K, C)
    bias: Tensor  # (K,)
    name: str = "class"  # class, distillation or mean


class Projector:
    """A model's own way into class space, for every token: final norm, then head(s).

    A distilled model has two heads. `own` (default) sends the class token through the first, the distillation token
    through the second and all other tokens through their mean, which is what the model itself averages; `mean`,
    `class` and `distillation` send every token through the same.
    """

    def __init__(self, model: Model, heads: Heads = "own") -> None:
        module: Any = model.module
        reason = model.why_no_class_space()
        if reason:
            raise UnsupportedModelError(f"{model.name} cannot be read in class space: {reason}.")
        if heads not in ("own", "mean", "class", "distillation"):
            raise VitscopeError(f"head={heads!r} is not known: expected own, mean, class or distillation.")
        first, *others = map(_head, heads_of(module))
        if heads == "distillation" and not others:
            raise UnsupportedModelError(f"{model.name} has one head: head='distillation' needs a distilled model.")
        self.classes = model.num_classes
        self.key = (id(module), heads)  # projectors of one model and head read the same
        # `forward`, not a call: hooks and edits on the final norm are meant for what the model itself sends through it
        self.norms = [norm.forward for norm in final_norms(module)]
        if not others:
            parts = {0: first}
        else:
            other = replace(others[0], name="distillation")
            mean = Head((first.weight + other.weight) / 2, (first.bias + other.bias) / 2, "mean")
            same = {"mean": mean, "class": first, "distillation": other}
            parts = {0: first, 1: other, 2: mean} if heads == "own" else {0: same[heads]}
        self.parts = parts  # first token -> head; each holds until the next

    def norm(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = norm(x)
        return x

    @property
    def image_head(self) -> Head:
        """The head of image tokens."""
        return self.parts[max(self.parts)]

    def logits(self, x: Tensor, first_token: int = 0) -> Tensor:
        """(..., n, C) -> (..., n, K), for tokens first_token, first_token + 1, ..."""
        normed = self.norm(x).float()
        pieces = [
            torch.nn.functional.linear(normed[..., start:stop, :], head.weight, head.bias)
            for start, stop, head in self.pieces(first_token, x.shape[-2])
        ]
        return torch.cat(pieces, -2) if len(pieces) > 1 else pieces[0]

    def read(
        self, x: Tensor, labels: Tensor, *, first_token: int = 0, ties: Ties = "half", where: str = "some token"
    ) -> Reading:
        """Rank, logit and top class of (B, n, C) tokens with true classes (B,), without keeping the logits."""
        return self.read_all([x], labels, first_token=first_token, ties=ties, where=[where])[0]

    def read_all(
        self, points: Sequence[Tensor], labels: Tensor, *, first_token: int, ties: Ties, where: Sequence[str]
    ) -> list[Reading]:
        """The readings of several points (B, n, C) of the same tokens, one each."""
        labels = labels.to(points[0].device)
        images, n = points[0].shape[:2]
        pieces = []
        for start, stop, head in self.pieces(first_token, n):
            parts = [x[:, start:stop].flatten(0, 1) for x in points]  # each (B * m, C)
            found = self._read_rows(parts, labels.repeat_interleave(stop - start), head, ties, where)
            pieces.append([value.view(len(points), images, stop - start) for value in found])
        return [Reading(*of_point) for of_point in zip(*joined(pieces, 2))]

    def _read_rows(
        self, parts: Sequence[Tensor], labels: Tensor, head: Head, ties: Ties, where: Sequence[str]
    ) -> list[Tensor]:
        """Rows of tokens, P parts of (R, C) with the same labels (R,) -> rank, logit, top, each (P * R,)."""
        rows = len(labels)
        step = max(16, CHUNK.get(labels.device.type, LARGE_CHUNK) // len(head.weight))
        weight = head.weight.t()
        buffers = [head.weight.new_empty(min(step, rows * len(parts)), len(head.weight)) for _ in range(2)]

        def read(x: Tensor, labels: Tensor, where: str) -> list[Tensor]:
            logits, scratch = (buffer[: len(x)] for buffer in buffers)
            torch.addmm(head.bias, self.norm(x).float(), weight, out=logits)  # (R', K)
            check_finite(logits, where)
            true = logits.gather(1, labels[:, None])  # (R', 1)
            rank = rank_from_difference(torch.sub(logits, true, out=scratch), ties)
            return [rank, true[:, 0], largest(logits, 1)[:, 0]]  # last: it leaves the other cores' caches

        if rows * len(parts) <= step:  # a few tokens, as of the class token alone: all points in one go
            try:
                return read(torch.cat(list(parts)), labels.repeat(len(parts)), where[0])
            except NumericalError:
                if len(parts) == 1:
                    raise  # else each by itself, to say which it was
        chunks = [
            read(part[start : start + step], labels[start : start + step], name)
            for part, name in zip(parts, where)
            for start in range(0, max(rows, 1), step)
        ]
        return joined(chunks, 0)

    def pieces(self, first_token: int, n: int) -> list[tuple[int, int, Head]]:
        """(start, stop, head): which of the given tokens, counted from the first of them, go through which head."""
        edges = sorted(self.parts)
        pieces = []
        for edge, following in zip(edges, [*edges[1:], first_token + n]):
            start, stop = max(edge, first_token) - first_token, min(following, first_token + n) - first_token
            if stop > start:
                pieces.append((start, stop, self.parts[edge]))
        return pieces


def joined(parts: Sequence[Sequence[Tensor]], dim: int) -> list[Tensor]:
    """The first tensors of all parts together, the second ones, ..."""
    return [torch.cat(same, dim) if len(same) > 1 else same[0] for same in zip(*parts)]


def largest(values: Tensor, k: int) -> Tensor:
    """(..., M) -> (..., k) int64: the places of the k largest, largest first.

    On the CPU k times numpy's argmax, which uses the processor's whole width: half the time of topk and a tenth of
    torch's argmax, both of which go through a row one by one.
    """
    k = min(k, values.shape[-1])
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        return values.topk(k, dim=-1).indices
    rows = values.detach().flatten(0, -2).numpy()  # (R, M)
    found = np.empty((len(rows), k), np.int64)
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        found[start : start + ROWS, 0] = best = some.argmax(1)
        if k > 1:
            some, every = some.copy(), np.arange(len(some))
        for place in range(1, k):
            some[every, best] = -np.inf
            found[start : start + ROWS, place] = best = some.argmax(1)
    return torch.from_numpy(found).view(*values.shape[:-1], k)


def _head(linear: Any) -> Head:
    weight = linear.weight.detach().float()
    bias = linear.bias.detach().float() if linear.bias is not None else weight.new_zeros(weight.shape[0])
    return Head(weight, bias)
