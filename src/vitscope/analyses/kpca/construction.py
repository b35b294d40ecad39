"""The values for which the theorem does hold.

Theorem 1 of Teo & Nguyen (NeurIPS 2024): softmax attention equals the projection of phi(q_i) on the principal axes
u_d = sum_j a_dj phi~(k_j) of the centred key features, if

    v_dj = (a_dj - mean_j' a_dj') / g(k_j)                                                            (8)

For the u_d to have unit length, a_d.K~a_d = 1: a_d is the unit eigenvector divided by the root of its eigenvalue. Then
attention with these values *is* kernel PCA, and Bessel's inequality ||h_i||^2 <= ||phi(q_i)||^2 holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from vitscope.analyses.kpca.eigen import numerical_rank
from vitscope.analyses.kpca.gram import check_keys
from vitscope.analyses.kpca.keygram import KeyGram
from vitscope.errors import VitscopeError

Norm = Literal["kpca", "match"]


def theoretical_values(vectors: Tensor, log_g: Tensor, log_scale: Tensor | None = None) -> Tensor:
    """V^ of Eq. 8 from coefficient vectors a_d as columns (..., N, D), times exp(log_scale) (...).

    With `log_scale` = min_j log g(k_j) (see `unit_scale`) the largest weight is 1: for measures that do not see a
    common factor, so that long keys do not make everything underflow.
    """
    log_weight = -log_g if log_scale is None else log_scale[..., None] - log_g  # (..., N)
    return (vectors - vectors.mean(-2, keepdim=True)) * log_weight.exp()[..., None]


def unit_scale(log_g: Tensor) -> Tensor:
    """The log factor that makes the largest 1 / g(k_j) of each head 1: (..., N) -> (...)."""
    return log_g.amin(-1)


def construct(keys: Tensor, axes: int | None = None) -> Tensor:
    """Values (..., N, axes) with which attention on these keys (..., N, D) is exactly kernel PCA. float64.

    `axes` is D_v, by default the head size. There are at most N - 1 axes, fewer if the keys do not span as many:
    columns beyond them are zero.
    """
    check_keys(keys)
    n, count = keys.shape[-2], axes or keys.shape[-1]
    if n < count:
        raise VitscopeError(
            f"Kernel PCA of {n} keys has at most {n - 1} axes, but {count} were asked for: the theorem needs "
            f"D_v <= N (Remark 2). Give axes={n - 1} or fewer."
        )
    lead = keys.shape[:-2]
    heads = keys.reshape(-1, 1, *keys.shape[-2:])  # (n, 1, N, D)
    gram = KeyGram(heads, vectors=count)
    assert gram.vectors is not None
    real = torch.arange(count, device=gram.vectors.device) < numerical_rank(gram.eigenvalues)[..., None]
    root = torch.where(real, gram.eigenvalues[..., :count], torch.inf).sqrt()  # a rounding eigenvalue has no axis
    # a_d = vector / sqrt(eigenvalue), eigenvalue = exp(log_scale) * root^2
    values = theoretical_values(gram.vectors / root[..., None, :], gram.log_g, -gram.log_scale / 2)
    return values.reshape(*lead, n, count)


def constructed_values(
    norm: Norm = "match", blocks: Sequence[int] | None = None
) -> dict[str, Callable[[Tensor, Any], Tensor | None]]:
    """Edits that replace heads' values by the theorem's, for `with model.edits(constructed_values()):`.

    `kpca` puts them in as they are: they are smaller than learnt values by orders of magnitude, so the attention
    branch all but vanishes. `match` (default) gives each head's matrix the Frobenius norm of the learnt one. `blocks`
    are those whose heads are changed, all by default.
    """
    keys: dict[int | None, Tensor] = {}

    def see_keys(k: Tensor, point: Any) -> None:
        keys[point.block] = k

    def replace_values(v: Tensor, point: Any) -> Tensor:
        new = construct(keys.pop(point.block), v.shape[-1])
        if norm == "match":
            size = new.norm(dim=(-2, -1), keepdim=True)
            new = new * (v.double().norm(dim=(-2, -1), keepdim=True) / torch.where(size > 0, size, 1.0))
        return new.to(v.device, v.dtype)

    places = ["*"] if blocks is None else blocks
    return {f"blocks.{i}.attn.hook_k": see_keys for i in places} | {
        f"blocks.{i}.attn.hook_v": replace_values for i in places
    }
