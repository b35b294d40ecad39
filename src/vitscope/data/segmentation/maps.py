"""Label maps: from files and arrays to one class number per pixel, -1 where a pixel is not to be judged.

A file holds numbers: 8 bits of grey, 16 bits of grey, or a palette, of which the *indices* are the classes, whatever
the colours are. In 8 bits 255 is ignored; in 16 bits 65535 is, and 255 as long as there is no such class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitscope.data.images import BadFileError
from vitscope.errors import DataError

IGNORED = -1
EIGHT, SIXTEEN = 255, 65535  # what files of so many bits call it

Decode = Callable[[Any], np.ndarray]  # what is stored, a picture or an array -> (H, W) classes, -1: ignored


def stored_numbers(stored: Any) -> np.ndarray:
    """(H, W) int64: the numbers that a picture or an array holds. Grey that is stored as RGB is its grey."""
    if isinstance(stored, Image.Image) and stored.format == "JPEG":
        raise DataError("a JPEG, in which numbers do not stay what they were: save label maps as PNG")
    a = np.asarray(stored)  # of a palette: the indices
    if a.ndim == 3 and a.shape[2] in (3, 4) and (a[..., :3] == a[..., :1]).all():
        a = a[..., 0]
    if a.ndim == 3 and a.shape[2] in (3, 4):
        raise DataError(
            "in colour; expected one number per pixel (grey or a palette). Colours are read by a function of your own: "
            "Source(decode_map=...)"
        )
    if a.ndim != 2 or not (a.dtype == np.bool_ or np.issubdtype(a.dtype, np.integer)):
        raise DataError(f"an array of shape {a.shape} and type {a.dtype}; expected (H, W) whole numbers")
    return a.astype(np.int64)


@dataclass(frozen=True)
class Numbers:
    """The numbers as they are, counted from `first`: smaller ones and those that stand for it are ignored."""

    classes: int
    first: int = 0  # the number of class 0: 1 where 0 means something else
    ignored: tuple[int, ...] = ()  # further numbers

    def __call__(self, stored: Any) -> np.ndarray:
        a = stored_numbers(stored)
        wide = np.asarray(stored).dtype.itemsize > 1
        marks = {*self.ignored, SIXTEEN if wide else EIGHT}
        if wide and self.classes + self.first <= EIGHT:
            marks.add(EIGHT)
        return np.where(np.isin(a, [*marks]) | ((a >= 0) & (a < self.first)), IGNORED, a - self.first)


def as_map(labels: Any, size: tuple[int, int], classes: int, path: str | Path, name: str = "its label map") -> Any:
    """A decoded map after checks, (H, W) int64: as large as its picture `size` (width, height), classes that are."""
    a = np.asarray(labels)
    if a.ndim != 2 or not np.issubdtype(a.dtype, np.integer):
        raise BadFileError(path, f"{name} has shape {a.shape} and type {a.dtype}; expected (H, W) whole numbers")
    if (a.shape[1], a.shape[0]) != size:
        raise BadFileError(path, f"{name} is {a.shape[1]} x {a.shape[0]} pixels, the image {size[0]} x {size[1]}")
    if a.size and (a.min() < IGNORED or a.max() >= classes):
        wrong = np.unique(a[(a < IGNORED) | (a >= classes)])
        raise BadFileError(
            path,
            f"{name} holds class {', '.join(map(str, wrong[:5].tolist()))}, and there are {classes} (0 to "
            f"{classes - 1}; {IGNORED}: ignored)",
        )
    return a.astype(np.int64, copy=False)


def nearest(labels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A map in another `size` (height, width): the class at the centre of each new pixel."""
    if labels.shape == size:
        return labels
    rows, columns = (((np.arange(n) + 0.5) * old / n).astype(np.int64) for n, old in zip(size, labels.shape))
    return labels[rows][:, columns]
