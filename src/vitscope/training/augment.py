"""Small random changes of training images, on whole batches of tensors.

What is drawn for an image depends on (seed, epoch, image) alone: not on the batch it is in, the process that reads it,
or where a killed run was resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.data.randomness import derive_seed


def drawn_numbers(images: int, per_image: int, seed: int, epoch: int) -> Tensor:
    """Uniform numbers in [-1, 1) for every image of the data in this epoch -> (images, per_image)."""
    generator = torch.Generator().manual_seed(derive_seed("augment", seed, epoch))
    return 2 * torch.rand(images, per_image, generator=generator) - 1


def turn_and_shift(images: Tensor, numbers: Tensor, background: Tensor) -> Tensor:
    """Rotate up to 12 degrees, scale 10 %, shear 0.15, shift a fourteenth of the side (2 of 28 pixels).

    images (B, C, H, W), numbers (B, 5), background (C, 1, 1): the normalised value of black, which comes in from
    outside the picture. Mirror images are not made: a mirrored 2 is no digit.
    """
    angle = numbers[:, 0] * math.radians(12)  # (B,)
    scale = 1 + 0.1 * numbers[:, 1]
    shear = 0.15 * numbers[:, 2]
    shift = numbers[:, 3:5] / 7  # in half sides
    cos, sin = angle.cos() * scale, angle.sin() * scale
    rows = torch.stack([cos, shear - sin, shift[:, 0], sin, cos, shift[:, 1]], dim=1)  # (B, 6)
    grid = F.affine_grid(rows.view(-1, 2, 3), list(images.shape), align_corners=False)  # (B, H, W, 2)
    return F.grid_sample(images - background, grid, align_corners=False) + background


def mirror(images: Tensor, numbers: Tensor, background: Tensor) -> Tensor:
    """Half of the images change left and right. images (B, C, H, W), numbers (B, 1)."""
    return torch.where(numbers[:, :, None, None] < 0, images.flip(-1), images)


@dataclass(frozen=True)
class Augmentation:
    """A function of a batch and of `draws` numbers per image."""

    draws: int
    function: Callable[[Tensor, Tensor, Tensor], Tensor]


AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "digits": Augmentation(5, turn_and_shift),
    "flip": Augmentation(1, mirror),
    "crop": None,  # these two work on single pictures: picture_augment.py
    "resized": None,
    "joint": None,  # on a picture and its label map: data/segmentation/joint.py
}


class EpochAugmentation:
    """One epoch's changes: `augmentation(images, indices)` for the images with these numbers in the data."""

    def __init__(self, name: str, images: int, background: Tensor, seed: int, epoch: int) -> None:
        self._augmentation = AUGMENTATIONS[name]
        self._background = background
        if self._augmentation is not None:
            self._numbers = drawn_numbers(images, self._augmentation.draws, seed, epoch)

    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        if self._augmentation is None:
            return images
        return self._augmentation.function(images, self._numbers[indices], self._background)
