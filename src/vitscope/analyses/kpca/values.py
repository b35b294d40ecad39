"""Do learned values look like those of the theorem? Learned V against theoretical V^, head by head.

V^ (N, D_v) holds v^_dj = (a_dj - mean a_d) / g(k_j), a_d the unit eigenvectors of the centred Gram matrix by falling
eigenvalue. Sarıtaş & Yıldız (ACL SRW 2025) report cosines, an optimal one-to-one matching of *tokens*, and CKA. An
eigenvector's sign, the order and length of the columns, and the basis of a degenerate space are not determined by the
theory, so measures that depend on them can miss an alignment that exists. `SIGN_DEPENDENT` and `SCALE_DEPENDENT` name
them; the others are `FAIR`. A null stands beside each: what it gives for values that know nothing of this head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitscope.analyses.kpca import alignment
from vitscope.analyses.kpca.construct import theoretical_values, unit_scale
from vitscope.analyses.kpca.matching import best_matching

MEASURES = {
    "cosine": "cosine of a token's two value vectors, mean over tokens",
    "cosine_min": "its minimum over tokens",
    "cosine_max": "its maximum over tokens",
    "cosine_negative": "share of tokens whose cosine is negative",
    "optimal_cosine": "cosine after the best one-to-one matching of tokens, mean",
    "optimal_cosine_min": "its minimum",
    "optimal_cosine_max": "its maximum",
    "linear_cka": "linear centred kernel alignment",
    "kernel_cka": "RBF centred kernel alignment, bandwidth: median distance",
    "pearson": "correlation of all entries",
    "relative_frobenius": "||V - V^|| / ||V||",
    "euclidean": "distance of a token's two vectors, mean over tokens",
    "l1": "L1 distance of a token's two vectors, mean over tokens",
    "allclose": "1 if equal within rtol 1e-5, atol 1e-8",
    "principal_cosine": "cosine of the principal angles between the column spaces, mean",
    "principal_overlap": "squared cosine of the principal angles, mean: the share of one space inside the other",
    "cca": "canonical correlations, mean",
    "procrustes": "correlation after the best rotation",
    "component": "|correlation| of components after the best one-to-one matching, mean",
}
FAIR = frozenset({"principal_cosine", "principal_overlap", "cca", "component"})  # see only what the theory determines
SCALE_DEPENDENT = frozenset({"linear_cka", "kernel_cka", "procrustes"})  # see the relative lengths of V^'s columns
SIGN_DEPENDENT = frozenset(MEASURES) - FAIR - SCALE_DEPENDENT  # see these, and the signs and order, too


@dataclass(frozen=True)
class Side:
    """One set of value vectors (..., N, D) with what several measures need of it, computed once."""

    values: Tensor
    unit: Tensor  # unit rows
    rbf: Tensor  # (..., N, N) centred RBF kernel
    basis: Tensor  # (..., N, D) orthonormal basis of the columns
    centred_basis: Tensor  # and of the centred columns

    @classmethod
    def of(cls, values: Tensor, unit: Tensor | None = None) -> Side:
        return cls(
            values,
            alignment.unit_rows(values) if unit is None else unit,
            alignment.rbf_gram(values),
            alignment.orthonormal_basis(values),
            alignment.orthonormal_basis(alignment.centre_columns(values)),
        )

    def roll(self) -> Side:
        """That of the next head: (B, H, ...)."""
        return Side(*(x.roll(-1, dims=1) for x in (self.values, self.unit, self.rbf, self.basis, self.centred_basis)))


def theoretical_side(vectors: Tensor, log_g: Tensor) -> Side:
    """V^ up to one positive factor per head. Row directions are the vectors': they survive where 1 / g does not."""
    rows = alignment.unit_rows(vectors - vectors.mean(-2, keepdim=True))
    return Side.of(theoretical_values(vectors, log_g, unit_scale(log_g)), rows)


def measures(learned: Side, theory: Side, log_g: Tensor) -> dict[str, Tensor]:
    """All `MEASURES` of heads (..., N, D): each (...)."""
    v, w = learned.values, theory.values
    own = (learned.unit * theory.unit).sum(-1)  # (..., N)
    matched = best_matching(learned.unit @ theory.unit.mT)
    angles = alignment.principal_cosines(learned.basis, theory.basis)
    actual = w * (-unit_scale(log_g)).exp()[..., None, None]  # V^ in its own length
    difference = v - actual
    return {
        "cosine": own.mean(-1),
        "cosine_min": own.amin(-1),
        "cosine_max": own.amax(-1),
        "cosine_negative": (own < 0).to(own.dtype).mean(-1),
        "optimal_cosine": matched.mean(-1),
        "optimal_cosine_min": matched.amin(-1),
        "optimal_cosine_max": matched.amax(-1),
        "linear_cka": alignment.linear_cka(v, w),
        "kernel_cka": alignment.kernel_cka(learned.rbf, theory.rbf),
        "pearson": alignment.pearson(v, w),
        "relative_frobenius": alignment.ratio(alignment.frobenius(difference), alignment.frobenius(v)),
        "euclidean": difference.norm(dim=-1).mean(-1),
        "l1": difference.abs().sum(-1).mean(-1),
        "allclose": torch.isclose(v, actual).flatten(-2).all(-1).to(own.dtype),
        "principal_cosine": angles.mean(-1),
        "principal_overlap": angles.square().mean(-1),
        "cca": alignment.principal_cosines(learned.centred_basis, theory.centred_basis).mean(-1),
        "procrustes": alignment.procrustes(v, w),
        "component": alignment.component_matching(v, w).mean(-1),
    }
