"""Principal component pursuit by alternating directions, with the low-rank step left open.

    minimise |L|_* + lambda |S|_1   subject to   L + S = K

The augmented Lagrangian <Y, K - L - S> + mu/2 |K - L - S|^2 is minimised over S, then over L, then Y goes up:

    S <- shrink(K - L + Y/mu, t)          t = lambda / mu
    L <- low_rank(K - S + Y/mu)           singular values lowered by 1 / mu
    Y <- Y + mu (K - L - S)

mu does not change, so everything is written in U = Y/mu: U <- U + (K - L - S). mu then appears in the threshold only.
RPC-Attention puts softmax attention in the place of `low_rank`, and its authors another sign before Y/mu in the second
line: see `vitscope.attention.rpc`. (Candes, Li, Ma & Wright, "Robust principal component analysis?", 2011.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Shrink(torch.autograd.Function):
    """Its derivative in a few passes over memory; that of `clamp` with tensors for bounds costs more than attention."""

    @staticmethod
    def forward(x: Tensor, threshold: Tensor) -> Tensor:
        return x - torch.maximum(x, -threshold).clamp_max_(threshold)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.shape = inputs[1].shape

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        sign = ctx.saved_tensors[0].sign()  # 0 where x stays inside
        outwards = grad * sign
        return outwards * sign, -outwards.sum_to_size(ctx.shape)


def shrink(x: Tensor, threshold: Tensor) -> Tensor:
    """sgn(x) max(|x| - threshold, 0): what of x sticks out of [-threshold, threshold]. threshold broadcasts to x."""
    return _Shrink.apply(x, threshold)


def pursue(
    k: Tensor, low_rank: Callable[[Tensor], Tensor], threshold: Tensor, sign: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """(cleaned keys, S) of the last iteration; `low_rank(cleaned keys)` is the L that it ends with.

    k: (..., N, D), any batch of matrices. threshold: broadcasts to k. sign: of Y/mu in the cleaned keys.
    The last low-rank step is the caller's, who may want it different (attention applies dropout there and only there).
    """
    sparse = shrink(k, threshold)  # L = Y = 0 at the start
    clean = k - sparse
    dual: Tensor | None = None  # U = Y / mu
    for _ in range(iterations - 1):
        rest = k - low_rank(clean)
        dual = rest - sparse if dual is None else (dual + rest).sub_(sparse)
        sparse = shrink(rest + dual, threshold)
        clean = (k - sparse).add_(dual, alpha=sign)
    return clean, sparse
