"""Attention written out, for an attention that is no softmax and therefore makes no fused call.

It stands where `scaled_dot_product_attention` stands in others, and a tracer sees it in the same way: as a function
that torch lets a mode override. Without a tracer that costs one look at a flag.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

Weigh = Callable[[Tensor], Tensor]
Scores = Callable[[Tensor, Tensor], Tensor]


def weighted_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    weigh: Weigh,
    scores: Scores | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    """weigh(scores(q, k) + bias) v: (B, H, N, D) each -> (B, H, N, D). The masks are those of the fused call."""
    if has_torch_function_variadic(query, key, value):
        return handle_torch_function(
            weighted_attention, (query, key, value), query=query, key=key, value=value, weigh=weigh, scores=scores,
            attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal,
        )  # fmt: skip
    bias = additive_bias(attn_mask, is_causal, query, key)
    return weighted_sum(weigh(attention_scores(query, key, bias, scores=scores)), value, dropout_p)


def additive_bias(mask: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask of a scaled_dot_product_attention call as what is added to the scores, or None."""
    if causal:
        n, m = q.shape[-2], k.shape[-2]
        return q.new_full((n, m), float("-inf")).triu_(1)
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, float("-inf"))


def attention_scores(
    q: Tensor, k: Tensor, bias: Tensor | None = None, scale: float | None = None, scores: Scores | None = None
) -> Tensor:
    """q k^T * scale + bias, with scale 1/sqrt(D) unless given.  (B, H, N, D), (B, H, M, D) -> (B, H, N, M)

    scores: a function of q and k in the place of q k^T * scale.
    """
    if scores is not None:
        found = scores(q, k)
    else:
        found = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
    return found if bias is None else found + bias


def softmax_weights(scores: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(scores), with zeros, as the fused call has them, for a query to which the bias shows no key at all.

    Such a query is padding. NaN in its place would spread: 0 * NaN is NaN.
    """
    weights = scores.softmax(-1)
    if bias is None:
        return weights
    blind = bias.isneginf().all(-1, keepdim=True)
    return weights.masked_fill(blind, 0.0) if bool(blind.any()) else weights


def weighted_sum(pattern: Tensor, v: Tensor, dropout_p: float = 0.0) -> Tensor:
    """What attention makes of a pattern (B, H, N, M) and values (B, H, M, D): (B, H, N, D)."""
    return (F.dropout(pattern, dropout_p) if dropout_p else pattern) @ v
