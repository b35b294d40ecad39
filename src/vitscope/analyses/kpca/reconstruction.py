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
* `reproduction`: the norms are exact, but the program of the reproduction study divides by ||h||^2 + 1e-8 and
  ||phi||^2 + 1e-8 where it takes relative errors, which a tiny ||phi||^2 does not survive.
"""

from __future__ import annotations

import math
from math import nan
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.kpca.analysis import KpcaAnalysis
from vitscope.analyses.kpca.gram import double, scores, standardise
from vitscope.analyses.kpca.keygram import Shared
from vitscope.analyses.kpca.threads import over_images
from vitscope.data.batch import Batch
from vitscope.models import Model

Variant = Literal["exact", "paper", "code"]

MAX_LOG = 345.0  # ratios saturate at 1e150: sums of their squares stay finite
ADDED = 1e-8  # the reproduction study's program adds it to the denominators of relative errors


def squared_norms(
    q: Tensor, k: Tensor, v: Tensor, variant: Variant = "exact", standardised: bool = False
) -> dict[str, Tensor]:
    """`log_phi`: log ||phi(q_i)||^2, and `h`: ||h_i||^2, of heads (..., N, D): each (..., N) float64."""
    if standardised or variant == "code":
        q, k = (standardise(x, "code" if variant == "code" else "exact") for x in (q, k))
    q, k, v = double(q), double(k), double(v)
    s = scores(q, k)  # (..., N, N)
    top = s.amax(-1, keepdim=True)
    weights = s.sub_(top).exp_()  # times g
    g = weights.sum(-1)
    lse = g.log().add_(top[..., 0])
    length = q.square().sum(-1)
    if variant == "exact":
        log_phi = length / math.sqrt(q.shape[-1]) - 2 * lse
    else:
        root = math.sqrt(q.shape[-1]) if variant == "paper" else 1.0
        first = (q * k[..., :1, :]).sum(-1) / root
        log_phi = length / root - (2 * first - (weights[..., 0] / g).square().log())
    return {"log_phi": log_phi, "h": (weights @ v).square().sum(-1).div_(g.square_())}


def errors(log_phi: Tensor, h: Tensor, added: float = 0.0) -> dict[str, Tensor]:
    """Per token (...): the projection error and its relatives. Ratios saturate at 1e150 instead of overflowing.

    With `added`, relative errors are |phi - h| / (h + added) and |phi - h| / (phi + added).
    """
    phi = log_phi.clamp_max(MAX_LOG).exp()
    tiny = torch.finfo(h.dtype).tiny
    log_h = h.clamp_min(tiny).log()
    log_ratio = log_h - log_phi  # log ||h||^2 / ||phi||^2
    if added:
        to_h, to_phi = (((phi - h).abs() / (x + added)).clamp_max(math.exp(MAX_LOG)) for x in (h, phi))
    else:  # |phi - h| / h = |exp(log phi - log h) - 1|: also right where phi underflows
        to_h, to_phi = (torch.expm1(x.clamp_max(MAX_LOG)).abs() for x in (-log_ratio, log_ratio))
    return {
        "phi": phi,
        "h": h,
        "error": phi - h,
        "absolute_error": (phi - h).abs(),
        "log10_absolute_error": (phi - h).abs().clamp_min(tiny).log10(),
        "relative_to_h": to_h,
        "relative_to_phi": to_phi,
        "log10_ratio": log_ratio / math.log(10),
        "violation": (log_ratio > 0).to(h.dtype),
    }


def shared_norms(
    shared: Shared, q: Tensor, k: Tensor, v: Tensor, variant: Variant, standardised: bool
) -> dict[str, Tensor]:
    """`squared_norms` of a block on all cores, computed once for all analyses that ask."""
    return shared.once(
        q,
        ("norms", variant, standardised),
        lambda: over_images(lambda q, k, v: squared_norms(q, k, v, variant, standardised), q, k, v),
    )


@register_analysis("kpca.reconstruction")
class Reconstruction(KpcaAnalysis):
    """Projection error, both squared norms and the rate of tokens that break Bessel's inequality, per block and head.

    Table `kpca_reconstruction`, per image and block `kpca_reconstruction_images`. As a probe of a training it gives the
    curves per epoch. With variant 'code', `kpca_reconstruction_logged` has what the released program logs, log(mean
    error) over all images, and the share of images for which that number exists by itself. With `per_head`,
    `kpca_reconstruction_image_heads`.
    """

    uses_queries = True
    variants = ("exact", "paper", "code", "reproduction")
    optional = ("log_mean_error",)  # a mean error below zero has no logarithm
    METRICS = (
        "phi", "h", "error", "absolute_error", "log10_absolute_error", "relative_to_h", "relative_to_phi",
        "log10_ratio", "violation",
    )  # fmt: skip

    def start_sums(self, model: Model) -> None:
        self.start_moments(*self.METRICS, shape=(self.layout.blocks, self.layout.heads))
        self.sums["positive"] = zeros(self.layout.blocks, dtype=torch.int64)  # images whose mean error has a logarithm

    def read(self, block: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> None:
        published = self.variant == "reproduction"
        variant: Variant = "exact" if published else self.variant  # type: ignore[assignment]
        both = shared_norms(self.shared, q, k, v, variant, self.standardised)
        found = errors(**both, added=ADDED if published else 0.0)
        means = {metric: value.mean(-1) for metric, value in found.items()}  # (B, H) over tokens
        for metric, value in means.items():
            self.add_moments(metric, value, block)
        self.sums["positive"][block] += int((means["error"].mean(1) > 0).sum())
        columns = {metric: value.mean(1) for metric, value in means.items()}
        self.emit_images("kpca_reconstruction_images", batch, {"block": block} | columns)
        self.emit_heads("kpca_reconstruction_image_heads", batch, block, means)

    def tables(self) -> dict[str, pd.DataFrame]:
        tables = {"kpca_reconstruction": self.heads_table(*self.METRICS)}
        if self.variant == "code":
            error = self.moments("error")[0].mean(1)  # (blocks,) over images, heads and tokens, as the program takes it
            exists = self.sums["positive"] / self.seen.clamp_min(1)
            tables["kpca_reconstruction_logged"] = pd.DataFrame(
                {"block": range(self.layout.blocks), "log_mean_error": torch.where(error > 0, error, nan).log().numpy()}
                | {"exists": exists.numpy(), "n": self.seen.numpy()}
            )
        return self.labelled(tables)

    def summary(self) -> dict[str, Headline]:
        rate, ratio = (self.over_blocks(metric) for metric in ("violation", "log10_ratio"))
        return {
            "violation": self.figure(100 * rate, "%", "tokens with ‖h‖² > ‖φ(q)‖², impossible for a projection"),
            "log10_ratio": self.figure(ratio, "decades", "‖h‖² over ‖φ(q)‖², mean over tokens, heads and blocks"),
        }
