"""ImageNet-S: class folders as in ImageNet, and beside a split `validation/` its masks in `validation-segmentation/`.

A mask is a PNG whose pixel holds the class number R + 256 G: 0 is the background, 1, 2, ... count the lines of the
categories file, 1000 is to be ignored (Gao et al., Large-scale Unsupervised Semantic Segmentation, 2022). Labels here
are ImageNet's own 1,000, so that any ImageNet model can be asked; a mask says where the image's own class is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image

from vitscope.data import synsets
from vitscope.data.batch import CONTEXT, IGNORED, OBJECT
from vitscope.data.folders import FileList, find_splits, folder_source, subfolders
from vitscope.data.places import given_root
from vitscope.data.registry import register_dataset
from vitscope.data.source import Source
from vitscope.errors import DataError

SUFFIX = "-segmentation"
IGNORED_NUMBER = 1000
_SIZES = (50, 300, 919)  # of the published subsets
_CATEGORIES = ("data/categories", "categories", ".")  # where the file of class numbers may lie


@register_dataset("imagenet-s")
def imagenet_s(root: Path | None, split: str | None = None) -> Source:
    """The layout of ImageNet-S, of any of its sizes."""
    root = given_root(root, "imagenet-s", ", with validation/ in it")
    source = with_masks(folder_source(root, split), root)
    if not _is_imagenet(source):
        raise DataError(f"The class folders of {root} are not WordNet ids of ImageNet-1k: this is not ImageNet-S.")
    return source


def with_masks(source: Source, root: Path, plain: bool = False) -> Source:
    """A folder's pictures with the masks in `validation-segmentation/` beside `validation/`, where there are any.

    Pictures of ImageNet's classes have its colour-coded masks. Others, and `plain` ones, have a number per pixel.
    """
    names = source.images.names if isinstance(source.images, FileList) else []
    split = names[0].split("/")[0]
    if (root / (split + SUFFIX)).is_dir():
        home, folder, names = root, split, [name[len(split) + 1 :] for name in names]
        if not find_splits(root, []):
            raise DataError(
                f"{root} has {split}{SUFFIX}/ beside {split}/, which looks like masks beside a class: put the class "
                f"folders into a folder val/ and those of their masks into val{SUFFIX}/."
            )
    elif root.name and root.with_name(root.name + SUFFIX).is_dir():
        home, folder = root.parent, root.name
    else:
        return source
    masks = FileList(home, [f"{folder}{SUFFIX}/{os.path.splitext(name)[0]}.png" for name in names])
    if plain or not _is_imagenet(source):
        return replace(source, masks=masks)
    return replace(source, masks=masks, decode_mask=CategoryMask(tuple(category_numbers(home))))


def _is_imagenet(source: Source) -> bool:
    return source.class_ids is not None and len(source.class_ids) == synsets.NUM_CLASSES


def categories_file(root: Path) -> Path | None:
    found = (path for place in _CATEGORIES for path in sorted((root / place).glob("ImageNetS_categories_im*.txt")))
    return next(found, None)


def category_numbers(root: Path) -> list[int]:
    """ImageNet's class number for each category, in the order of the mask's numbers (which start at 1)."""
    path = categories_file(root)
    if path is not None:
        ids = path.read_text().split()
    else:  # the published files list the class folders in the order of their names
        ids = max(([d.name for d in subfolders(s, [])] for s in subfolders(root, [])), key=len, default=[])
        if len(ids) not in _SIZES:
            raise DataError(
                f"The masks of {root} cannot be read without ImageNetS_categories_im{len(ids)}.txt: put the file into "
                f"{root / _CATEGORIES[0]}, or say masks=False (--no-masks); of masks that are just black and white, "
                "mask_decoding='nonzero' (--mask-decoding nonzero)."
            )
    index = {wordnet_id: i for i, wordnet_id in enumerate(synsets.wordnet_ids())}
    unknown = [i for i in ids if i not in index]
    if unknown:
        raise DataError(
            f"{path or root} names {len(unknown)} classes that ImageNet-1k does not have, e.g. {unknown[0]!r}."
        )
    return [index[i] for i in ids]


def coded_numbers(mask: Image.Image) -> np.ndarray:
    """The number of each pixel of a colour-coded mask: (H, W) int32."""
    if mask.mode not in ("RGB", "RGBA"):
        raise DataError(f"its mask has mode {mask.mode!r}; ImageNet-S masks are RGB, the class number is R + 256 G")
    a = np.asarray(mask)
    return a[..., 0].astype(np.int32) + 256 * a[..., 1].astype(np.int32)


@dataclass(frozen=True)
class CategoryMask:
    """Turns a colour-coded mask into CONTEXT, OBJECT (the image's own class) and IGNORED."""

    labels: tuple[int, ...] = field(repr=False)  # ImageNet's class number for categories 1, 2, ...

    def __call__(self, mask: Image.Image, label: int) -> np.ndarray:
        number = coded_numbers(mask)
        last = len(self.labels)
        beyond = number[(number > last) & (number != IGNORED_NUMBER)]
        if beyond.size:
            raise DataError(f"its mask holds class number {beyond.max()}, but there are {last} categories")
        if label not in self.labels:
            raise DataError(f"class {label} of the image is none of the {last} categories of the masks")
        own = self.labels.index(label) + 1
        return np.where(number == IGNORED_NUMBER, IGNORED, np.where(number == own, OBJECT, CONTEXT)).astype(np.uint8)
