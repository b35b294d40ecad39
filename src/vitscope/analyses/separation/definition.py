"""How far apart are the classes? Separation fuzziness (He & Su, PNAS 2023, arXiv 2210.17020).

With n_k images of class k, class means m_k and the mean m of all n images,

    SSB = sum_k w_k (m_k - m)(m_k - m)^T,   SSW = sum_k w_k / n_k sum_i (x_ki - m_k)(x_ki - m_k)^T,
    D   = trace(SSW pinv(SSB)),

small where classes are tight and far apart. `averaging="class"` takes w_k = 1/K, every class alike (Varam et al. 2025);
`"samples"` takes w_k = n_k/n (He & Su). They agree for classes of equal size.

SSB has rank at most K - 1, so nothing is inverted in d dimensions. Let A be the (K, d) matrix with rows
sqrt(w_k) (m_k - m) and A = U S V^T its thin singular value decomposition. Then pinv(SSB) = V S^-2 V^T and

    D = sum_r (v_r^T SSW v_r) / s_r^2,

where v_r^T SSW v_r is the scatter of the features along the class axis v_r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vitscope.errors import UnsuitableDataError, VitscopeError

Averaging = Literal["class", "samples"]
CUTOFF = 1e-10  # of SSB's largest eigenvalue: the pseudo-inverse drops smaller ones, as the published program does
ROUNDING = 1e-12  # of the mean square length: a spread below it is that of equal features
COINCIDENT = 1e-24  # SSB along its first axis over SSW: means of float64 are known to about 1e-32 of that


@dataclass(frozen=True)
class ClassAxes:
    """Principal axes of the class means: what is left of SSB once it is known."""

    axes: Tensor  # (R, d) orthonormal
    strengths: Tensor  # (R,) eigenvalues of SSB, all above the cutoff
    means: Tensor  # (K, d)
    weights: Tensor  # (K,) w_k, summing to 1


def check_averaging(averaging: str) -> Averaging:
    if averaging not in get_args(Averaging):
        raise VitscopeError(f"separation: averaging={averaging!r} is unknown. Choose 'class' or 'samples'.")
    return averaging  # type: ignore[return-value]


def check_sizes(counts: Tensor) -> int:
    """How many classes have images. Refused: fewer than two, or no class with two images."""
    present = int((counts > 0).sum())
    if present < 2:
        raise UnsuitableDataError(f"separation needs images of two classes or more; here {present} class(es) have any.")
    if int(counts.max()) < 2:
        raise UnsuitableDataError(
            f"separation needs two images of a class to see how far they scatter; here {present} classes have one "
            "each. Choose more images (--images, --per-class)."
        )
    return present


def image_weights(sizes: Tensor, averaging: Averaging) -> Tensor:
    """(K,) what one image of each class weighs: 1/n_k where classes count alike, else 1."""
    sizes = sizes.double()
    return torch.where(sizes > 0, 1 / sizes, 0) if averaging == "class" else (sizes > 0).double()


def class_axes(counts: Tensor, sums: Tensor, weights: Tensor) -> ClassAxes:
    """Axes from class sizes (K,), sums of features (K, d) and the weight of an image (K,); empty classes drop out."""
    present = counts > 0
    counts, sums = counts[present].double(), sums[present].double()
    means = sums / counts[:, None]  # (K, d)
    shares = counts * weights[present]
    shares = shares / shares.sum()  # w_k
    scaled = shares.sqrt()[:, None] * (means - sums.sum(0) / counts.sum())  # (K, d)
    _, s, vt = torch.linalg.svd(scaled, full_matrices=False)
    strengths = s.square()  # descending
    kept = strengths > CUTOFF * strengths[:1]
    return ClassAxes(vt[kept], strengths[kept], means, shares)


def fuzziness_along(axes: ClassAxes, scatter: Tensor) -> float:
    """D from SSW along each axis (R,). NaN where the class means coincide, exactly or to rounding."""
    if len(axes.strengths) == 0 or not axes.strengths[0] > COINCIDENT * scatter.clamp_min(0).sum():
        return float("nan")
    return float((scatter.clamp_min(0) / axes.strengths).sum())


def fuzziness(features: Tensor, labels: Tensor, averaging: Averaging = "class") -> float:
    """Separation fuzziness of features (n, d) with integer labels (n,), in float64. NaN where it is undefined.

    Labels may be any whole numbers. Needs two classes, and two images of one of them.
    """
    features = features.double()
    _, classes, counts = labels.unique(return_inverse=True, return_counts=True)
    check_sizes(counts)
    weights = image_weights(counts, check_averaging(averaging))
    sums = torch.zeros(len(counts), features.shape[1], dtype=torch.float64).index_add_(0, classes, features)
    axes = class_axes(counts, sums, weights)
    deviations = (features - axes.means[classes]) @ axes.axes.T  # (n, R)
    if (features - features.mean(0)).square().mean() <= ROUNDING * features.square().mean():
        return float("nan")
    each = weights[classes, None] / (counts * weights).sum()  # (n, 1), summing to 1
    return fuzziness_along(axes, (each * deviations**2).sum(0))


def fuzziness_from_moments(counts: Tensor, weights: Tensor, sums: Tensor, square: Tensor) -> float:
    """D from sums alone, so that nothing but sums need be kept. NaN where all features are the same.

    counts (K,), weights of an image (K,), sums of features (K, d), and sum_i weight_i x_i x_i^T over all images (d, d).
    The weights only decide how much a class counts: they may come from planned class sizes (an image that could not be
    read then takes its share of its class's weight with it).
    """
    total = (counts * weights).sum()
    mean = (weights[:, None] * sums).sum(0) / total
    length = square.diagonal().sum() / total  # mean of |x|^2
    if length - mean.square().sum() <= ROUNDING * length:
        return float("nan")
    axes = class_axes(counts, sums, weights)
    second = torch.einsum("rd,de,re->r", axes.axes, square, axes.axes) / total
    centres = axes.weights @ (axes.means @ axes.axes.T) ** 2  # (R,)
    return fuzziness_along(axes, second - centres)
