"""RPC-Attention: keys are split into a clean part and sparse outliers while attending, iteration by iteration.

Teo & Nguyen, "Unveiling the Hidden Structure of Self-Attention via Kernel PCA" (NeurIPS 2024, arXiv 2406.13762), run
principal component pursuit on the keys with attention in the place of its low-rank step. What their programs compute
differs from what their paper writes, and neither minimises the Lagrangian that the paper states:

| variant | threshold of S | mu | sign of Y/mu in the cleaned keys |
|---|---|---|---|
| `code` | lambda * mu | N C / (4 |K|_1), C the full width | - |
| `paper` | lambda / mu | N D / (4 |K|_1), D the head size | - |
| `exact` | lambda / mu | N D / (4 |K|_1) | + |

`code` is the default because the published results were obtained with it. docs/attention.md shows what follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from vitscope.attention.masks import hides_anything, mean_over_visible, merge
from vitscope.attention.module import AttentionModule, Look
from vitscope.attention.pursuit import pursue
from vitscope.attention.registry import register_attention
from vitscope.attention.softmax import softmax_attention
from vitscope.errors import VitscopeError, suggest

Variant = Literal["code", "paper", "exact"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
SIGNS: dict[Variant, float] = {"code": -1.0, "paper": -1.0, "exact": 1.0}


def rpc_threshold(
    k: Tensor,
    lambd: float,
    variant: Variant = "code",
    *,
    width: int | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Threshold of S for keys (B, H, N, D): (B, H, 1, 1), or (B, H, N, 1) where not every token sees all.

    With m the mean of |K| over the visible tokens, 1/mu is 4 m (`paper`, `exact`) and mu is C / (4 m D) (`code`).
    width: C of `code`; heads times head size unless given.
    """
    if variant != "code":
        # keys that are all zero are no division by zero here
        return (4 * lambd * mean_over_visible(k.abs(), mask, is_causal)).to(k.dtype)
    if is_causal or hides_anything(mask):
        raise VitscopeError(
            "variant='code' takes mu over all tokens, so that hidden and later tokens would be felt. "
            "With a causal or hiding mask use variant='paper' or 'exact', which take it over the visible ones."
        )
    mean = mean_over_visible(k.abs())
    heads, _, size = k.shape[-3:]
    # Keys that are all zero: no finite threshold is reached, S is empty. The floor is the fourth root of the smallest
    # number, so that neither the quotient nor its derivative (which goes with the square) overflows.
    floor = torch.finfo(mean.dtype).tiny ** 0.25
    threshold = lambd * (width or heads * size) / (4 * size) / mean.clamp_min(floor)
    return threshold.clamp_max(torch.finfo(k.dtype).max).to(k.dtype)


def rpc_attention(
    k: Tensor,
    v: Tensor,
    q: Tensor | None = None,
    *,
    iterations: int = 4,
    lambd: float = 4.0,
    variant: Variant = "code",
    width: int | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """Principal attention pursuit: (B, H, N, D) each -> (B, H, N, D), `iterations` fused attentions.

        S <- shrink(K - L + Y/mu, threshold);  K^ <- K - S -+ Y/mu
        L <- softmax(Q K^^T / sqrt(D) + bias) V;  Y <- Y + mu (K - L - S)

    from L = Y = 0; the output is the last L. With q=None, Q is K^ itself (symmetric). Dropout is in the last step only.
    K = L + S mixes keys with values, so both have the same head size. No recovery of a low-rank part is claimed: the
    attention step is no singular-value thresholding.
    """
    if k.shape != v.shape:
        raise VitscopeError(f"K = L + S needs keys and values of one shape, got {tuple(k.shape)}, {tuple(v.shape)}.")
    RPCOptions(iterations=iterations, lambd=lambd, variant=variant)  # refuses what cannot be meant
    threshold = rpc_threshold(k, lambd, variant, width=width, mask=mask, is_causal=is_causal)
    mask, is_causal = merge(mask, bias, is_causal, k)  # once, not in every iteration

    def attend(clean: Tensor, p: float = 0.0) -> Tensor:
        return softmax_attention(clean if q is None else q, clean, v, mask=mask, is_causal=is_causal, dropout_p=p)

    clean, _ = pursue(k, attend, threshold, SIGNS[variant], iterations)
    return attend(clean, dropout_p)


@dataclass(frozen=True)
class RPCOptions:
    """Published settings: 4 iterations with lambda 4 in the first layer, or 2 with lambda 3 in all layers."""

    iterations: int = 4  # each costs one attention; one is symmetric attention on shrunken keys
    lambd: float = 4.0  # how far a key entry must stick out to count as an outlier
    variant: Variant = "code"  # what was evaluated; `paper` and `exact` by choice
    symmetric: bool = True  # queries are the cleaned keys; False keeps the queries

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise VitscopeError(
                f"RPC has no variant {self.variant!r}.{suggest(str(self.variant), VARIANTS)} "
                f"Known: {', '.join(VARIANTS)}."
            )
        if isinstance(self.iterations, bool) or not isinstance(self.iterations, int) or self.iterations < 1:
            raise VitscopeError(f"RPC needs a whole number of iterations, at least 1, not {self.iterations!r}.")
        if not isinstance(self.lambd, int | float) or not 0 <= self.lambd < float("inf"):
            raise VitscopeError(f"RPC needs a finite lambda >= 0, not {self.lambd!r}.")
        if not isinstance(self.symmetric, bool):
            raise VitscopeError(f"symmetric is true or false, not {self.symmetric!r}.")


@register_attention("rpc")
class RPCAttention(AttentionModule):
    """RPC-Attention in a layer; parameters are those of symmetric attention (or of softmax attention)."""

    Options = RPCOptions

    @property
    def symmetric(self) -> bool:
        return self.options.symmetric

    @property
    def attention_calls(self) -> int:
        return self.options.iterations

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **look: Unpack[Look]) -> Tensor:
        o = self.options
        # the published C is the width of the residual stream; it is what the projections read
        return rpc_attention(
            k,
            v,
            None if o.symmetric else q,
            iterations=o.iterations,
            lambd=o.lambd,
            variant=o.variant,
            width=self.width,
            **look,
        )

    @property
    def width(self) -> int:
        projections = (self.qkv, self.kv, self.k_proj)
        return next(p.in_features for p in projections if p is not None)
