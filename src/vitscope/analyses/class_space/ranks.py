"""Where does the true class stand among all classes? Rank and identifiability of a vector of logits.

    r = 1 - rank / |C|,    rank = number of classes with a larger logit

r = 1: the true class is on top; r = 1/|C|: it is last; a random order has mean 1/2 + 1/(2|C|). The measure is that of
Vilas, Schaumlöffel & Roig, "Analyzing Vision Transformers for Image Classification in Class Embedding Space"
(NeurIPS 2023). Among equal logits the true class stands in the middle ("half"): a vector of zeros, which says nothing,
is then at chance and not on top, where the published code ("none") puts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vitscope.errors import DataError, NumericalError, VitscopeError

if TYPE_CHECKING:
    from torch import Tensor

Ties = Literal["half", "none"]


def check_variant(variant: str) -> None:
    if variant not in ("exact", "code"):
        raise VitscopeError(f"variant={variant!r} is not known: expected 'exact' (default) or 'code' (as published).")


def ties_of(variant: str) -> Ties:
    return "none" if variant == "code" else "half"


def check_finite(logits: Tensor, where: str) -> None:
    """One NaN or infinity makes the sum of all one: cheaper than asking each of them."""
    if not bool(logits.sum().isfinite()) and not bool(logits.isfinite().all()):
        raise NumericalError(
            f"The projection on the classes is NaN or infinite at {where}: it has no rank. Look for NaN in the "
            "weights, or for a precision that overflows (try float32)."
        )


def true_rank(logits: Tensor, labels: Tensor, ties: Ties = "half", where: str = "some token") -> Tensor:
    """How many classes have a larger logit: (..., K), (...) int64 -> (...) float, whole or half numbers.

    With s_k = sign(logit_k - logit_true), larger ones count 1 and ties 1/2: rank = (sum_k s_k + K - 1) / 2, where the
    -1 takes away the true class' tie with itself. A non-finite logit is an error, never rank 0.
    """
    check_finite(logits, where)
    true = logits.gather(-1, labels[..., None])  # (..., 1)
    return rank_from_difference(logits - true, ties)


def rank_from_difference(difference: Tensor, ties: Ties = "half") -> Tensor:
    """The rank from logit_k - logit_true (..., K). Overwrites its input: it is the largest tensor around."""
    signs = difference.sign_()
    if ties == "none":
        return signs.clamp_(min=0).sum(-1)
    return (signs.sum(-1) + (signs.shape[-1] - 1)) / 2


def identifiability(rank: Tensor, classes: int) -> Tensor:
    """r = 1 - rank / |C| in [1/|C|, 1]."""
    return 1 - rank / classes


def chance(classes: int) -> float:
    """Mean of r where the order of the classes is random: (K + 1) / (2 K)."""
    return (classes + 1) / (2 * classes)


def check_labels(labels: Tensor, classes: int) -> None:
    """Labels are -1 (unknown) or one of the head's classes."""
    if len(labels) and int(labels.max()) >= classes:
        raise DataError(
            f"The data has class number {int(labels.max())}, but the model has the {classes} classes 0 to "
            f"{classes - 1}: the data's classes are not those of the head."
        )
