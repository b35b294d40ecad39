"""Do learnt values look like those of the theorem? Learnt V against theoretical V^, head by head.

V^ (N, D_v) holds v^_dj = (a_dj - mean a_d) / g(k_j), a_d the unit eigenvectors of the centred Gram matrix by falling
eigenvalue. Sarıtaş & Yıldız (ACL SRW 2025) report cosines, an optimal one-to-one matching of *tokens*, and CKA. An
eigenvector's sign, the order and length of the columns, and the basis of a degenerate space are not determined by the
theory, so measures that depend on them can miss an alignment that exists. `SIGN_DEPENDENT` and `SCALE_DEPENDENT` name
them; the others are `FAIR`. A null stands beside each: what it gives for values that know nothing of this head.

The study's program (variant `code`) divides rows by (norm + 1e-8) before it takes cosines. Rows of V^ whose norm is of
that size are shortened by it, and so are their cosines. It correlates token by token and averages, and takes for equal
what `allclose` does with rtol 1e-3, atol 1e-5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis
from vitscope.analyses.kpca import alignment, nulls
from vitscope.analyses.kpca.analysis import KpcaAnalysis
from vitscope.analyses.kpca.construction import theoretical_values, unit_scale
from vitscope.analyses.kpca.conventions import LEARNED, OTHER, RANDOM
from vitscope.analyses.kpca.eigen import numerical_rank
from vitscope.analyses.kpca.gram import Variant, double
from vitscope.analyses.kpca.matching import best_matching
from vitscope.analyses.kpca.threads import over_images
from vitscope.data.batch import Batch
from vitscope.errors import VitscopeError
from vitscope.models import Model

MEASURES = {
    "cosine": "cosine of a token's two value vectors, mean over tokens",
    "cosine_min": "its minimum over tokens",
    "cosine_max": "its maximum over tokens",
    "cosine_negative": "share of tokens whose cosine is negative",
    "optimal_cosine": "cosine after the best one-to-one matching of tokens, mean",
    "optimal_cosine_min": "its minimum",
    "optimal_cosine_max": "its maximum",
    "optimal_cosine_negative": "share of matched pairs whose cosine is negative",
    "linear_cka": "linear centred kernel alignment",
    "kernel_cka": "RBF centred kernel alignment, bandwidth: median distance",
    "pearson": "correlation of all entries (code: of a token's entries, mean over tokens)",
    "relative_frobenius": "||V - V^|| / ||V||",
    "euclidean": "distance of a token's two vectors, mean over tokens",
    "l1": "L1 distance of a token's two vectors, mean over tokens",
    "allclose": "1 if equal within rtol 1e-5, atol 1e-8 (code: 1e-3, 1e-5)",
    "principal_cosine": "cosine of the principal angles between the column spaces, mean",
    "principal_overlap": "squared cosine of the principal angles, mean: the share of one space inside the other",
    "cca": "canonical correlations, mean",
    "procrustes": "correlation after the best rotation",
    "component": "|correlation| of components after the best one-to-one matching, mean",
}
CODE_NORM = 1e-8  # the published program divides rows by norm + 1e-8
CLOSE = {"exact": (1e-5, 1e-8), "code": (1e-3, 1e-5)}  # relative, absolute
HEADLINES = {"optimal_cosine": "optimal cosine", "linear_cka": "linear CKA", "kernel_cka": "kernel CKA"}
FAIR = frozenset({"principal_cosine", "principal_overlap", "cca", "component"})  # see only what the theory determines
SCALE_DEPENDENT = frozenset({"linear_cka", "kernel_cka", "procrustes"})  # see the relative lengths of V^'s columns
SIGN_DEPENDENT = frozenset(MEASURES) - FAIR - SCALE_DEPENDENT  # see these, and the signs and order, too


@dataclass(frozen=True)
class Side:
    """One set of value vectors (..., N, D) with what several measures need of it, computed once."""

    values: Tensor
    unit: Tensor  # unit rows, or what the published program takes for them
    rbf: Tensor  # (..., N, N) centred RBF kernel
    basis: Tensor  # (..., N, D) orthonormal basis of the columns
    centred_basis: Tensor  # and of the centred columns

    @classmethod
    def of(cls, values: Tensor, unit: Tensor | None = None, variant: Variant = "exact", rounding: float = 0.0) -> Side:
        return cls(
            values,
            divided_rows(values, values.norm(dim=-1), variant) if unit is None else unit,
            alignment.rbf_gram(values, rounding),
            alignment.orthonormal_basis(values, rounding),
            alignment.orthonormal_basis(alignment.centre_columns(values), rounding),
        )

    def roll(self) -> Side:
        """That of the next head: (B, H, ...)."""
        return Side(*(x.roll(-1, dims=1) for x in (self.values, self.unit, self.rbf, self.basis, self.centred_basis)))


def divided_rows(directions: Tensor, lengths: Tensor, variant: Variant) -> Tensor:
    """Rows (..., N, D) for cosines: unit vectors, or for `code` vectors of these lengths divided by length + 1e-8."""
    if variant == "code":
        return alignment.shortened_rows(directions, lengths, CODE_NORM)
    return alignment.unit_rows(directions)


def theoretical_side(vectors: Tensor, log_g: Tensor, variant: Variant = "exact", rounding: float = 0.0) -> Side:
    """V^ up to one positive factor per head. Row directions are the vectors': they survive where 1 / g does not."""
    centred = vectors - vectors.mean(-2, keepdim=True)
    rows = divided_rows(centred, centred.norm(dim=-1) * (-log_g).exp(), variant)
    return Side.of(theoretical_values(vectors, log_g, unit_scale(log_g)), rows, rounding=rounding)


def measures(learned: Side, theory: Side, log_g: Tensor, variant: Variant = "exact") -> dict[str, Tensor]:
    """All `MEASURES` of heads (..., N, D): each (...)."""
    v, w = learned.values, theory.values
    own = (learned.unit * theory.unit).sum(-1)  # (..., N)
    matched = best_matching(learned.unit @ theory.unit.mT)
    angles = alignment.principal_cosines(learned.basis, theory.basis)
    actual = w * (-unit_scale(log_g)).exp()[..., None, None]  # V^ in its own length
    difference = v - actual
    distance = difference.abs()
    relative, absolute = CLOSE[variant]
    pearson = alignment.pearson_of_tokens(v, w).mean(-1) if variant == "code" else alignment.pearson(v, w)
    return {
        "cosine": own.mean(-1),
        "cosine_min": own.amin(-1),
        "cosine_max": own.amax(-1),
        "cosine_negative": (own < 0).to(own.dtype).mean(-1),
        "optimal_cosine": matched.mean(-1),
        "optimal_cosine_min": matched.amin(-1),
        "optimal_cosine_max": matched.amax(-1),
        "optimal_cosine_negative": (matched < 0).to(own.dtype).mean(-1),
        "linear_cka": alignment.linear_cka(v, w),
        "kernel_cka": alignment.kernel_cka(learned.rbf, theory.rbf),
        "pearson": pearson,
        "relative_frobenius": alignment.ratio(alignment.frobenius(difference), alignment.frobenius(v)),
        "euclidean": difference.norm(dim=-1).mean(-1),
        "l1": distance.sum(-1).mean(-1),
        "allclose": (distance - relative * actual.abs() <= absolute).flatten(-2).all(-1).to(own.dtype),
        "principal_cosine": angles.mean(-1),
        "principal_overlap": angles.square().mean(-1),
        "cca": alignment.principal_cosines(learned.centred_basis, theory.centred_basis).mean(-1),
        "procrustes": alignment.procrustes(v, w),
        "component": alignment.component_matching(v, w).mean(-1),
    }


@register_analysis("kpca.values")
class Values(KpcaAnalysis):
    """Learnt against theoretical values, with nulls: random values of the same norms, and those of another head.

    axes: 'unit' takes unit eigenvectors, as published; 'kpca' divides each by the root of its eigenvalue, as kernel PCA
    does (it only matters to measures that see the length of columns). nulls=False leaves the nulls out.
    Tables: `kpca_values` (per head), `kpca_values_layers`, `kpca_values_model` (over all heads), `kpca_values_images`
    (per image and block); with `per_head`, `kpca_values_image_heads`.
    """

    axes_needed = True

    def __init__(self, *, axes: str = "unit", nulls: bool = True, **common: Any) -> None:
        super().__init__(**common)
        if axes not in ("unit", "kpca"):
            raise VitscopeError(f"axes={axes!r} is not known: expected 'unit' or 'kpca'.")
        self.axes, self.nulls = axes, nulls

    def start_sums(self, model: Model) -> None:
        self.shared.want_vectors(self, standardised=self.standardised, variant=self.variant)  # type: ignore[arg-type]
        self.kinds = [LEARNED]
        if self.nulls:
            self.kinds += [RANDOM] + ([OTHER] if self.layout.heads > 1 else [])
        for kind in self.kinds:
            self.start_moments(*(f"{kind}.{m}" for m in MEASURES), shape=(self.layout.blocks, self.layout.heads))

    def read(self, block: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> None:
        variant: Variant = self.variant  # type: ignore[assignment]
        gram = self.shared.gram(k, vectors=True, standardised=self.standardised, variant=variant)
        vectors = self.axes_of(gram)
        if self.axes == "kpca":  # a factor per head is open, so eigenvalues relative to the first will do
            relative = gram.eigenvalues[..., : self.count] / gram.eigenvalues[..., :1]
            real = torch.arange(self.count, device=relative.device) < numerical_rank(gram.eigenvalues)[..., None]
            vectors = vectors / torch.where(real, relative, torch.inf).sqrt()[..., None, :]

        # a text repeats its tokens, and may have fewer axes than D_v
        rounding, exact_rounding = (
            alignment.rounding_of(dtype) if self.layout.sequence else 0.0 for dtype in (v.dtype, torch.float64)
        )

        def measure(v: Tensor, vectors: Tensor, log_g: Tensor, images: Tensor) -> dict[str, Tensor]:
            v = double(v)
            theory = theoretical_side(vectors, log_g, variant, exact_rounding)
            sides = {LEARNED: Side.of(v, variant=variant, rounding=rounding)}
            if RANDOM in self.kinds:
                draw = nulls.normal(tuple(v.shape[1:]), self.setting.seed, nulls.VALUES, block, images).to(v)
                sides[RANDOM] = Side.of(nulls.with_row_norms(draw, v), variant=variant)
            if OTHER in self.kinds:
                sides[OTHER] = sides[LEARNED].roll()
            return {
                f"{kind}.{m}": value
                for kind, side in sides.items()
                for m, value in measures(side, theory, log_g, variant).items()
            }

        found = over_images(measure, v, vectors, gram.log_g, batch.indices)  # each (B, H)
        for kind in self.kinds:
            for m in MEASURES:
                self.add_moments(f"{kind}.{m}", found[f"{kind}.{m}"], block)
            columns = {m: found[f"{kind}.{m}"].mean(1) for m in MEASURES}
            self.emit_images("kpca_values_images", batch, {"block": block, "values": kind} | columns)
            each = {m: found[f"{kind}.{m}"] for m in MEASURES}
            self.emit_heads("kpca_values_image_heads", batch, block, {"values": kind} | each)

    def tables(self) -> dict[str, pd.DataFrame]:
        heads = [self.heads_table(*(f"{kind}.{m}" for m in MEASURES)).assign(values=kind) for kind in self.kinds]
        table = pd.concat(heads, ignore_index=True)
        table["metric"] = table["metric"].str.rpartition(".")[2]
        table = table[["block", "head", "values", "metric", "mean", "std", "n"]]
        table = table[table["n"] > 0] if self.images else table  # a block that saw no text has no mean
        tables = {
            "kpca_values": table,
            "kpca_values_layers": over_heads(table, ["block", "values", "metric"]),
            "kpca_values_model": over_heads(table, ["values", "metric"]),
        }
        return self.labelled(tables)

    def summary(self) -> dict[str, Headline]:
        found = {}
        for measure, name in HEADLINES.items():
            for kind in (k for k in self.kinds if k != OTHER):
                key = measure if kind == LEARNED else f"{measure}_{kind.replace(' ', '_')}"
                note = f"{name} of {kind} and theoretical values, mean over heads and blocks"
                found[key] = self.figure(self.over_blocks(f"{kind}.{measure}"), "", note)
        return found


def over_heads(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean, lowest and highest head of each group, and what the measure depends on that the theory leaves open."""
    groups = table.groupby(keys, sort=False)
    found = groups["mean"].agg(["mean", "min", "max"]).assign(n=groups["n"].max())
    found = found.rename(columns={"min": "lowest_head", "max": "highest_head"}).reset_index()
    return found.assign(depends_on=[dependence(m) for m in found["metric"]])


def dependence(measure: str) -> str:
    """What a measure sees that the theory leaves open."""
    if measure in FAIR:
        return "nothing open"
    return "length of axes" if measure in SCALE_DEPENDENT else "sign, order and length of axes"
