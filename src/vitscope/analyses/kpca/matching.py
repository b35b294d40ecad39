"""Optimal one-to-one matching of the rows or columns of two matrices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LARGE = 100  # rows and columns from which prices save more time than they take
STEPS, SOFTNESS, FLOOR = 10, 0.15, -80.0


def best_matching(similarity: Tensor) -> Tensor:
    """Similarities (..., N, M) -> those of the pairs of the best one-to-one matching, (..., min(N, M)).

    The sum over the matched pairs is the largest possible (Jonker-Volgenant, in scipy).
    """
    from scipy.optimize import linear_sum_assignment

    flat = similarity.detach().cpu().reshape(-1, *similarity.shape[-2:])  # (n, N, M)
    square = flat.shape[1] == flat.shape[2] >= LARGE
    priced = (s + column_prices(s) if square else s for s in flat)
    found = [s[linear_sum_assignment(p, maximize=True)] for s, p in zip(flat.numpy(), priced)]
    return torch.from_numpy(np.stack(found)).reshape(*similarity.shape[:-2], -1).to(similarity.device)


def column_prices(similarity: Tensor) -> Tensor:
    """Numbers (N,) that, added to the columns of (N, N), leave every column the favourite of about one row.

    In a matching of all rows and columns each column counts once, so that prices change nothing about which is the
    best; but its search has little left to untangle, and takes half the time. They are those of a few steps towards
    the doubly stochastic matrix diag(a) K diag(b), K = exp(similarity / T) (Sinkhorn 1964).
    """
    x = similarity.double()
    temperature = SOFTNESS * x.std() + torch.finfo(x.dtype).tiny
    k = (x - x.amax(1, keepdim=True)).div_(temperature).clamp_min_(FLOOR).exp_()
    b = torch.ones_like(k[0])
    for _ in range(STEPS):
        b = (k.t() @ (k @ b).reciprocal_()).reciprocal_()
    return b.log_().mul_(temperature)
