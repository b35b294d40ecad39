"""What the lenses on patches share: which models they take, and sums per image.

Patches of one image are not independent, images are: sums are kept per image, and intervals are over images
(`statistics/clusters.py`). Beyond a number of images they are bundled (image 0 with image 1,000, ...), which keeps
memory flat: bundles are independent, too.
"""

from __future__ import annotations

from torch import Tensor

from vitscope.analyses.base import Analysis
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError
from vitscope.models import Model
from vitscope.tasks import task_of

BUNDLES, FEWEST, CELLS = 1000, 100, 20_000  # of images: at most, at least, and bundles times classes


def bundles_for(classes: int) -> int:
    """How many images, or bundles of them, have sums of their own for each class."""
    return max(FEWEST, min(BUNDLES, CELLS // classes))


class PatchAnalysis(Analysis):
    """An analysis of segmenters whose sums have a row per image; subclasses write `start_sums`."""

    tasks = ("segmentation",)

    def start_sums(self, model: Model) -> None:
        """Allocate `self.sums`."""
        raise NotImplementedError

    def start(self, model: Model) -> None:
        check_reads(model)
        self.model, self.layout, self.classes = model, model.layout, model.num_classes
        self.bundles = bundles_for(self.classes)
        self.start_sums(model)

    def check_data(self, data: Data) -> None:
        task_of(data).check(self.model, data)

    def rows_of(self, batch: Batch) -> Tensor:
        """(B,) int64: the row of the sums that each image belongs to."""
        return batch.indices % self.bundles

    def patches(self, x: Tensor) -> Tensor:
        """Tokens of a point (B, N, C) -> its patches (B, T, C), whatever the size of the picture."""
        return x[:, self.layout.prefix_tokens :]


def check_reads(model: Model) -> None:
    """UnsupportedModelError, with the reason, where patches cannot be read as classes."""
    if model.layout.sequence:
        raise UnsupportedModelError(f"{model.name} has no grid of patches: open a segmenter.")
    reason = None if model.row.reading is not None else model.why_no_class_space()
    if reason:
        raise UnsupportedModelError(f"The patches of {model.name} cannot be read as classes: {reason}.")
