"""What a token may look at: hiding masks, additive biases and causality, in the form that the fused call takes.

A *mask* hides keys from queries (boolean: True may look; or additive with -inf). A *bias* is a finite term that a model
learnt for its scores (BEiT, relative positions). `scaled_dot_product_attention` takes both through one argument; here
they stay apart, because whatever is averaged over keys must be averaged over the *visible* ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

# exp(-10,000) is 0 in every floating-point format: an additive mask at or below it hides (-inf, finfo.min, -1e9 do)
HIDING = -1e4


def visible_keys(mask: Tensor) -> Tensor:
    """True where a query may look at a key; of the mask's own shape, which broadcasts to (B, H, N, N)."""
    return mask if mask.dtype == torch.bool else mask > HIDING


def hides_anything(mask: Tensor | None) -> bool:
    """Whether a mask hides any key from any query. Reads the mask, so a GPU has to catch up first."""
    return mask is not None and not bool(visible_keys(mask).all())


def merge(mask: Tensor | None, bias: Tensor | None, is_causal: bool, like: Tensor) -> tuple[Tensor | None, bool]:
    """(attn_mask, is_causal) for the fused call, which takes either of them; what one of them hides is hidden.

    like: the keys (B, H, N, D), for size and device of a causal mask that has to be joined to a mask or a bias.
    """
    if bias is None and mask is None:
        return None, is_causal
    if is_causal:
        mask = with_causality(mask, like)
    if bias is None or mask is None:
        return (mask if bias is None else bias), False
    return (bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask), False


def with_causality(mask: Tensor | None, like: Tensor) -> Tensor:
    """A mask that hides later tokens as well; `like` (..., N, D) says how many there are."""
    n = like.shape[-2]
    earlier = torch.ones(n, n, dtype=torch.bool, device=like.device).tril_()
    if mask is None:
        return earlier
    return mask & earlier if mask.dtype == torch.bool else mask.masked_fill(~earlier, float("-inf"))


def mean_over_visible(x: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Mean of x (B, H, N, D) over the features of those tokens that a token may see.

    One number per head, (B, H, 1, 1), where every token sees all; else one per token, (B, H, N, 1): with a causal mask
    the mean over the prefix, so that no later token is felt. Sums in at least float32: a sum over all tokens overflows
    float16.
    """
    precise = torch.promote_types(x.dtype, torch.float32)
    if is_causal and mask is not None:
        mask, is_causal = with_causality(mask, x), False
    if is_causal:
        rows = x.mean(-1, keepdim=True, dtype=precise)  # (B, H, N, 1)
        seen = torch.arange(1, x.shape[-2] + 1, dtype=precise, device=x.device)  # tokens in each prefix
        return rows.cumsum(-2) / seen[:, None]
    if mask is None:
        return x.mean((-2, -1), keepdim=True, dtype=precise)
    rows = x.mean(-1, keepdim=True, dtype=precise)
    weights = visible_keys(mask).to(precise)  # (..., N or 1, N)
    # a token that may see nothing has no mean: 0 / 1, and its output is undefined anyway
    return (weights @ rows) / weights.sum(-1, keepdim=True).clamp_min(1)
