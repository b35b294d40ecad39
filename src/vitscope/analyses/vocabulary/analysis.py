"""What the lenses on the vocabulary share: which models they take, and sums per document (`analyses/bundles.py`)."""

from __future__ import annotations

from vitscope.analyses.bundles import BundledAnalysis
from vitscope.data import Data
from vitscope.errors import UnsuitableDataError, UnsupportedModelError
from vitscope.models import Model


class VocabularyAnalysis(BundledAnalysis):
    """An analysis of causal language models whose sums have a row per document; subclasses write `start_sums`."""

    tasks = ("language",)

    def start(self, model: Model) -> None:
        check_foresees(model)
        self.model, self.layout = model, model.layout
        self.start_bundles()

    def check_data(self, data: Data) -> None:
        if getattr(data, "documents", None) is None:
            raise UnsuitableDataError(
                f"{self.name} looks for the next token of texts, and {data.name} are none: try --data pydoc."
            )


def check_foresees(model: Model) -> None:
    """UnsupportedModelError, with the reason, for a model that does not foresee the next token."""
    if not getattr(model.layout, "causal", False):
        raise UnsupportedModelError(
            f"{model.name} is no causal language model: its tokens are not made to foresee the next one, which is "
            "what is looked for. `vitscope analyze --only attention` looks inside of it."
        )
    reason = model.why_no_class_space()
    if reason:
        raise UnsupportedModelError(f"The tokens of {model.name} cannot be read as words: {reason}.")
