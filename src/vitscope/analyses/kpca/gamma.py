"""Are the vectors behind the learned values eigenvectors of the Gram matrix?

If V has the form of the theorem, v_dj = (a_dj - mean a_d) / g(k_j), the coefficients come back as
a_d = (I - 1_N)^+ G^-1 V[:, d] with G = diag(1 / g(k_j)); and if they are eigenvectors, K~ a_d = lambda_d N a_d, then

    gamma_i = (K~ a_d)_i / (N a_di)

is the same number lambda_d for every token i (Teo & Nguyen 2024, section 2.2.2). The published evidence is that
|gamma_i - gamma_j| is small. But gamma itself is tiny (K~ has entries of order 1 / N^2), for *any* vector: random ones
pass the test as well. What tells eigenvectors from others is relative: |gamma_i - gamma_j| / max(|gamma_i|, |gamma_j|),
or the residual

    ||K~ a - rho a|| / ||K~ a||,   rho = a.K~a / a.a   (the sine of the angle between a and K~ a; 0 for an eigenvector).

I - 1_N is a projector of rank N - 1: the published inverse does not exist. Its pseudo-inverse is itself, and what it
loses, the mean of G^-1 V, must be zero for any V of the theorem's form: `off_centre` says how far it is from that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitscope.analyses.kpca.alignment import ratio
from vitscope.analyses.kpca.statistics import pair_differences, relative_pair_differences

NOISE = 0.1  # of the published perturbation


def recovered_vectors(v: Tensor, log_g: Tensor) -> tuple[Tensor, Tensor]:
    """a^ = (I - 1_N) G^-1 V up to a factor per head (..., N, D), and its `off_centre` (..., D).

    off_centre: the share of ||G^-1 V[:, d]|| that lies in the mean, from 0 (as the theorem needs) to 1.
    """
    scaled = v * (log_g - log_g.amax(-1, keepdim=True)).exp()[..., None]  # g(k_j) v_j, the largest g being 1
    mean = scaled.mean(-2, keepdim=True)
    size = mean.abs() * scaled.shape[-2] ** 0.5
    return scaled - mean, ratio(size, scaled.norm(dim=-2, keepdim=True)).squeeze(-2)


def perturbed_vectors(vectors: Tensor, noise: Tensor) -> Tensor:
    """Orthonormal columns from eigenvectors + 0.1 noise, the noise standard normal: (..., N, D)."""
    return torch.linalg.qr(vectors + NOISE * noise)[0]


def gamma(matrix: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """gamma (..., D, N) and the residual (..., D) of vectors (..., N, D) under a symmetric matrix (..., N, N).

    gamma is not finite where a vector's entry is zero: there the equation says nothing about it.
    """
    a = vectors.mT.contiguous()  # (..., D, N)
    image = a @ matrix  # K~ a, K~ being symmetric
    length = a.square().sum(-1)
    rho = ratio((a * image).sum(-1), length)
    residual = ratio((image - rho[..., None] * a).norm(dim=-1), image.norm(dim=-1))
    return image / (a * a.shape[-1]), residual


def gamma_statistics(matrix: Tensor, vectors: Tensor, log_scale: Tensor) -> dict[str, Tensor]:
    """Per axis (..., D), of K~ = exp(log_scale) * matrix: pairwise |gamma_i - gamma_j| and what to hold it against.

    `size` is the mean |gamma_i|: an absolute difference that is not small beside it is not small.
    """
    g, residual = gamma(matrix, vectors)
    scale = log_scale.exp()[..., None]
    absolute, absolute_std = pair_differences(g)
    relative, relative_std = relative_pair_differences(g)
    finite = g.isfinite()
    size = torch.where(finite, g.abs(), 0.0).sum(-1) / finite.sum(-1).clamp_min(1)
    return {
        "absolute": absolute * scale,
        "absolute_std": absolute_std * scale,
        "relative": relative,
        "relative_std": relative_std,
        "size": size * scale,
        "residual": residual,
    }
