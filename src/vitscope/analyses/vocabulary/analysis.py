"""What the lenses on the vocabulary share: which models they take, and sums per document.

Tokens of one document are not independent, documents are: sums are kept per document, and intervals are over documents
(`statistics/clusters.py`). Windows of one document may lie in several batches and processes; sums add up all the same.
Beyond 1,000 documents they are bundled (document 0 with 1,000 and 2,000, ...), which keeps memory flat: bundles are
independent, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitscope.analyses.base import Analysis
from vitscope.errors import UnsuitableDataError, UnsupportedModelError
from vitscope.statistics.clusters import Kind, Mean, ratio

if TYPE_CHECKING:
    from vitscope.data import Data
    from vitscope.data.batch import Batch
    from vitscope.models import Model

BUNDLES = 1000  # the most documents, or bundles of them, that have sums of their own


class VocabularyAnalysis(Analysis):
    """An analysis of causal language models whose sums have a row per document; subclasses write `start_sums`."""

    tasks = ("language",)

    def start_sums(self, documents: int) -> None:
        """Allocate `self.sums` for so many documents."""
        raise NotImplementedError

    def start(self, model: Model) -> None:
        check_foresees(model)
        self.model, self.layout = model, model.layout
        self._bundle: Tensor | None = None  # (items,) int64: the row of each item's document
        self.documents = BUNDLES  # until the data are known, each item counts as one
        self.start_sums(self.documents)

    def check_data(self, data: Data) -> None:
        if getattr(data, "documents", None) is None:
            raise UnsuitableDataError(
                f"{self.name} looks for the next token of texts, and {data.name} are none: try --data pydoc."
            )

    def prepare(self, data: Data, model: Model) -> None:
        numbers, place = torch.as_tensor(data.documents).long().unique(return_inverse=True)  # type: ignore[attr-defined]
        self._bundle, self.documents = place % BUNDLES, min(len(numbers), BUNDLES)
        self.start_sums(self.documents)

    def rows_of(self, batch: Batch) -> Tensor:
        """(B,) int64: the row of the sums that each text belongs to."""
        return batch.indices % BUNDLES if self._bundle is None else self._bundle[batch.indices]


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


def over_documents(total: Tensor, tokens: Tensor, kind: Kind = "number") -> Mean | None:
    """Sums and numbers of tokens per document (D,), (D,) -> the mean over tokens; None where there is no token."""
    there = tokens > 0
    y, m = total[there].double(), tokens[there].double()
    if not len(m):
        return None
    sums = {"m": m, "mm": m * m, "y": y, "yy": y * y, "ym": y * m, "mean": y / m}
    return ratio({"n": float(len(m)), **{name: float(part.sum()) for name, part in sums.items()}}, kind)
