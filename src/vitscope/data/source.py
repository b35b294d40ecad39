"""What a dataset function returns: pictures, labels and perhaps masks, before anything is chosen or read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from vitscope.errors import DataError

_NO_TEXT = re.compile("[\ud800-\udfff]")  # how Python keeps bytes that are not UTF-8


class Indexed(Protocol):
    """A list, an array, or anything with a length and numbered entries."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class Source:
    """A whole dataset, or one split of it. A function may also return just `(images, labels)` or `(..., classes)`."""

    images: Indexed  # files (str or Path), their bytes, uint8 arrays (H, W) or (H, W, 3), PIL images; may be one array
    labels: Sequence[int] | None = None  # class numbers, -1 where unknown; None: all unknown
    classes: Sequence[str] | None = None  # names by class number; None: the numbers themselves
    masks: Indexed | Callable[[Image.Image], Image.Image] | None = None  # as images, or drawn from the image
    decode_mask: Callable[[Image.Image, int], Any] | None = None  # (mask, label) -> 0, 1, 255 per pixel
    maps: Indexed | None = None  # classes of pixels: files, or (H, W) whole numbers; None where one is missing
    decode_map: Callable[[Any], Any] | None = None  # what is stored -> (H, W) classes, -1: ignored; None: 255 is
    root: Path | None = None  # files are named, listed and fingerprinted relative to it
    names: Sequence[str] | None = None  # one per picture; None: relative paths, or 'dataset[17]'
    holds: str | None = None  # the split this really is, if not the one asked for; 'all': nothing is split yet
    class_ids: Sequence[str] | None = None  # machine names of the classes, e.g. the folders'
    shards: Sequence[int] = ()  # number of the first picture of each file that holds many; processes share by file
    content: str | None = None  # stands for the pictures in the fingerprint, for sets too slow to be read for it
    warnings: tuple[str, ...] = field(default=())  # what was left out or is doubtful: an error with `strict`
    notes: tuple[str, ...] = field(default=())  # remarks on data that are as they should be: never an error

    def __repr__(self) -> str:
        return f"Source({len(self.images):,} images, {len(self.classes or []):,} classes, holds={self.holds!r})"


def as_source(returned: Any, dataset: str) -> Source:
    """Whatever a dataset function returned, checked and complete: labels, classes and names are filled in."""
    if isinstance(returned, tuple) and len(returned) in (2, 3):
        returned = Source(*returned)
    if not isinstance(returned, Source):
        raise DataError(
            f"Dataset {dataset!r} returned {type(returned).__name__}: expected (images, labels), "
            "(images, labels, classes), a vitscope.data.Source, data with batches(), or a list of strings."
        )
    n = len(returned.images)
    labels = _labels(returned.labels, n, dataset)
    top = max(labels, default=-1)
    classes = [str(c) for c in returned.classes] if returned.classes is not None else [str(i) for i in range(top + 1)]
    if top >= len(classes) or min(labels, default=0) < -1:
        raise DataError(
            f"Dataset {dataset!r} has labels {min(labels)}..{top}, but {len(classes)} class names: "
            f"expected 0..{len(classes) - 1}, or -1 for unknown."
        )
    masks = returned.masks
    if masks is not None and not callable(masks) and len(masks) != n:
        raise DataError(f"Dataset {dataset!r} has {n:,} images, but {len(masks):,} masks: expected one for each image.")
    maps = returned.maps
    if maps is not None and (len(maps) != n or not returned.classes):
        raise DataError(
            f"Dataset {dataset!r} has {n:,} images and {len(maps):,} label maps of {len(returned.classes or ())} "
            "classes: expected one map for each image, and the names of all classes."
        )
    names = list(returned.names) if returned.names is not None else _names(returned, dataset)
    if len(names) != n:
        raise DataError(f"Dataset {dataset!r} has {n:,} images, but {len(names):,} names.")
    return replace(returned, labels=labels, classes=list(map(_printable, classes)), names=list(map(_printable, names)))


def _printable(name: str) -> str:
    """Names of files and folders may hold bytes that are no text; tables and reports cannot."""
    return name if name.isascii() else _NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", name)


def _labels(labels: Sequence[int] | None, n: int, dataset: str) -> list[int]:
    if labels is None:
        return [-1] * n
    a = np.asarray(labels)
    if a.shape != (n,) or not (n == 0 or np.issubdtype(a.dtype, np.integer)):
        raise DataError(
            f"Dataset {dataset!r} has {n:,} images, but labels of shape {a.shape} and type {a.dtype}: "
            "expected one whole number for each image."
        )
    return a.tolist()


def _names(source: Source, dataset: str) -> list[str]:
    names = []
    for i in range(len(source.images)):
        image = source.images[i]
        if isinstance(image, (str, Path)):
            path = Path(image)
            inside = source.root is not None and path.is_relative_to(source.root)
            names.append(path.relative_to(source.root).as_posix() if inside and source.root else path.as_posix())
        else:
            names.append(f"{dataset}[{i}]")
    return names
