"""What each head and MLP adds to one class at every token: what they write, straight through the final norm and head.

The last residual is a sum, x = embedding + sum of attention outputs + sum of MLP outputs (`models/decomposition.py`).
With the final norm held at its scale for that token (`models/frozen_norm.py`), each part has its share of the logit,
and the shares add up to it with a constant, the biases of norm and head. `model.attribute` does this for the tokens
that the answer is read from; here every token is read as if it were one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitscope.architectures.families import block_row, family_of, final_norms, heads_of
from vitscope.errors import UnsupportedModelError
from vitscope.models import Model
from vitscope.models.frozen_norm import FrozenNorm, frozen

AGREES = 1e-3  # of the largest: heads that miss their attention by more, because it is edited, are not shown


@dataclass(frozen=True)
class Contributions:
    """In logits, per token; `total` is their sum with the constant, to be held against the logit."""

    embedding: Tensor  # (N,)
    attention: Tensor  # (L, N)
    mlp: Tensor  # (L, N)
    heads: Tensor | None  # (L, H, N); None where no head has an output of its own, NaN in blocks that do not add up
    constant: float  # biases of norm and head
    total: Tensor  # (N,)


def why_no_contributions(model: Model) -> str | None:
    """Why parts do not add up to a logit here; None if they do."""
    reason = model.why_no_class_space()
    if reason:
        return reason
    if family_of(model.module).transform is not None:
        return "a layer that is not linear stands between its last block and its head"
    if any(block_row(block).summed for block in model.blocks):
        return "its blocks normalise the sum of stream and branch, so their outputs do not add up to the last residual"
    try:
        _norm(model)
    except UnsupportedModelError as error:
        return str(error)
    return None


def points_needed(model: Model) -> list[str]:
    """What `contributions` reads."""
    if why_no_contributions(model):
        return []
    inside = ("attn.hook_z", "hook_attn_out", "hook_mlp_out")
    return ["blocks.0.hook_resid_pre", *(f"blocks.*.{kind}" for kind in inside)]


def contributions(model: Model, kept: Mapping[str, Tensor], last: Tensor, chosen: int) -> Contributions:
    """Points of one item as `points_needed` names them, the last residual (N, C), a class -> contributions."""
    weight, bias = _row(model, chosen)
    norm = _norm(model)
    direction, scale = weight, last.new_ones(len(last))
    if norm is not None:
        direction, scale = norm.pulled_back(weight), norm.inverse_scale(last)[:, 0]  # (C,), (N,)
        bias = bias if norm.bias is None else bias + weight @ norm.bias

    def part(name: str) -> Tensor:
        return kept[name] @ direction * scale  # (N,)

    blocks = range(model.layout.blocks)
    attention = torch.stack([part(f"blocks.{i}.hook_attn_out") for i in blocks])
    mlp = torch.stack([part(f"blocks.{i}.hook_mlp_out") for i in blocks])
    embedding = part("blocks.0.hook_resid_pre")
    heads = _heads(model, kept, direction, scale, attention)
    total = embedding + attention.sum(0) + mlp.sum(0) + bias
    return Contributions(embedding, attention, mlp, heads, float(bias), total)


def _row(model: Model, chosen: int) -> tuple[Tensor, Tensor]:
    """Weights and bias of one class; the mean of two heads where a model has two."""
    heads: list[Any] = heads_of(model.module)
    weight = torch.stack([head.weight[chosen] for head in heads]).mean(0)
    biases = [head.bias[chosen] if head.bias is not None else weight.new_zeros(()) for head in heads]
    return weight, torch.stack(biases).mean()


def _norm(model: Model) -> FrozenNorm | None:
    """The one norm between the last block and the head, or UnsupportedModelError."""
    norms = [norm for norm in map(frozen, final_norms(model.module)) if norm is not None]
    if len(norms) > 1:
        raise UnsupportedModelError("more than one norm stands between its last block and its head")
    return norms[0] if norms else None


def _heads(model: Model, kept: Mapping[str, Tensor], direction: Tensor, scale: Tensor, whole: Tensor) -> Tensor | None:
    """(L, H, N): what each head writes; the bias behind them is no head's."""
    try:
        branches = model.decomposition.branches
    except UnsupportedModelError:
        return None
    found = []
    for i, branch in enumerate(branches):
        written, rest = branch.heads(kept[f"blocks.{i}.attn.hook_z"].transpose(0, 1))  # (N, H, C), (N, C)
        heads = (written @ direction).T * scale  # (H, N)
        together = heads.sum(0) + rest @ direction * scale
        agree = float((together - whole[i]).abs().max()) <= AGREES * float(together.abs().max())
        found.append(heads if agree else torch.full_like(heads, float("nan")))
    return torch.stack(found)
