"""Project tokens on the classes and keep three numbers of each: rank of the true class, its logit, the top class.

The logits of every token on every class are the largest thing this lens touches (197 tokens x 1,000 classes x 3 points
x 12 blocks = 28 MB per image of ViT-Tiny). They are never kept: a chunk of tokens that fits the processor's cache is
projected, read and overwritten by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from vitscope.analyses.class_space.ranks import Ties, check_finite, rank_from_difference
from vitscope.errors import UnsupportedModelError, VitscopeError

if TYPE_CHECKING:
    from vitscope.models import Model

Heads = Literal["own", "mean", "class", "distillation"]
CHUNK = {"cpu": 2**19}  # logits at a time: 2 MB of float32 stay in the cache; elsewhere the kernel launch counts
LARGE_CHUNK = 2**26


@dataclass(frozen=True)
class Reading:
    """What is kept of projected tokens, each (B, n)."""

    rank: Tensor  # of the true class: number of classes with a larger logit
    logit: Tensor  # of the true class
    top: Tensor  # int64: the class with the largest logit

    def split(self, parts: int) -> list[Reading]:
        """Readings of (parts * B, n) tokens -> as many of (B, n)."""
        values = (v.unflatten(0, (parts, v.shape[0] // parts)) for v in (self.rank, self.logit, self.top))
        return [Reading(*part) for part in zip(*values)]


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
        second = getattr(module, "head_dist", None)
        if heads == "distillation" and second is None:
            raise UnsupportedModelError(f"{model.name} has one head: head='distillation' needs a distilled model.")
        self.classes = model.num_classes
        self.key = (id(module), heads)  # projectors of one model and head read the same
        self.norm: Callable[[Tensor], Tensor] = module.norm
        if second is None:  # distilled models ignore fc_norm in their forward pass
            self.norm = lambda x: module.fc_norm(module.norm(x))
        first = _head(module.head)
        if second is None:
            parts = {0: first}
        else:
            other = replace(_head(second), name="distillation")
            mean = Head((first.weight + other.weight) / 2, (first.bias + other.bias) / 2, "mean")
            same = {"mean": mean, "class": first, "distillation": other}
            parts = {0: first, 1: other, 2: mean} if heads == "own" else {0: same[heads]}
        self.parts = parts  # first token -> head; each holds until the next

    def head_of(self, token: int) -> Head:
        return self.parts[max(first for first in self.parts if first <= token)]

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
        normed, labels = self.norm(x).float(), labels.to(x.device)
        images, n = normed.shape[:2]
        pieces = []
        for start, stop, head in self.pieces(first_token, n):
            part = normed[:, start:stop].flatten(0, 1)  # (B * m, C)
            found = _read_rows(part, labels.repeat_interleave(stop - start), head, ties, where)
            pieces.append([value.view(images, stop - start) for value in found])
        return Reading(*joined(pieces, 1))

    def pieces(self, first_token: int, n: int) -> list[tuple[int, int, Head]]:
        """(start, stop, head): which of the given tokens, counted from the first of them, go through which head."""
        edges = sorted(self.parts)
        pieces = []
        for edge, following in zip(edges, [*edges[1:], first_token + n]):
            start, stop = max(edge, first_token) - first_token, min(following, first_token + n) - first_token
            if stop > start:
                pieces.append((start, stop, self.parts[edge]))
        return pieces


def _read_rows(x: Tensor, labels: Tensor, head: Head, ties: Ties, where: str) -> list[Tensor]:
    """Rows of normalised tokens (R, C) with labels (R,) -> rank, logit, top, each (R,)."""
    rows, classes = x.shape[0], head.weight.shape[0]
    step = max(16, CHUNK.get(x.device.type, LARGE_CHUNK) // classes)
    buffers = [x.new_empty(min(step, rows), classes) for _ in range(2)]
    weight = head.weight.t()
    chunks = []
    for start in range(0, max(rows, 1), step):
        stop = min(start + step, rows)
        logits, scratch = (buffer[: stop - start] for buffer in buffers)
        torch.addmm(head.bias, x[start:stop], weight, out=logits)  # (R', K)
        check_finite(logits, where)
        true = logits.gather(1, labels[start:stop, None])  # (R', 1)
        top = top_class(logits, scratch)
        chunks.append([rank_from_difference(logits.sub_(true), ties), true[:, 0], top])
    return joined(chunks, 0)


def joined(parts: Sequence[Sequence[Tensor]], dim: int) -> list[Tensor]:
    """The first tensors of all parts together, the second ones, ..."""
    return [torch.cat(same, dim) if len(same) > 1 else same[0] for same in zip(*parts)]


def top_class(logits: Tensor, scratch: Tensor | None = None) -> Tensor:
    """`logits.argmax(1)` in a third of the time: (R, K) -> (R,) int64.

    argmax goes through a row one by one, while `amax`, `==` and a product with the class numbers use the whole width
    of the processor. Rows with a tie for the first place (two hits) are left to argmax.
    """
    if logits.dtype != torch.float32 or logits.shape[1] > 2**24:
        return logits.argmax(1)
    scratch = torch.empty_like(logits) if scratch is None else scratch
    hits = torch.eq(logits, logits.amax(1, keepdim=True), out=scratch)  # (R, K) of 0. and 1.
    place, count = hits.mv(torch.arange(logits.shape[1], dtype=hits.dtype, device=hits.device)), hits.sum(1)
    top = place.long()
    tied = count != 1
    if tied.any():
        top[tied] = logits[tied].argmax(1)
    return top


def _head(linear: torch.nn.Linear) -> Head:
    weight = linear.weight.detach().float()
    bias = linear.bias.detach().float() if linear.bias is not None else weight.new_zeros(weight.shape[0])
    return Head(weight, bias)
