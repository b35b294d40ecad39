"""How alike are two sets of vectors for the same tokens? X and Y are (..., N, D), one row per token.

Two families. The first is what the published reproduction reports: it depends on the sign and order of Y's columns
(cosines, Pearson, distances), which eigenvectors leave open, or at least on their relative length (CKA). The second
leaves open what eigenvectors leave open: principal angles and CCA see only the spaces that the columns span (any
invertible mixing of columns changes nothing), Procrustes forgives a rotation, component matching forgives sign, order
and length.

The same token twice in a text may have the same values (in the first block of models with rotary positions). What is
then zero comes out as rounding, and a measure must not take that for a distance or a direction: `rounding` is the
relative size up to which it does not. 0 looks at everything.

CKA: Kornblith et al., ICML 2019. CCA and principal angles: Bjorck & Golub 1973. Procrustes: Schonemann 1966.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.analyses.kpca.gram import centre_
from vitscope.analyses.kpca.matching import best_matching


def centre_columns(x: Tensor) -> Tensor:
    return x - x.mean(-2, keepdim=True)


def frobenius(x: Tensor) -> Tensor:
    return x.square().sum((-2, -1)).sqrt()


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0 (then a is, too: nothing is similar to nothing)."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)


def cosines(x: Tensor, y: Tensor) -> Tensor:
    """Cosine of each token's two vectors: (..., N)."""
    return (unit_rows(x) * unit_rows(y)).sum(-1)


def unit_rows(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny)


def shortened_rows(x: Tensor, lengths: Tensor, added: float) -> Tensor:
    """Rows in the direction of those of X, for vectors of such `lengths` (..., N) divided by length + `added`."""
    return unit_rows(x) * (lengths / (lengths + added))[..., None]


def linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """||X'Y||^2 / (||X'X|| ||Y'Y||) of centred columns: (...)."""
    x, y = centre_columns(x), centre_columns(y)
    return ratio(frobenius(x.mT @ y).square(), frobenius(x.mT @ x) * frobenius(y.mT @ y))


def rounding_of(dtype: torch.dtype) -> float:
    """How far apart two vectors that should be equal may be, relative to their length."""
    return min(64 * torch.finfo(dtype).eps, 1e-4)


def rbf_gram(x: Tensor, rounding: float = 0.0) -> Tensor:
    """Centred RBF kernel exp(-d^2 / (2 sigma^2)), sigma^2 = (lower) median of the positive d^2: (..., N, N)."""
    inner = x @ x.mT
    lengths = inner.diagonal(dim1=-2, dim2=-1)
    lengths = lengths.clone()
    squared = inner.mul_(-2).add_(lengths[..., :, None]).add_(lengths[..., None, :]).clamp_min_(0)
    squared.diagonal(dim1=-2, dim2=-1).zero_()
    if rounding:  # inner products have lost half the digits of a distance
        least = max(rounding**2, 64 * torch.finfo(x.dtype).eps)
        squared.masked_fill_(squared <= least * (lengths[..., :, None] + lengths[..., None, :]), 0.0)
    return centre_(squared.div_(-2 * median_of_pairs(squared)[..., None, None]).exp_())


def median_of_pairs(squared: Tensor) -> Tensor:
    """Lower median of the positive entries above the diagonal of symmetric matrices with zero diagonal: (...).

    Sorted, a matrix of N points begins with its zeros, and every positive pair follows twice. 1 where there are none.
    """
    n = squared.shape[-1]
    flat = squared.flatten(-2)
    zeros = (flat == 0).sum(-1)  # the diagonal, and pairs of equal points
    positive = (n * n - zeros) // 2
    place = (zeros + (positive - 1) // 2 * 2).clamp(0, n * n - 1)
    if flat.device.type == "cpu" and (zeros == n).all():  # the common case: one place for all
        k = int(place.flatten()[0])
        return torch.from_numpy(np.partition(flat.numpy(), k, axis=-1)[..., k].copy())
    found = flat.sort(-1).values.gather(-1, place[..., None]).squeeze(-1)
    return torch.where(found > 0, found, 1.0)


def kernel_cka(gram_x: Tensor, gram_y: Tensor) -> Tensor:
    """CKA of two centred kernel matrices, as `rbf_gram` makes them: (...)."""
    return ratio((gram_x * gram_y).sum((-2, -1)), frobenius(gram_x) * frobenius(gram_y))


def pearson(x: Tensor, y: Tensor) -> Tensor:
    """Correlation of all entries: (...)."""
    x, y = x.flatten(-2), y.flatten(-2)
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return ratio((x * y).sum(-1), x.norm(dim=-1) * y.norm(dim=-1))


def pearson_of_tokens(x: Tensor, y: Tensor) -> Tensor:
    """Correlation of the entries of each token's two vectors: (..., N)."""
    return cosines(*(z - z.mean(-1, keepdim=True) for z in (x, y)))


def orthonormal_basis(x: Tensor, rounding: float = 0.0) -> Tensor:
    """Columns that span what the columns of X span: (..., N, D). With `rounding`, those that add nothing are zero."""
    q, r = torch.linalg.qr(x)
    if not rounding:
        return q
    added = r.diagonal(dim1=-2, dim2=-1).abs() > rounding * x.norm(dim=-2)
    return q * added[..., None, :]


def principal_cosines(basis_x: Tensor, basis_y: Tensor) -> Tensor:
    """Cosines of the principal angles between two spaces given by orthonormal bases, largest first: (..., D).

    With bases of centred columns these are the canonical correlations.
    """
    return torch.linalg.svdvals(basis_x.mT @ basis_y).clamp_max(1.0)


def procrustes(x: Tensor, y: Tensor) -> Tensor:
    """max over rotations R of <X, Y R> / (||X|| ||Y||), centred columns: 1 if Y is X turned and scaled. (...)"""
    x, y = centre_columns(x), centre_columns(y)
    return ratio(torch.linalg.svdvals(x.mT @ y).sum(-1), frobenius(x) * frobenius(y))


def component_matching(x: Tensor, y: Tensor) -> Tensor:
    """|correlation| of each column of X with its partner in the best matching with the columns of Y: (..., D)."""
    x, y = unit_rows(centre_columns(x).mT), unit_rows(centre_columns(y).mT)
    return best_matching((x @ y.mT).abs())
