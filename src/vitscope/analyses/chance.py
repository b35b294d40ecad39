"""A trained head that is right no more often than chance: most often labels and head differ in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitscope.data import Data
from vitscope.report.provenance import QUESTION
from vitscope.statistics.intervals import wilson

if TYPE_CHECKING:
    from vitscope.models import Model

LITTLE = 0.05  # of the way from chance to always right: a shuffled order that leaves some classes in place gets there
LEAST_CLASSES = 10  # with labels, or all of fewer: on a few hard classes a good model may fail


def near_chance(right: int, n: int, classes: int) -> bool:
    """Is the accuracy, as far as `n` images tell, at most a little above 1 / classes?

    Yes if the upper end of its 95 % Wilson interval is below c + 0.05 (1 - c) with c = 1 / classes. That takes some
    80 images of 1,000 classes and 250 of 10; of fewer, nothing is said.
    """
    chance = 1 / classes
    return n > 0 and wilson(right, n)[1] < chance + LITTLE * (1 - chance)


def chance_remark(model: Model, data: Data, right: int, n: int) -> str | None:
    """What a reader must know of `right` answers among `n` images of the data as they are; None if all is well.

    Nothing is remarked of a head that is known to be new, of classes that the model knows by name, or of a model that
    is being edited.
    """
    classes = model.num_classes
    if classes < 2 or not near_chance(right, n, classes) or is_new(model) or model.active_edits():
        return None
    if model.classes == data.classes or len({c for c in data.labels if c >= 0}) < min(classes, LEAST_CLASSES):
        return None
    return describe_chance(right, n, data.classes)


def describe_chance(right: int, n: int, classes: Sequence[str]) -> str:
    return (
        f"{right:,} of {n:,} images are recognised ({100 * right / n:.3g} %), hardly more than by chance "
        f"({100 / len(classes):.3g} % with {len(classes):,} classes): {QUESTION} The data's classes begin with "
        f"{', '.join(classes[:3])}. If they are, do weights, attention and preprocessing belong together?"
    )


def is_new(model: Model) -> bool:
    """Was the head drawn at random? Builders leave its bias at zero, training does not."""
    weights = str(model.source.get("weights", ""))
    bias = getattr(getattr(model.module, "head", None), "bias", None)
    return weights.startswith("random") or "new head" in weights or (bias is not None and not bool(bias.any()))
