"""Sums per document or per image, of at most so many: what honest intervals need, in flat memory.

Tokens of one document are not independent, documents are, and so are images: sums are kept for each, and intervals are
over them (`statistics/clusters.py`). Windows of one document may lie in several batches and processes; sums add up all
the same. Beyond 1,000 they are bundled (document 0 with 1,000 and 2,000, ...): bundles are independent, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitscope.analyses.base import Analysis
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.models import Model

BUNDLES = 1000  # the most documents or images, or bundles of them, that have sums of their own


class BundledAnalysis(Analysis):
    """An analysis whose sums have a row per document or image; subclasses write `start_sums`."""

    def start_sums(self, rows: int) -> None:
        """Allocate `self.sums` for so many documents or images."""
        raise NotImplementedError

    def start_bundles(self, most: int = BUNDLES) -> None:
        """To be called by `start`. `most`: rows, where many sums should be kept for fewer."""
        self.most = self.documents = most
        self._bundle: Tensor | None = None  # (items,) int64: the row of each item; until the data are known, its number
        self.start_sums(most)

    def prepare(self, data: Data, model: Model) -> None:
        whose = getattr(data, "documents", None)
        numbers, place = (
            torch.as_tensor(range(len(data)) if whose is None else whose).long().unique(return_inverse=True)
        )
        self._bundle, self.documents = place % self.most, min(len(numbers), self.most)
        self.start_sums(self.documents)

    def rows_of(self, batch: Batch) -> Tensor:
        """(B,) int64: the row of the sums that each item belongs to."""
        return batch.indices % self.most if self._bundle is None else self._bundle[batch.indices]
