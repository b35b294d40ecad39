"""One class for each text."""

from __future__ import annotations

from vitscope.data import Data
from vitscope.errors import DataError
from vitscope.models import Model
from vitscope.tasks.base import register_task
from vitscope.tasks.classification import Classification
from vitscope.tasks.language import TEXTS
from vitscope.tasks.words import Words


@register_task("sentences")
class Sentences(Classification):
    """Outputs (B, K), targets (B,)."""

    def __init__(self, words: Words = TEXTS) -> None:
        super().__init__(words)

    def match(self, model: Model, data: Data) -> tuple[Data, str | None]:
        """A model that was tuned knows its classes by name: labels follow these."""
        if model.classes is not None and set(data.classes) <= set(model.classes):
            return data.ordered_as(model.classes), None
        return data, None

    def check(self, model: Model, data: Data) -> None:
        if model.classes is None:
            raise DataError(
                f"{model.name} has not learned the classes of {data.name} ({', '.join(data.classes[:3])}, ...): tune "
                "it first, `vitscope train --recipe sentences --weights FOLDER --data ...`, and give that run."
            )
        super().check(model, data)
