"""Fuzziness of raw pixels, which have too many dimensions for second moments: two passes without the model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vitscope.analyses.base import zeros
from vitscope.analyses.separation.definition import Averaging, class_axes, fuzziness_along, image_weights
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.models import Preprocess

IN_MEMORY = 256 << 20  # bytes of float32 pictures up to which they are read once and kept between the two passes

_KNOWN: weakref.WeakKeyDictionary[Data, dict[tuple[Preprocess, str], float]] = weakref.WeakKeyDictionary()


def pixel_fuzziness(data: Data, preprocess: Preprocess, averaging: Averaging = "class") -> float:
    """Fuzziness of raw pixels at the model's input size. Kept per dataset: pixels do not change while a model trains.

    Memory: K x d, and the pictures themselves where they fit into 256 MB. Time: K x d per image.
    """
    known = _KNOWN.setdefault(data, {})
    if (preprocess, averaging) not in known:
        size = torch.Size(preprocess.input_size).numel()

        present = sorted({label for label in data.labels if label >= 0})
        number = torch.full((max(present, default=0) + 2,), -1)  # the last place stands for images without a label
        number[present] = torch.arange(len(present))

        def read() -> Iterable[Batch]:
            """Classes numbered through: ImageNet-S names a thousand where a few occur."""
            for batch in data.batches(preprocess, 250):
                yield replace(batch, targets=number[batch.labels])

        small = 4 * size * len(data) <= IN_MEMORY
        kept = list(read()) if small else []
        batches = (lambda: kept) if small else read
        known[preprocess, averaging] = two_passes(batches, len(present), preprocess.std, averaging)
    return known[preprocess, averaging]


def two_passes(
    batches: Callable[[], Iterable[Batch]], classes: int, std: Sequence[float], averaging: Averaging = "class"
) -> float:
    """Class means first, then the scatter along their axes; exact, and never a d x d matrix.

    `std` takes the preprocessing's scale away again; its shift does not matter.
    """
    scale = torch.tensor(std, dtype=torch.float32)[:, None, None]
    counts, sums = zeros(classes, dtype=torch.int64), None

    def pixels() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches():
            labelled = batch.labels >= 0
            yield (batch.images[labelled] * scale).flatten(1).double(), batch.labels[labelled]  # (B, d), (B,)

    for x, labels in pixels():
        counts += torch.bincount(labels, minlength=classes)
        sums = zeros(classes, x.shape[1]) if sums is None else sums
        sums.index_add_(0, labels, x)
    if sums is None:
        return float("nan")
    weights = image_weights(counts, averaging)
    axes = class_axes(counts, sums, weights)
    centres = zeros(classes, len(axes.axes))
    centres[counts > 0] = axes.means @ axes.axes.T  # (K, R)
    scatter = zeros(len(axes.axes))
    for x, labels in pixels():
        scatter += weights[labels] @ (x @ axes.axes.T - centres[labels]) ** 2
    return fuzziness_along(axes, scatter / (counts * weights).sum())
