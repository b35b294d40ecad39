"""The published claims: what each predicts, and what counts as agreement. Fixed here, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitscope.analyses.kpca.conventions import PUBLISHED
from vitscope.report.numbers import percent, short
from vitscope.statistics.bootstrap import Mean

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot tell"


@dataclass(frozen=True)
class Verdict:
    """One claim about one model. `measured`, `low` and `high` are numbers; the rest is for the reader."""

    key: str
    claim: str  # in words, with its source
    predicts: str
    agrees: str  # what counts as agreement
    measured: float
    low: float | None
    high: float | None
    null: str  # what stands beside it
    verdict: str
    why: str  # the finding in a sentence
    n: int  # images
    shown: str = ""  # the measured number as it is written
    random: float | None = None  # what random values of the same norms give
    beaten: bool = False  # and whether that is more, with an interval of the difference that excludes zero


def judge(mean: Mean, least: float = float("-inf"), most: float = float("inf")) -> str:
    """Agreement is least <= number <= most."""
    if mean.low is None or mean.high is None:
        return OPEN
    if least <= mean.low and mean.high <= most:
        return HOLDS
    return FAILS if mean.high < least or mean.low > most else OPEN


def interval(mean: Mean, write: Callable[[float], str] = short) -> str:
    """'0.211 (0.209 to 0.213)'"""
    if mean.low is None or mean.high is None:
        return f"{write(mean.value)} (one image: no interval)"
    return f"{write(mean.value)} ({write(mean.low)} to {write(mean.high)})"


@dataclass(frozen=True)
class Claim:
    """What does not depend on the model: the claim, its prediction and what counts as agreement."""

    key: str
    text: str
    predicts: str
    agrees: str
    least: float = float("-inf")
    most: float = float("inf")
    write: Callable[[float], str] = short

    def judged(self, mean: Mean, null: str, why: str, verdict: str | None = None) -> Verdict:
        return Verdict(
            key=self.key,
            claim=self.text,
            predicts=self.predicts,
            agrees=self.agrees,
            measured=mean.value,
            low=mean.low,
            high=mean.high,
            null=null,
            verdict=verdict or judge(mean, self.least, self.most),
            why=why,
            n=mean.n,
            shown=interval(mean, self.write),
        )


BESSEL = Claim(
    "bessel",
    "A head's output is the projection of its query's feature on orthonormal axes (Theorem 1)",
    "no token's output is longer than its feature: ‖h‖² ≤ ‖φ(q)‖² (Bessel)",
    "at most 1 % of tokens",
    most=0.01,
    write=percent,
)
SIZE = Claim(
    "size",
    "The projection error ‖φ(q)‖² − ‖h‖² is small: the axes capture the query's feature (section 2.2.1)",
    "‖h‖² ≈ ‖φ(q)‖²: decimal logarithm of their ratio near 0",
    "within a factor of 3: −0.5 to 0.5",
    least=-0.5,
    most=0.5,
)
TRAINING = Claim(
    "training",
    "Training minimises the projection error (Fig. 1)",
    "the error goes to 0 because ‖h‖² approaches ‖φ(q)‖²: logarithm of their ratio near 0 at the end",
    "within a factor of 3: −0.5 to 0.5",
    least=-0.5,
    most=0.5,
)
VALUES = {
    metric: Claim(f"values_{metric}", text, "1", "at least 0.9", least=0.9)
    for metric, text in {
        "optimal_cosine": "Learned values are those of the theorem: best one-to-one matching of tokens",
        "linear_cka": "Learned values are those of the theorem: linear CKA",
        "kernel_cka": "Learned values are those of the theorem: kernel CKA",
        "principal_overlap": "Learned values span the principal axes (a fair measure: sign, order and length open)",
    }.items()
}
RESIDUAL = Claim(
    "residual",
    "The vectors behind the learned values are eigenvectors of the Gram matrix (section 2.2.2)",
    "residual ‖K̃a − λNa‖ / ‖K̃a‖ = 0",
    "at most 0.1",
    most=0.1,
)
CENTRE = Claim(
    "centre",
    "The learned values have the form that the theorem gives them (Eq. 8)",
    "1ᵀG⁻¹V = 0: nothing of G⁻¹V lies in its mean",
    "at most 1 % of its length",
    most=0.01,
    write=percent,
)
GAMMA = Claim(
    "gamma",
    "A small |γᵢ − γⱼ| shows that they are eigenvectors (Fig. 2)",
    "far smaller than for arbitrary vectors: ratio to random vectors near 0",
    "at most 0.01",
    most=0.01,
)
EIGENVALUES = Claim(
    "eigenvalues",
    "Eigenvalues of the Gram matrix: 648 at most, 40 on average (Fig. 2, ViT-Tiny)",
    f"max {PUBLISHED['max']}, mean {PUBLISHED['mean']}",
    "the largest within a factor of 2",
    least=PUBLISHED["max"] / 2,
    most=PUBLISHED["max"] * 2,
)
