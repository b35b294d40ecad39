"""How large are the eigenvalues of the centred Gram matrix of the keys, and can they be what was published?

K~ a_d = lambda_d N a_d (Teo & Nguyen 2024, Eq. 11): the eigenvalues of the *Gram matrix* K~ are N lambda_d, those of
the *covariance* in feature space are lambda_d = eigenvalue / N. Published for ViT-Tiny, D_v eigenvalues averaged over
heads and layers: max 648.46, min 4.65, mean 40.07, median 17.73. But g(k_i) >= k(k_i, k_i), so K_phi[i, i] <= 1 and

    every eigenvalue of K~ <= trace K~ <= trace K_phi <= N,

and N = 197 there: 648.46 is impossible for the matrix as defined, of any keys whatsoever.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitscope.errors import NumericalError

PUBLISHED = {"max": 648.46, "min": 4.65, "mean": 40.07, "median": 17.73}


def spectrum_shape(values: Tensor, count: int) -> dict[str, Tensor]:
    """Scale-free descriptions of eigenvalues (..., N), each (...).

    effective_rank: exp of the entropy of the shares p_d = lambda_d / sum lambda (Roy & Vetterli 2007); participation:
    1 / sum p_d^2; top_share: sum of the first `count` shares; top_share_flat (a number): what equal shares would give.
    """
    total = values.sum(-1, keepdim=True)
    shares = values / torch.where(total > 0, total, 1.0)
    return {
        "effective_rank": torch.special.entr(shares).sum(-1).exp(),
        "participation": 1 / shares.square().sum(-1).clamp_min(torch.finfo(values.dtype).tiny),
        "top_share": shares[..., :count].sum(-1),
    }


def published_statistics(values: Tensor, lower_median: bool = False) -> dict[str, Tensor]:
    """max, min, mean and median of eigenvalues averaged by rank: (..., D) -> four of (...)."""
    ordered = values.sort(-1).values
    d = values.shape[-1]
    middle = ordered[..., (d - 1) // 2] if lower_median else ordered[..., [(d - 1) // 2, d // 2]].mean(-1)
    return {"max": ordered[..., -1], "min": ordered[..., 0], "mean": values.mean(-1), "median": middle}


def check_bound(values: Tensor, trace: Tensor, log_scale: Tensor, slack: float = 1e-9) -> Tensor:
    """trace K_phi (...), after checking that eigenvalues <= trace K~ <= trace K_phi <= N. All but it are scaled.

    A violation means that the numbers are wrong, whatever the model.
    """
    n = values.shape[-1]
    total = trace * log_scale.exp()
    for holds, what in (
        ((values <= values.sum(-1, keepdim=True) * (1 + slack)).all(), "an eigenvalue exceeds the trace of K~"),
        ((values.sum(-1) <= trace * (1 + slack)).all(), "the trace of K~ exceeds that of K_phi"),
        ((total <= n * (1 + slack)).all(), f"the trace of K_phi exceeds the number of tokens, {n}"),
    ):
        if not holds:
            raise NumericalError(f"The spectrum violates a bound that holds for all keys: {what}. Please report this.")
    return total
