"""Softmax attention: the fused step that every variant is built on, and the variant that is nothing else."""

from __future__ import annotations

from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

from vitscope.attention.masks import merge
from vitscope.attention.module import AttentionModule, Look
from vitscope.attention.registry import register_attention


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """softmax(q k^T / sqrt(D) + bias) v, fused: (B, H, N, D) each -> (B, H, N, D). No N x N matrix is kept.

    mask: hides keys from queries; boolean (True may look) or additive, broadcasts to (B, H, N, N).
    bias: a finite term of the scores, broadcasts to (B, H, N, N).
    """
    attn_mask, is_causal = merge(mask, bias, is_causal, k)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal)


@register_attention("softmax")
class SoftmaxAttention(AttentionModule):
    """What timm computes, in the frame of the other variants: the baseline of every comparison."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **look: Unpack[Look]) -> Tensor:
        return softmax_attention(q, k, v, **look)
