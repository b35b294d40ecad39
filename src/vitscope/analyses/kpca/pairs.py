"""Means over all pairs in O(N log N): differences between N numbers, absolute and relative.

Sorting is numpy's where it can be: it uses vector instructions, and is ten times faster than torch's on rows of a few
hundred numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vitscope.analyses.kpca.gram import all_finite


def pair_differences(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of |x_i - x_j| over all pairs i < j: (..., N) -> (...), (...).

    Sorted, the sum of all differences is sum_j (2 j - N + 1) x_j (j = 0 .. N-1), and the sum of their squares is
    N sum (x - mean)^2. Entries that are not finite are left out; with fewer than two left the answer is 0.
    """
    x, n, used = _finite_first(x, sort_values)
    x = _only(x.sub_(x.sum(-1, keepdim=True) / n.clamp_min(1)), used)  # keep the digits that differ
    pairs = (n * (n - 1) / 2).clamp_min(1).squeeze(-1)
    weights = 2 * torch.arange(x.shape[-1], dtype=x.dtype, device=x.device) - n + 1
    mean = (weights * x).sum(-1).clamp_min(0) / pairs
    squares = n.squeeze(-1) * x.square_().sum(-1) / pairs
    return mean, (squares - mean.square()).clamp_min(0).sqrt()


def relative_pair_differences(x: Tensor, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of |x_i - x_j| / max(|x_i|, |x_j|) over all pairs: (..., N) -> (...), (...).

    Ordered by absolute value, each pair (i before j) gives |x_i - x_j| / |x_j| = 1 - x_i / x_j, because
    |x_i / x_j| <= 1; with the running sums c_j = sum_{i<j} x_i and d_j = sum_{i<j} x_i^2 the sum over i is
    j - c_j / x_j, and of squares j - 2 c_j / x_j + d_j / x_j^2. The result lies in [0, 2]. A pair of zeros counts 0.
    Entries that are not finite are left out.

    `added` (...) > 0 is added to each denominator, as published programs do: with s_j = |x_j| / (|x_j| + added), the
    terms of x_j get the factor s_j, their squares s_j^2.
    """
    x, n, used = _finite_first(x, sort_by_size)
    j = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
    # one positive scale per row does not change ratios, and keeps squares away from underflow
    top = x.abs().amax(-1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    x = x.div_(top)
    if not x[..., 0].all():  # zeros come first
        used = (x != 0).to(x.dtype) if used is None else used * (x != 0)
    inverse = _only(x.reciprocal() if used is None else torch.where(x != 0, x, 1.0).reciprocal_(), used)
    share = None if added is None else x.abs().div_(x.abs().add_(added[..., None] / top))  # s_j
    c = x.cumsum(-1).sub_(x).mul_(inverse)
    x2 = x.square_()
    d = x2.cumsum(-1).sub_(x2).mul_(inverse.square_())
    count = j if used is None else j * used
    if share is None:
        count, c, d = count.sum(-1), c.sum(-1), d.sum(-1)
        total, squares = count - c, count - 2 * c + d
    else:
        total, squares = ((count - c) * share).sum(-1), ((count - 2 * c + d) * share.square()).sum(-1)
    pairs = (n * (n - 1) / 2).clamp_min(1).squeeze(-1)
    mean = total.clamp_min(0) / pairs
    return mean, (squares / pairs - mean.square()).clamp_min(0).sqrt()


def signed_mean(x: Tensor) -> Tensor:
    """Mean x_i over the finite entries: (..., N) -> (...)."""
    if all_finite(x):
        return x.mean(-1)
    finite = x.isfinite()
    return torch.where(finite, x, 0.0).sum(-1) / finite.sum(-1).clamp_min(1)


def mean_size(x: Tensor) -> Tensor:
    """Mean |x_i| over the finite entries: (..., N) -> (...)."""
    if all_finite(x):
        return x.abs().sum(-1) / x.shape[-1]
    finite = x.isfinite()
    return torch.where(finite, x.abs(), 0.0).sum(-1) / finite.sum(-1).clamp_min(1)


def sort_values(x: Tensor) -> Tensor:
    """Ascending along the last dimension."""
    return torch.from_numpy(np.sort(x.numpy(), axis=-1)) if x.device.type == "cpu" else x.sort(-1).values


def sort_by_size(x: Tensor) -> Tensor:
    """Ascending by absolute value along the last dimension, float64.

    A float64 rotated left by one bit has its sign last: as integers, such numbers sort by size, and nothing is lost.
    """
    if x.device.type != "cpu":
        return x.gather(-1, x.abs().argsort(-1))
    bits = x.contiguous().numpy().view(np.uint64)
    bits = np.sort((bits << np.uint64(1)) | (bits >> np.uint64(63)), axis=-1)
    return torch.from_numpy(((bits >> np.uint64(1)) | (bits << np.uint64(63))).view(np.float64))


def _finite_first(x: Tensor, sort: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
    """A sorted copy with the finite numbers first and zeros after them, how many are finite, and 1 for each of these.

    The latter is None where all are finite, the common case, which is spared the passes that masks cost.
    """
    if all_finite(x):
        return sort(x), x.new_tensor([x.shape[-1]]), None
    finite = x.isfinite()
    n = finite.sum(-1, keepdim=True).to(x.dtype)  # (..., 1)
    x = sort(torch.where(finite, x, torch.inf))
    used = (torch.arange(x.shape[-1], device=x.device) < n).to(x.dtype)
    return torch.where(x.isfinite(), x, 0.0), n, used


def _only(x: Tensor, used: Tensor | None) -> Tensor:
    """0 where not used, in place."""
    return x if used is None else x.mul_(used)
