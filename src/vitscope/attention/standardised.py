"""Standardised attention: queries and keys have mean 0 and standard deviation 1 before they meet."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from vitscope.attention.module import AttentionModule, Look
from vitscope.attention.registry import register_attention
from vitscope.attention.softmax import softmax_attention


def standardise(x: Tensor) -> Tensor:
    """(x - mean) / std over the head dimension, with the divisor D - 1 and nothing added: (..., D) -> (..., D).

    A token whose entries are all equal has no deviation; it becomes zero, and its gradient stays finite.
    """
    x = x - x.mean(-1, keepdim=True)
    variance = x.square().sum(-1, keepdim=True) / max(x.shape[-1] - 1, 1)
    return x * torch.where(variance > 0, variance, 1.0).rsqrt()


def standardised_attention(q: Tensor, k: Tensor, v: Tensor, **look: Unpack[Look]) -> Tensor:
    """softmax(q' k'^T / sqrt(D) + bias) v with q', k' = standardise(q), standardise(k): (B, H, N, D) each.

    The attention inside the models that Teo & Nguyen (NeurIPS 2024) and Sarıtaş & Yıldız (ACL SRW 2025) trained to log
    the projection error; their text does not mention it. All queries and keys have the norm sqrt(D - 1).
    """
    return softmax_attention(standardise(q), standardise(k), v, **look)


@register_attention("standardised")
class StandardisedAttention(AttentionModule):
    """Parameters are those of softmax attention: only the function tells the two apart."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **look: Unpack[Look]) -> Tensor:
        return standardised_attention(q, k, v, **look)
