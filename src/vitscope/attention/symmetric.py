"""Symmetric attention: queries are keys."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from vitscope.attention.module import AttentionModule, Look
from vitscope.attention.registry import register_attention
from vitscope.attention.softmax import softmax_attention


def symmetric_attention(k: Tensor, v: Tensor, **look: Unpack[Look]) -> Tensor:
    """softmax(k k^T / sqrt(D) + bias) v, fused: (B, H, N, D) each -> (B, H, N, D).

    The attention of "SymViT" in Teo & Nguyen, "Unveiling the Hidden Structure of Self-Attention via Kernel PCA"
    (NeurIPS 2024): the Gram matrix of the keys is symmetric, so that keys span the space that they are projected on.
    """
    return softmax_attention(k, k, v, **look)


@register_attention("symmetric")
class SymmetricAttention(AttentionModule):
    """No query projection: `qkv` is 2C wide, keys first, then values, as in the published checkpoints."""

    @property
    def symmetric(self) -> bool:
        return True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **look: Unpack[Look]) -> Tensor:
        return symmetric_attention(k, v, **look)
