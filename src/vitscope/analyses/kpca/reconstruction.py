"""Is a head's output a projection of its query's feature? Then it cannot be longer than the feature.

With phi(q) the (scaled) feature of a query and u_d orthonormal axes, the claim h_i(d) = phi(q_i).u_d makes h_i the
coordinates of a projection, and the projection error (Teo & Nguyen 2024, Eq. 13)

    J = mean_i ||phi(q_i) - sum_d h_i(d) u_d||^2 = mean_i (||phi(q_i)||^2 - ||h_i||^2)

is a squared length: >= 0, token by token (Bessel's inequality). In log space

    log ||phi(q_i)||^2 = q_i.q_i / sqrt D - 2 logsumexp_j (q_i.k_j / sqrt D).

Variants of ||phi(q_i)||^2:

* `exact`: the above.
* `paper`: the denominator recovered from the first attention column, (sum_j ..)^2 = exp(2 s_i1 - log a_i1^2)
  (Appendix C). The same number, until a_i1^2 underflows.
* `code`: the released program. q and k standardised per token, and no 1 / sqrt D in numerator and denominator, although
  the attention a has it; it logs log(mean error), which does not exist once the mean error is negative.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from vitscope.analyses.kpca.gram import double, scores, standardise

Variant = Literal["exact", "paper", "code"]

MAX_LOG = 690.0  # ratios saturate at 1e300: their sums stay finite


def squared_norms(
    q: Tensor, k: Tensor, v: Tensor, variant: Variant = "exact", standardised: bool = False
) -> dict[str, Tensor]:
    """`log_phi`: log ||phi(q_i)||^2, and `h`: ||h_i||^2, of heads (..., N, D): each (..., N) float64."""
    if standardised or variant == "code":
        q, k = (standardise(x, "code" if variant == "code" else "exact") for x in (q, k))
    q, k, v = double(q), double(k), double(v)
    s = scores(q, k)  # (..., N, N)
    lse = s.logsumexp(-1)
    weights = (s - lse[..., None]).exp()
    length = q.square().sum(-1)
    if variant == "exact":
        log_phi = length / math.sqrt(q.shape[-1]) - 2 * lse
    else:
        root = math.sqrt(q.shape[-1]) if variant == "paper" else 1.0
        first = (q * k[..., :1, :]).sum(-1) / root
        log_phi = length / root - (2 * first - weights[..., 0].square().log())
    return {"log_phi": log_phi, "h": (weights @ v).square().sum(-1)}


def errors(log_phi: Tensor, h: Tensor) -> dict[str, Tensor]:
    """Per token (...): the projection error and its relatives. Ratios saturate at 1e300 instead of overflowing."""
    phi = log_phi.clamp_max(MAX_LOG).exp()
    tiny = torch.finfo(h.dtype).tiny
    log_h = h.clamp_min(tiny).log()
    log_ratio = log_h - log_phi  # log ||h||^2 / ||phi||^2
    return {
        "phi": phi,
        "h": h,
        "error": phi - h,
        "absolute_error": (phi - h).abs(),
        # |phi - h| / h = |exp(log phi - log h) - 1|: also right where phi underflows
        "relative_to_h": torch.expm1((-log_ratio).clamp_max(MAX_LOG)).abs(),
        "relative_to_phi": torch.expm1(log_ratio.clamp_max(MAX_LOG)).abs(),
        "log10_ratio": log_ratio / math.log(10),
        "violation": (log_ratio > 0).to(h.dtype),
    }
