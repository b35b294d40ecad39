"""Any pair of folders: pictures in one, label maps under the same names in the other.

Splits are folders of both (`train/`, `val/`, ...), or of neither. How many classes there are, and what they are called,
says a file `classes.txt` beside the maps, one name per line in the order of the numbers; without one, all maps of all
splits are looked at for the largest number.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from vitscope.data.folders import FileList, list_images
from vitscope.data.images import EXTENSIONS, open_image
from vitscope.data.segmentation.maps import EIGHT, SIXTEEN, Numbers, stored_numbers
from vitscope.data.source import Source
from vitscope.data.splits import ALL, choose_split, normal_split
from vitscope.errors import DataError

NAMES = "classes.txt"


def pair_source(
    images: Path, labels: Path, split: str | None, first: int = 0, names: list[str] | None = None
) -> Source:
    """Pictures below one folder with their maps below another. first: the number of class 0; names: of the classes."""
    for folder in (images, labels):
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "does not exist"
            raise DataError(f"{folder} {what}: expected a folder of pictures, and one of label maps.")
    splits = {normal_split(d.name): d.name for d in _folders(images)}
    both = {name: folder for name, folder in splits.items() if (labels / folder).is_dir()}
    if splits and not both:
        raise DataError(
            f"The folders of {images} ({', '.join(sorted(splits.values()))}) are not those of {labels} "
            f"({', '.join(sorted(d.name for d in _folders(labels))) or 'none'}): splits are called the same in both."
        )
    holds = choose_split(split, sorted(both), str(images)) if both else ALL
    part = both.get(holds, "")
    listing, found = list_images(images / part), _by_stem(labels / part)
    if not listing.files:
        raise DataError(f"No images in {images / part}: expected pictures (.jpg, .png, ...).")
    partners = [found.pop(os.path.splitext(name)[0], None) for name in listing.files]
    if not any(partners):
        raise DataError(
            f"None of the {len(partners):,} pictures in {images / part} has a label map in {labels / part}: expected "
            f"the same names, such as {os.path.splitext(listing.files[0])[0]}.png."
        )
    problems = list(listing.problems)
    if found:
        alone = sorted(found.values())[0].name
        problems.append(f"{len(found):,} label maps of {labels / part} have no picture, e.g. {alone}.")
    coloured = next((path for path in partners if path is not None and has_palette(path)), None)
    notes = []  # what is no fault
    if coloured is not None:
        notes.append(f"Label maps have a palette, e.g. {coloured.name}: its indices are the classes, not its colours.")
    rows = [f"{part}/{name}" if part else name for name in listing.files]
    names = names or named_classes(labels, first)
    return Source(
        images=FileList(images, rows),
        classes=names,
        maps=partners,
        decode_map=Numbers(len(names), first),
        root=images,
        names=rows,
        holds=holds,
        warnings=tuple(problems),
        notes=tuple(notes),
    )


def has_palette(path: Path) -> bool:
    """Read off its first bytes; what cannot be opened is listed when it is its turn."""
    try:
        with Image.open(path) as file:
            return file.mode == "P"
    except OSError:
        return False


def named_classes(labels: Path, first: int = 0) -> list[str]:
    """From `classes.txt`, or the numbers up to the largest of all maps."""
    file = labels / NAMES
    if file.is_file():
        names = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not names:
            raise DataError(f"{file} is empty: expected one class per line.")
        return names
    return [str(number) for number in range(first, largest_number(_by_stem(labels).values()) + 1)]


def largest_number(maps: Iterable[Path]) -> int:
    """The largest class number in any of these maps; those that cannot be read are listed when it is their turn."""
    largest = -1
    for path in maps:
        try:
            numbers = stored_numbers(open_image(path))
        except DataError:
            continue
        largest = max(largest, int(np.max(numbers, where=~np.isin(numbers, (EIGHT, SIXTEEN)), initial=-1)))
    if largest < 0:
        raise DataError(
            "No label map can be read and has a pixel that is not ignored, so that nobody knows how many classes there "
            f"are. A file {NAMES} beside the maps says so, one name per line."
        )
    return largest


def _by_stem(folder: Path) -> dict[str, Path]:
    """Label maps below a folder, by their path without its ending."""
    listing = list_images(folder)
    return {os.path.splitext(name)[0]: folder / name for name in listing.files}


def _folders(folder: Path) -> list[Path]:
    """Folders with pictures below them."""
    inner = sorted(d for d in folder.iterdir() if d.is_dir() and not d.name.startswith("."))
    return [d for d in inner if any(p.suffix.lower() in EXTENSIONS for p in d.rglob("*"))]
