"""What a patch shows: the class of most of its pixels, and whether it lies at a border between classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitscope.analyses.class_space.ranks import check_labels
from vitscope.data.batch import Batch
from vitscope.errors import UnsuitableDataError
from vitscope.models import Model


@dataclass(frozen=True)
class Truth:
    """Of the patches of a batch, row by row."""

    grid: tuple[int, int]
    classes: Tensor  # (B, T) int64, -1 where no pixel has a class
    border: Tensor  # (B, T) bool

    @property
    def known(self) -> Tensor:
        return self.classes >= 0


def patch_truth(
    labels: Tensor,
    size: tuple[int, int],
    patch: tuple[int, int],
    classes: int,
    grid: tuple[int, int] | None = None,
) -> Truth:
    """Label maps (B, H, W), -1 where ignored -> the truth of the patches of pictures of `size` pixels.

    A patch has the class of most of its pixels that have one; of equally many, the one with the smaller number. It is
    at a border if it has pixels of several classes, or if a patch beside, above or below it has another class. Maps may
    be larger or smaller than the pictures: a pixel belongs to the patch that its centre lies in. grid: rows and
    columns, where a picture is filled up with more of them, which have no class.
    """
    check_labels(labels.flatten(), classes)
    grid = grid or padded_grid(size, patch)
    height, width = labels.shape[-2:]
    row = ((torch.arange(height) + 0.5) * (size[0] / height) / patch[0]).long()
    column = ((torch.arange(width) + 0.5) * (size[1] / width) / patch[1]).long()
    place = row[:, None] * grid[1] + column  # (H, W): the patch of each pixel
    patches = grid[0] * grid[1]
    cell = (torch.arange(len(labels))[:, None, None] * patches + place) * classes + labels  # (B, H, W)
    counts = torch.bincount(cell[labels >= 0], minlength=len(labels) * patches * classes)
    counts = counts.view(len(labels), patches, classes)
    found = torch.where(counts.sum(-1) > 0, counts.argmax(-1), -1)
    mixed = (counts > 0).sum(-1) > 1
    return Truth(grid, found, mixed | _beside_another(found.unflatten(1, grid)).flatten(1))


def _beside_another(classes: Tensor) -> Tensor:
    """(B, rows, columns) -> which of them have a neighbour of another known class."""
    found = torch.zeros_like(classes, dtype=torch.bool)
    for dim in (1, 2):
        first, second = classes.narrow(dim, 0, classes.shape[dim] - 1), classes.narrow(dim, 1, classes.shape[dim] - 1)
        differ = (first != second) & (first >= 0) & (second >= 0)
        found.narrow(dim, 0, differ.shape[dim]).logical_or_(differ)
        found.narrow(dim, 1, differ.shape[dim]).logical_or_(differ)
    return found


def padded_grid(size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of patches that a picture of `size` pixels is padded to."""
    return -(-size[0] // patch[0]), -(-size[1] // patch[1])


def grid_of(size: tuple[int, int], model: Model) -> tuple[int, int]:
    """The same, of a model that may look through a window that is larger than the picture."""
    window = getattr(model.module, "window", None) or (0, 0)
    return padded_grid((max(size[0], window[0]), max(size[1], window[1])), model.layout.patch)


def truth_for(labels: Tensor, images: Tensor, model: Model) -> Truth:
    """That of pictures (B, C, H, W) as a model takes them."""
    size = images.shape[-2], images.shape[-1]
    return patch_truth(labels.cpu(), size, model.layout.patch, model.num_classes, grid_of(size, model))


def truth_of(batch: Batch, model: Model) -> Truth:
    """That of a batch, made once for all analyses that ask."""
    key = ("patch truth", model.layout.patch, model.num_classes, getattr(model.module, "window", None))
    if key not in batch.shared:
        if batch.targets.ndim != 3:
            raise UnsuitableDataError(
                "Patches have a class where the data have label maps (B, H, W), and these have none."
            )
        batch.shared[key] = truth_for(batch.targets, batch.images, model)
    return batch.shared[key]
