"""Linear probes in closed form, from sums: ridge regression for every token position without keeping an activation.

A probe regresses y in {-1, +1}^K (one against all) on the activation x in R^C of one token position, with intercept:

    min_W,b  sum_i |y_i - W^T x_i - b|^2 + alpha |W|^2

The intercept drops out after centring, and what remains needs only sums over images:

    G = sum x x^T - n m m^T,     H = sum (x - m) (y - ybar)^T,     W = (G + alpha I)^-1 H,     b = ybar - W^T m

With y_k = +-1 the cross moment follows from the sum of x per class, s_k: sum x y_k = 2 s_k - sum_j s_j. A class that
does not occur has W = 0 and b = -1 exactly, so only classes that occur are kept. With G = Q diag(l) Q^T every alpha
costs one division: W = Q diag(1 / (l + alpha)) Q^T H. The sums are float64; the published
probes made a pass over the data for each of 1,800 fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitscope.errors import VitscopeError


@dataclass
class Moments:
    """Sums over images for P token positions. Add batches with `add_batch`; two halves add up."""

    second: Tensor  # (P, C, C): sum x x^T
    classes: Tensor  # (P, K, C): sum of x per class
    counts: Tensor  # (K,): images per class

    @classmethod
    def zeros(cls, positions: int, width: int, classes: int) -> Moments:
        return cls(
            torch.zeros(positions, width, width, dtype=torch.float64),
            torch.zeros(positions, classes, width, dtype=torch.float64),
            torch.zeros(classes, dtype=torch.float64),
        )


def add_batch(second: Tensor, classes: Tensor, x: Tensor, labels: Tensor) -> None:
    """Add activations x (P, B, C) of images with class columns `labels` (B,) to the sums, in place."""
    x = x.to(torch.float64, memory_format=torch.contiguous_format)  # one pass over it also where x is a transposed view
    second.baddbmm_(x.transpose(1, 2), x)
    classes.index_add_(1, labels, x)


@dataclass(frozen=True)
class LinearProbe:
    """Weights for P positions and A regularisers."""

    weight: Tensor  # (A, P, C, K)
    bias: Tensor  # (A, P, K)

    def scores(self, x: Tensor) -> Tensor:
        """Activations (P, B, C) -> (A, P, B, K)."""
        return torch.matmul(x.to(self.weight.dtype), self.weight) + self.bias[:, :, None]


def check_alphas(alphas: Sequence[float]) -> None:
    if not alphas or any(not a > 0 for a in alphas):
        raise VitscopeError(f"alphas={list(alphas)}: ridge probes need regularisers above 0, such as 1.")


def solve(moments: Moments, alphas: Sequence[float]) -> LinearProbe:
    """Ridge with intercept for every position and alpha, float64."""
    check_alphas(alphas)
    n = moments.counts.sum()
    if n == 0:
        raise VitscopeError("Probes need training images, and none was counted.")
    total = moments.classes.sum(1)  # (P, C)
    mean = total / n
    gram = moments.second - n * mean[:, :, None] * mean[:, None, :]  # (P, C, C)
    y_mean = 2 * moments.counts / n - 1  # (K,)
    cross = 2 * moments.classes - total[:, None] - n * y_mean[:, None] * mean[:, None]  # (P, K, C): sum (x-m)(y-ybar)
    values, vectors = torch.linalg.eigh((gram + gram.transpose(1, 2)) / 2)  # (P, C), (P, C, C)
    rotated = vectors.transpose(1, 2) @ cross.transpose(1, 2)  # (P, C, K): Q^T H
    weights, biases = [], []
    for alpha in alphas:
        # a Gram matrix has no negative eigenvalue: what is below zero is rounding
        weight = vectors @ (rotated / (values.clamp(min=0) + alpha)[:, :, None])  # (P, C, K)
        weights.append(weight)
        biases.append(y_mean - (mean[:, None] @ weight)[:, 0])
    return LinearProbe(torch.stack(weights), torch.stack(biases))


def memory_bytes(positions: int, width: int, classes: int, points: int) -> int:
    """What the sums of all points take: said in the docs, and before a pass begins."""
    return 8 * points * positions * width * (width + classes)
