"""What each head and each MLP writes into the residual stream.

A block adds  steps(W_O [z_1, ..., z_H] + b_O)  and  steps(W_out h + b_out).  Heads share nothing but W_O, a matrix of
which each has its own columns: head h writes W_O[:, h] z_h. The steps are a LayerScale, or a norm of the branch, which
is held at its own scale (`frozen_norm`). What is left when all heads are taken away is the branch's bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitscope.architectures.families import block_row, mlp_row
from vitscope.errors import UnsupportedModelError
from vitscope.models.frozen_norm import FrozenNorm, frozen

Step = Tensor | FrozenNorm  # a LayerScale's gamma (C,), or a norm


@dataclass(frozen=True)
class Branches:
    """Both branches of one block, as they write."""

    weight: Tensor  # W_O (C, H * D)
    bias: Tensor | None  # b_O (C,)
    inner: FrozenNorm | None  # over all heads side by side, before W_O (EVA-02, BEiT-3)
    attn_steps: tuple[Step, ...]
    mlp_bias: Tensor | None  # b_out (C,)
    mlp_steps: tuple[Step, ...]

    @property
    def linear(self) -> bool:
        """Is what attention writes linear in z? Then heads of a mean over tokens are means of heads."""
        return self.inner is None and not _norms(self.attn_steps)

    @property
    def mlp_normed(self) -> bool:
        """Does a norm stand behind the MLP? Then its bias weighs differently in each token."""
        return _norms(self.mlp_steps)

    def heads(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z (..., H, D) -> what each head adds (..., H, C), and what the bias adds (..., C)."""
        width, (heads, size) = len(self.weight), z.shape[-2:]
        offset = z.new_zeros(width) if self.bias is None else self.bias
        if self.inner is None:
            parts = torch.einsum("...hd,chd->...hc", z, self.weight.view(width, heads, size))
        else:
            alone = z.unsqueeze(-2) * torch.eye(heads, dtype=z.dtype, device=z.device).unsqueeze(-1)  # (..., H, H, D)
            scale = self.inner.inverse_scale(z.flatten(-2)).unsqueeze(-2)  # (..., 1, 1)
            parts = self.inner.linear(alone.flatten(-2), scale) @ self.weight.mT
            offset = offset if self.inner.bias is None else offset + self.weight @ self.inner.bias
        total = parts.sum(-2) + offset if _norms(self.attn_steps) else None
        for step, scale in _passed(self.attn_steps, total):
            parts = parts * step if isinstance(step, Tensor) else step.linear(parts, scale.unsqueeze(-2))
            offset = _offset(step, offset, scale)
        return parts, offset.expand(*parts.shape[:-2], width)

    def mlp_offset(self, like: Tensor, bare: Tensor | None) -> Tensor:
        """What the bias of the MLP's last layer, and of a norm behind it, adds: like `like` (..., C).

        bare: mlp.hook_out, where a norm stands behind the MLP.
        """
        offset = like.new_zeros(like.shape[-1]) if self.mlp_bias is None else self.mlp_bias
        for step, scale in _passed(self.mlp_steps, bare):
            offset = _offset(step, offset, scale)
        return offset.expand_as(like)


def branches_of(block: nn.Module, index: int) -> Branches:
    """Read off a block, or UnsupportedModelError: it says where the block does something that is not known."""
    row = block_row(block)
    try:
        projection: Any = block.get_submodule(row.attn_proj)
    except AttributeError as error:
        raise UnsupportedModelError(
            f"block {index} ({type(block).__name__}) has no {row.attn_proj!r}, the linear layer that brings its heads "
            "together: name it in the block's row, BlockRow(attn_proj=...)"
        ) from error
    attention: Any = block.get_submodule(row.attn)
    if getattr(attention, "gate", None) is not None:
        raise UnsupportedModelError(
            f"the attention of block {index} has a gate between its heads and its projection, which is not linear in "
            "what the heads read"
        )
    last = mlp_row(mlp := block.get_submodule(row.mlp))
    out: Any = mlp.get_submodule(last[1]) if last else None
    return Branches(
        weight=_columns(projection, index),
        bias=projection.bias,
        inner=frozen(getattr(attention, "norm", None) or nn.Identity()),
        attn_steps=tuple(_steps(block, row.attn_steps)),
        mlp_bias=getattr(out, "bias", None),
        mlp_steps=tuple(_steps(block, row.mlp_steps)),
    )


def _columns(projection: Any, index: int) -> Tensor:
    """The weights (C, H * D) of a linear layer, or of GPT-2's Conv1D, which keeps them the other way round."""
    if isinstance(projection, nn.Linear):
        return projection.weight
    if type(projection).__name__ == "Conv1D":
        return projection.weight.mT
    raise UnsupportedModelError(f"the projection of block {index} is {type(projection).__name__}, no linear layer")


def _steps(block: Any, names: Sequence[str]) -> Iterator[Step]:
    for name in names:
        part = getattr(block, name, None)
        if isinstance(gamma := getattr(part, "gamma", part), Tensor):  # timm's LayerScale, or a bare parameter
            yield gamma
        elif isinstance(part, nn.Module) and (norm := frozen(part)) is not None:
            yield norm


def _norms(steps: Sequence[Step]) -> bool:
    return any(isinstance(step, FrozenNorm) for step in steps)


def _passed(steps: Sequence[Step], x: Tensor | None) -> Iterator[tuple[Step, Tensor]]:
    """The steps, each with the inverse scale that it has for x (..., C), which passes through them."""
    for step in steps:
        if isinstance(step, Tensor):
            yield step, step
            x = None if x is None else x * step
        else:
            assert x is not None, "a norm behind a branch needs the branch's own output"
            yield step, (scale := step.inverse_scale(x))
            x = _offset(step, x, scale)


def _offset(step: Step, offset: Tensor, scale: Tensor) -> Tensor:
    """A bias behind a step: what becomes of it, and what the step adds of its own."""
    if isinstance(step, Tensor):
        return offset * step
    passed = step.linear(offset, scale)
    return passed if step.bias is None else passed + step.bias
