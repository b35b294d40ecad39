"""Optimal one-to-one matching of the rows or columns of two matrices, and means over pairs by sorting."""

from __future__ import annotations

import torch
from torch import Tensor


def best_matching(similarity: Tensor) -> Tensor:
    """Similarities (..., N, M) -> those of the pairs of the best one-to-one matching, (..., min(N, M)).

    The sum over the matched pairs is the largest possible (Jonker-Volgenant, in scipy).
    """
    from scipy.optimize import linear_sum_assignment

    flat = similarity.detach().cpu().reshape(-1, *similarity.shape[-2:]).numpy()  # (n, N, M)
    found = [torch.from_numpy(s[linear_sum_assignment(s, maximize=True)]) for s in flat]
    return torch.stack(found).reshape(*similarity.shape[:-2], -1).to(similarity.device)
