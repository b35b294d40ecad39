"""ImageNet-S as label maps: a class of 919 (or 50, 300) for every pixel, beside `other`, where none of them is.

The number of a pixel is R + 256 G: 0 is `other`, which is judged like a class, 1 to 919 are the categories, 1000 is
ignored (Gao et al., Large-scale Unsupervised Semantic Segmentation, 2022). `imagenet-s` has the same pictures with one
class each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitscope.data import synsets
from vitscope.data.imagenet_s import IGNORED_NUMBER, category_numbers, coded_numbers, imagenet_s
from vitscope.data.registry import register_dataset
from vitscope.data.segmentation.maps import IGNORED
from vitscope.data.source import Source
from vitscope.errors import DataError


@register_dataset("imagenet-s-maps")
def imagenet_s_maps(root: Path | None, split: str | None = None) -> Source:
    """The layout of ImageNet-S, of any of its sizes, for segmentation."""
    source = imagenet_s(root, split)
    if source.masks is None or callable(source.masks) or root is None:
        raise DataError(
            f"{root} ({source.holds}) has no label maps: choose a split with a folder like val-segmentation/."
        )
    categories, names = category_numbers(root), synsets.class_names()
    maps = [Path(source.masks[i]) for i in range(len(source.masks))]
    place = {number: i + 1 for i, number in enumerate(categories)}
    return replace(
        source,
        labels=[place.get(label, -1) for label in source.labels or []],
        classes=["other", *(names[number] for number in categories)],
        class_ids=["other", *(synsets.wordnet_ids()[number] for number in categories)],
        masks=None,
        decode_mask=None,
        maps=maps,
        decode_map=CodedMap(),
    )


@dataclass(frozen=True)
class CodedMap:
    """R + 256 G -> classes."""

    def __call__(self, stored: Any) -> np.ndarray:
        number = coded_numbers(stored)
        return np.where(number == IGNORED_NUMBER, IGNORED, number).astype(np.int64)
