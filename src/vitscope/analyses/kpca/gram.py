"""The Gram matrix of keys in the feature space of kernel PCA, in log space throughout.

Teo & Nguyen, "Unveiling the Hidden Structure of Self-Attention via Kernel PCA", NeurIPS 2024 (arXiv 2406.13762), with
keys k_1 .. k_N of head size D:

    k(x, y) = exp(x.y / sqrt D)      g(x) = sum_j k(x, k_j)      K_phi[i, j] = k(k_i, k_j) / (g(k_i) g(k_j))

The centred matrix is K~ = (I - 1_N) K_phi (I - 1_N), 1_N the matrix of 1/N (their Appendix B). With
s[i, j] = k_i.k_j / sqrt D,

    log g(k_i) = logsumexp_j s[i, j]        log K_phi[i, j] = s[i, j] - log g(k_i) - log g(k_j).

exp(k k^T) is never formed: it overflows for the keys of real models, and K_phi itself underflows for keys only ten
times longer. So a Gram matrix is carried as `exp(log_scale) * matrix`, the largest entry before centring being 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitscope.errors import NumericalError, VitscopeError

Variant = Literal["exact", "code"]

MODERATE = 300.0  # largest difference of s[i, i]: exp(-300) is well inside the range of float64
CODE_DENOMINATOR = 1e-6  # the published program divides by g g^T + 1e-6
CODE_DEVIATION = 1e-8  # and standardises by std + 1e-8


@dataclass(frozen=True)
class Gram:
    """K~ = exp(log_scale) * matrix for every head."""

    matrix: Tensor  # (..., N, N) float64, centred
    log_scale: Tensor  # (...,)
    log_g: Tensor  # (..., N)
    trace: Tensor  # (...,) of the *uncentred* K_phi, divided by exp(log_scale)


def double(x: Tensor) -> Tensor:
    """float64 of any input, half precision included; on the CPU where a device (Apple's) has no float64."""
    return x.detach().to("cpu" if x.device.type == "mps" else x.device, torch.float64)


def all_finite(x: Tensor) -> bool:
    """NaN and infinity survive a sum, and one sum is cheaper than a test of every entry."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def check_keys(keys: Tensor) -> None:
    if keys.ndim < 2 or not keys.dtype.is_floating_point:
        raise VitscopeError(f"Keys are (..., tokens, head size) of floats; got {tuple(keys.shape)} of {keys.dtype}.")
    if not all_finite(keys):
        raise NumericalError("The keys hold NaN or infinity. Look at the weights, or run the model in float32.")


def standardise(x: Tensor, variant: Variant = "exact") -> Tensor:
    """Each token with mean 0 and standard deviation 1 (divisor D - 1) over the head dimension: (..., N, D).

    A token whose entries are all equal has no deviation; it becomes zero.
    """
    x = double(x)
    x = x - x.mean(-1, keepdim=True)
    std = x.square().sum(-1, keepdim=True).div(x.shape[-1] - 1).sqrt()
    if variant == "code":
        return x / (std + CODE_DEVIATION)
    return x / torch.where(std > 0, std, 1.0)


def scores(x: Tensor, y: Tensor) -> Tensor:
    """x.y / sqrt D in float64: (..., N, D), (..., M, D) -> (..., N, M)."""
    return double(x) @ (double(y) / math.sqrt(x.shape[-1])).mT  # N D divisions instead of N M


def log_k_phi(keys: Tensor) -> tuple[Tensor, Tensor]:
    """log K_phi (..., N, N) and log g (..., N) of keys (..., N, D)."""
    s = scores(keys, keys)
    log_g = s.logsumexp(-1)
    return s.sub_(log_g[..., :, None]).sub_(log_g[..., None, :]), log_g


def centre(matrix: Tensor) -> Tensor:
    """(I - 1_N) K (I - 1_N) for symmetric K, (..., N, N)."""
    return centre_(matrix.clone())


def centre_(matrix: Tensor) -> Tensor:
    """`centre` in place."""
    rows = matrix.mean(-1, keepdim=True)
    return matrix.sub_(rows).sub_((rows - rows.mean(-2, keepdim=True)).mT)


def centred_gram(keys: Tensor, variant: Variant = "exact") -> Gram:
    """The centred Gram matrix of keys (..., N, D).

    `code` has the published +1e-6 in the denominator, k / (g g^T + 1e-6), in a form that cannot overflow.
    """
    if variant == "exact":
        quick = _gram_of_moderate_keys(keys)
        if quick is not None:
            return quick
    log_k, log_g = log_k_phi(keys)
    if variant == "code":
        denominator = log_g[..., :, None] + log_g[..., None, :]
        log_k = log_k + denominator - denominator.logaddexp(denominator.new_tensor(CODE_DENOMINATOR).log())
    log_scale = log_k.amax((-2, -1))
    uncentred = log_k.sub_(log_scale[..., None, None]).exp_()  # in place: the matrix is ours, and large
    trace = uncentred.diagonal(dim1=-2, dim2=-1).sum(-1)
    return Gram(centre_(uncentred), log_scale, log_g, trace)


def _gram_of_moderate_keys(keys: Tensor) -> Gram | None:
    """The same in half as many passes over the N x N entries, for keys whose squared norms are not too far apart.

    s and K_phi are positive semi-definite, so their largest entries stand on their diagonals and cost N, not N^2, to
    find. With c the largest s, E = exp(s - c) and E 1 = g exp(-c), so K_phi is E scaled by rows and columns. None where
    a row of E could underflow; what underflows elsewhere is smaller than the rest of its row by more than exp(-400).
    """
    x = double(keys)
    own = x.square().sum(-1).div_(math.sqrt(x.shape[-1]))  # (..., N) s[i, i]
    c = own.amax(-1, keepdim=True)
    if not (c - own).amax() < MODERATE:
        return None
    n = x.shape[-2]
    flat, shift = x.reshape(-1, *x.shape[-2:]), c.neg().flatten()[:, None, None].expand(-1, n, n)
    e = torch.baddbmm(shift, flat, flat.mT, alpha=1 / math.sqrt(x.shape[-1])).exp_()  # (M, N, N), entries <= 1
    log_g = e.sum(-1).view(own.shape).log_()  # less c
    log_diagonal = own - c - 2 * log_g
    log_scale = log_diagonal.amax(-1, keepdim=True)
    trace = (log_diagonal - log_scale).exp_().sum(-1)
    factor = (log_g + log_scale / 2).neg_().exp_().reshape(-1, n)  # (M, N)
    e.mul_(factor[:, :, None]).mul_(factor[:, None, :])
    matrix = centre_(e).view(*own.shape, n)
    # K_phi = exp(s - log g - log g) with log g = log_g + c, where E has exp(s - c - log_g - log_g)
    return Gram(matrix, (log_scale - c)[..., 0], log_g.add_(c), trace)
