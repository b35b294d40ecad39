"""Eigenvalues and eigenvectors of many centred Gram matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from vitscope.analyses.kpca.gram import Variant
from vitscope.errors import NumericalError

CERTAIN = 1e3  # times rounding: vectors of such eigenvalues are right to three digits


def eigenvalues(matrix: Tensor, variant: Variant = "exact") -> Tensor:
    """All eigenvalues of symmetric positive semi-definite matrices (..., N, N), largest first: (..., N).

    Rounding makes zero eigenvalues slightly negative. `exact` checks that it is only that, and sets them to zero;
    `code` takes absolute values, as published.
    """
    return order_eigenvalues(torch.linalg.eigvalsh(matrix), variant)[0]


def eigenvectors(matrix: Tensor, count: int, variant: Variant = "exact") -> tuple[Tensor, Tensor]:
    """All eigenvalues (..., N), largest first, and the first `count` unit eigenvectors as columns (..., N, count).

    An eigenvector's sign is open. `exact` makes its largest entry positive, so that results do not depend on the
    LAPACK at hand; `code` keeps the sign that LAPACK gives.
    """
    values, vectors = torch.linalg.eigh(matrix)
    values, order = order_eigenvalues(values, variant)
    vectors = vectors.gather(-1, order[..., None, :count].expand(*vectors.shape[:-1], -1))
    return values, (fix_signs(vectors) if variant == "exact" else vectors)


def order_eigenvalues(values: Tensor, variant: Variant) -> tuple[Tensor, Tensor]:
    """Eigenvalues of LAPACK (ascending) -> (non-negative, descending) and their places before."""
    if variant == "code":
        return torch.sort(values.abs(), dim=-1, descending=True, stable=True)
    n = values.shape[-1]
    largest, smallest = values[..., -1], values[..., 0]
    if (smallest < -10 * rounding(largest, n)).any():
        raise NumericalError(
            f"A Gram matrix has the eigenvalue {float(smallest.min()):.3g} beside {float(largest.max()):.3g}: "
            "it is not positive semi-definite, so it was not made by `centred_gram`."
        )
    order = torch.arange(n - 1, -1, -1, device=values.device).expand(values.shape)
    return values.flip(-1).clamp_min(0), order


def rounding(largest: Tensor, n: int) -> Tensor:
    """How large a zero eigenvalue of N x N may come out.

    The entries of a `Gram` are of size 1 before they are centred, and it is they that were rounded: where all keys are
    nearly alike, every eigenvalue is much smaller than 1.
    """
    return n * torch.finfo(largest.dtype).eps * largest.clamp_min(1.0)


def fix_signs(vectors: Tensor) -> Tensor:
    """Columns (..., N, D) with their largest entry (by absolute value) made positive."""
    peak = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
    return vectors * torch.where(peak < 0, -1.0, 1.0).to(vectors.dtype)


def numerical_rank(values: Tensor, times: float = 1.0) -> Tensor:
    """How many eigenvalues (..., N), largest first, stand out from rounding, by so many times."""
    return (values > times * rounding(values[..., :1], values.shape[-1])).sum(-1)


def certain_vectors(values: Tensor, vectors: Tensor) -> Tensor:
    """Eigenvectors (..., N, D), zero where an eigenvalue does not stand out from rounding enough to know its vector.

    An eigenvector is off by about rounding / eigenvalue. Where one key is a sink, the other keys' eigenvalues fall
    below 1e-12 of the first, and the vectors that LAPACK gives for them change with any digit of the keys.
    """
    known = torch.arange(vectors.shape[-1], device=vectors.device) < numerical_rank(values, CERTAIN)[..., None]
    return vectors * known[..., None, :]
