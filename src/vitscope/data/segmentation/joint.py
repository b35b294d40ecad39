"""Changes of a picture and its label map together: size, piece, mirror image, colours, as Segmenter learns.

The short side becomes that of the input times a drawn ratio; a piece of the input's size is cut out, drawn again while
one class covers too much of it; what is missing to its size is filled up, with the mean colour and ignored pixels, on
the right and below. What is drawn comes from the generator alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitscope.data.images import plain
from vitscope.data.segmentation.maps import IGNORED, nearest
from vitscope.data.transforms import build_transform, normalise
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess

TRIES = 10  # pieces that are drawn at most, as published


@dataclass(frozen=True)
class JointOptions:
    """What is drawn; the defaults are published with Segmenter on ADE20K."""

    smallest: float = 0.5  # ratio of the short side to that of the input
    largest: float = 2.0
    most: float = 0.75  # of a piece that one class may cover; 1: any piece will do
    mirror: float = 0.5  # probability of a mirror image
    colours: bool = True  # brightness, contrast, saturation and hue

    def __post_init__(self) -> None:
        for name, low, high in (("smallest", 0.01, 100), ("largest", 0.01, 100), ("most", 0, 1), ("mirror", 0, 1)):
            if not low <= getattr(self, name) <= high:
                raise DataError(f"{name} of a joint augmentation lies in {low} to {high}, not {getattr(self, name)}.")
        if self.smallest > self.largest:
            raise DataError(f"The smallest ratio {self.smallest} is larger than the largest, {self.largest}.")


class Joint:
    """`joint(picture, labels, generator) -> (tensor (C, H, W), labels (H, W) int64)`, both of the input's size.

    Without options: the middle of the picture at its plain size. It can be sent to other processes.
    """

    def __init__(self, preprocess: Preprocess, options: JointOptions | None = None) -> None:
        self.options, self.size = options, preprocess.input_size[1:]  # (H, W)
        self.transform = build_transform(preprocess)
        self.fill = tuple(round(255 * value) for value in preprocess.mean)

    def __call__(self, picture: Image.Image, labels: np.ndarray, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        image, labels = self.moved(plain(picture).convert("RGB"), labels, generator)
        if self.options is not None and self.options.colours:
            image = distorted(image, generator)
        pixels = Image.fromarray(filled(np.asarray(image), self.size, self.fill)).convert(self.transform.mode)
        x = normalise(pixels, self.transform.mean, self.transform.std)  # (C, H, W)
        return x, torch.from_numpy(np.ascontiguousarray(filled(labels, self.size, IGNORED)))

    def moved(
        self, picture: Image.Image, labels: np.ndarray, generator: torch.Generator
    ) -> tuple[Image.Image, np.ndarray]:
        """The geometric part, before anything is filled up."""
        o, ratio = self.options, 1.0
        if o is not None:
            ratio = o.smallest + (o.largest - o.smallest) * _uniform(generator)
        shorter = max(1, round(ratio * min(self.size)))
        height, width = labels.shape
        scale = shorter / min(height, width)
        size = max(1, round(height * scale)), max(1, round(width * scale))
        if size != (height, width):
            picture = picture.resize((size[1], size[0]), self.transform.resample)
        labels = nearest(labels, size)
        top, left = middle(size, self.size) if o is None else drawn_piece(labels, self.size, o.most, generator)
        bottom, right = min(top + self.size[0], size[0]), min(left + self.size[1], size[1])
        picture, labels = picture.crop((left, top, right, bottom)), labels[top:bottom, left:right]
        if o is not None and _uniform(generator) < o.mirror:
            picture, labels = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT), labels[:, ::-1]
        return picture, labels


def middle(size: tuple[int, int], piece: tuple[int, int]) -> tuple[int, int]:
    """The upper left corner of the piece in the middle; 0 where the piece is larger."""
    return max(0, (size[0] - piece[0]) // 2), max(0, (size[1] - piece[1]) // 2)


def drawn_piece(labels: np.ndarray, piece: tuple[int, int], most: float, generator: torch.Generator) -> tuple[int, int]:
    """The upper left corner of a piece in which no class covers `most` or more of the pixels that have one.

    After TRIES draws the last one is taken, whatever covers it.
    """
    free = [max(0, have - want) for have, want in zip(labels.shape, piece)]
    top = left = 0
    for _ in range(TRIES):
        top, left = (int(torch.randint(n + 1, (), generator=generator)) for n in free)
        if most >= 1 or free == [0, 0]:
            break
        part = labels[top : top + piece[0], left : left + piece[1]]
        counts = np.bincount(part[part >= 0].ravel())
        if (counts > 0).sum() > 1 and counts.max() < most * counts.sum():
            break
    return top, left


def filled(pixels: np.ndarray, size: tuple[int, int], value: int | tuple[int, ...]) -> np.ndarray:
    """(h, w, ...) -> (H, W, ...), filled up on the right and below."""
    height, width = pixels.shape[:2]
    if (height, width) == size:
        return pixels
    whole = np.empty((*size, *pixels.shape[2:]), dtype=pixels.dtype)
    whole[:] = value
    whole[:height, :width] = pixels
    return whole


def distorted(picture: Image.Image, generator: torch.Generator) -> Image.Image:
    """Brightness +-32 of 255, contrast and saturation times 0.5 to 1.5, hue +-18 of 180, each for half of the pictures.

    Contrast comes before the two others or after them, by turns (Liu et al., SSD, 2016).
    """
    draws = torch.rand(9, generator=generator).tolist()
    bright, contrast, early, saturate, turn = (draw < 0.5 for draw in draws[:5])
    factor = 0.5 + draws[6]
    x = np.asarray(picture).astype(np.float32)
    if bright:
        x = _clipped(x + 64 * draws[5] - 32)
    if contrast and early:
        x = _clipped(x * factor)
    if saturate or turn:
        hsv = np.asarray(Image.fromarray(x.astype(np.uint8)).convert("HSV")).astype(np.float32)
        if saturate:
            hsv[..., 1] = _clipped(hsv[..., 1] * (0.5 + draws[7]))
        if turn:
            hsv[..., 0] = (hsv[..., 0] + 256 * (36 * draws[8] - 18) / 180) % 256
        x = np.asarray(Image.fromarray(hsv.astype(np.uint8), "HSV").convert("RGB")).astype(np.float32)
    if contrast and not early:
        x = _clipped(x * factor)
    return Image.fromarray(x.astype(np.uint8))


def _clipped(x: np.ndarray) -> np.ndarray:
    return np.clip(x, 0, 255)


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))
