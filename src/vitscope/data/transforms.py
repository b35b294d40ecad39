"""Carries out a `Preprocess` recipe on a picture, and the very same resize and crop on its mask.

Numerically the same as `timm.data.create_transform(..., is_training=False)`, bit for bit: the order of operations and
every rounding follow timm, since a model's published accuracy belongs to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vitscope.data.batch import IGNORED
from vitscope.data.images import plain
from vitscope.data.masks import check_rule, resized
from vitscope.errors import DataError, suggest
from vitscope.models.preprocessing import Preprocess

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}
_MODES = {1: "L", 3: "RGB"}
_MAX_RESIZED = 2**26  # pixels: a strip of 10 x 100,000 becomes 248 x 2,480,000 on its way to a 224 crop


@dataclass(frozen=True)
class Geometry:
    """What happens to the pixel grid: first resize, then pad, then cut out. Sizes are (height, width)."""

    resized: tuple[int, int]
    padding: tuple[int, int, int, int]  # left, top, right, bottom, in pixels of the resized picture
    box: tuple[int, int, int, int]  # left, top, right, bottom of the cut, in pixels of the padded picture


def plan(size: tuple[int, int], preprocess: Preprocess) -> Geometry:
    """The geometry for a picture of `size` = (height, width)."""
    h, w = size
    target_h, target_w = preprocess.input_size[1:]
    scale_h, scale_w = (math.floor(x / preprocess.crop_pct) for x in (target_h, target_w))
    if preprocess.crop_mode == "short":
        scale_h = scale_w = min(scale_h, scale_w)
    if preprocess.crop_mode == "squash":
        new = scale_h, scale_w
    elif preprocess.crop_mode == "border":
        ratio = max(h / scale_h, w / scale_w)  # the long side fits
        new = round(h / ratio), round(w / ratio)
    elif scale_h == scale_w:  # the short side becomes `scale`; the long side is cut off, not rounded
        new = (scale_h, int(scale_h * w / h)) if h <= w else (int(scale_h * h / w), scale_h)
    else:
        ratio = min(h / scale_h, w / scale_w)
        new = round(h / ratio), round(w / ratio)
    new_h, new_w = max(1, new[0]), max(1, new[1])
    if preprocess.crop_mode == "short":
        return Geometry((new_h, new_w), (0, 0, 0, 0), (0, 0, new_w, new_h))

    left, right = _pad(target_w - new_w)
    top, bottom = _pad(target_h - new_h)
    cut_left = round((new_w + left + right - target_w) / 2)  # half to even, as timm
    cut_top = round((new_h + top + bottom - target_h) / 2)
    return Geometry(
        (new_h, new_w), (left, top, right, bottom), (cut_left, cut_top, cut_left + target_w, cut_top + target_h)
    )


def _pad(missing: int) -> tuple[int, int]:
    """Before and after; the odd pixel goes after."""
    return (missing // 2, (missing + 1) // 2) if missing > 0 else (0, 0)


def apply(
    image: Image.Image, geometry: Geometry, resample: Image.Resampling, fill: int | tuple[int, ...]
) -> Image.Image:
    """Resize, pad with `fill`, cut out."""
    (h, w), box = geometry.resized, geometry.box
    if image.size != (w, h):
        image = image.resize((w, h), resample)
    if any(geometry.padding):
        image = ImageOps.expand(image, geometry.padding, fill)
    return image if box == (0, 0, *image.size) else image.crop(box)


def pixels_of(image: Image.Image) -> Tensor:
    """(C, H, W) uint8"""
    pixels = torch.from_numpy(np.array(image))  # (H, W) or (H, W, C)
    return (pixels[..., None] if pixels.ndim == 2 else pixels).permute(2, 0, 1)


def normalise(picture: Image.Image | Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """A picture, or pixels (..., C, H, W) uint8, as a float32 tensor: (pixel / 255 - mean) / std."""
    pixels = picture if isinstance(picture, Tensor) else pixels_of(picture)
    return pixels.contiguous().to(torch.float32).div_(255).sub_(mean).div_(std)


class ImageTransform:
    """A recipe made callable: `transform(picture, mask) -> (tensor (C, H, W), mask tensor (H, W) or None)`."""

    def __init__(self, preprocess: Preprocess, mask_rule: str = "centre") -> None:
        _check(preprocess)
        check_rule(mask_rule)
        self.preprocess, self.mask_rule = preprocess, mask_rule
        self.mode = _MODES[preprocess.input_size[0]]
        self.mean = torch.tensor(preprocess.mean, dtype=torch.float32)[:, None, None]
        self.std = torch.tensor(preprocess.std, dtype=torch.float32)[:, None, None]
        _, target_h, target_w = preprocess.input_size
        scale = [math.floor(x / preprocess.crop_pct) for x in (target_h, target_w)]
        # timm resizes bilinearly for an input that is not square, whatever the recipe says: its published figures do.
        quirk = preprocess.crop_mode == "center" and scale[0] != scale[1]
        self.resample = _FILTERS["bilinear" if quirk else preprocess.interpolation]
        border = preprocess.crop_mode == "border"  # borders take the mean colour, every other padding is black
        colour = tuple(round(255 * m) if border else 0 for m in preprocess.mean)
        self.fill: int | tuple[int, ...] = colour if len(colour) > 1 else colour[0]

    def cut(self, image: Image.Image) -> tuple[Image.Image, Geometry]:
        """The part of a picture that the model sees, in the model's mode and size: eight bits, not yet normalised."""
        width, height = image.size
        image = plain(image)
        if image.mode != self.mode:
            image = image.convert(self.mode)
        geometry = plan((height, width), self.preprocess)
        if geometry.resized[0] * geometry.resized[1] > _MAX_RESIZED:
            raise DataError(
                f"a strip of {width} x {height} pixels would grow to {geometry.resized[1]} x {geometry.resized[0]} "
                "before it is cropped"
            )
        return apply(image, geometry, self.resample, self.fill), geometry

    def __call__(self, image: Image.Image, mask: Image.Image | None = None) -> tuple[Tensor, Tensor | None]:
        picture, geometry = self.cut(image)
        x = normalise(picture, self.mean, self.std)
        if mask is None:
            return x, None
        if mask.size != image.size:
            (w, h), (width, height) = mask.size, image.size
            raise DataError(f"the mask is {w} x {h} pixels, the image {width} x {height}")
        mask = resized(mask, geometry.resized, self.mask_rule)
        seen = apply(mask, geometry, Image.Resampling.NEAREST, IGNORED)  # padding is neither object nor context
        return x, torch.from_numpy(np.array(seen))

    def __repr__(self) -> str:
        p = self.preprocess
        return f"ImageTransform({p.input_size}, {p.interpolation}, {p.crop_mode} crop {p.crop_pct})"


def build_transform(preprocess: Preprocess, mask_rule: str = "centre") -> ImageTransform:
    """The transform of a model's recipe. It can be sent to other processes. `mask_rule`: see `data/masks.py`."""
    return ImageTransform(preprocess, mask_rule)


def _check(p: Preprocess) -> None:
    channels = p.input_size[0]
    if channels not in _MODES:
        raise DataError(
            f"A model with {channels} input channels cannot be fed with pictures: expected 1 or 3 channels."
        )
    if len(p.mean) != channels or len(p.std) != channels:
        raise DataError(
            f"The recipe has {channels} channels, but {len(p.mean)} means and {len(p.std)} standard deviations: "
            "give one of each per channel."
        )
    if p.interpolation not in _FILTERS:
        hint = suggest(p.interpolation, _FILTERS)
        raise DataError(f"Unknown interpolation {p.interpolation!r}.{hint} Known: {', '.join(_FILTERS)}.")
    if p.crop_mode not in ("center", "squash", "border", "short"):
        raise DataError(f"Unknown crop mode {p.crop_mode!r}: expected center, squash, border or short.")
    if not p.crop_pct > 0:
        raise DataError(f"crop_pct must be positive, not {p.crop_pct}.")
