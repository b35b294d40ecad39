"""Attention that is no softmax: written out, so that q, k, v and pattern can be read and edited as in any other."""

from __future__ import annotations

from torch import Tensor

from vitscope.attention.masks import merge
from vitscope.capture.weighted import Scores, Weigh, weighted_attention


def explicit_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weigh: Weigh,
    *,
    scores: Scores | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """weigh(q k^T / sqrt(D) + bias) v: (B, H, N, D) each -> (B, H, N, D), with the N x N matrix formed.

    weigh: scores (B, H, N, N) -> pattern (B, H, N, N), e.g. `torch.sigmoid`. Hidden keys have the score -inf: it must
        give them 0. Rows of the pattern need not sum to 1.
    scores: a function (q, k) -> (B, H, N, N) in the place of q k^T / sqrt(D).
    mask, bias: as in `softmax_attention`.

    Any module may call it, a plain `nn.Module` too. For a softmax, the fused call is quicker and is seen as well.
    """
    attn_mask, is_causal = merge(mask, bias, is_causal, k)
    return weighted_attention(
        q, k, v, weigh=weigh, scores=scores, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal
    )
