"""What the sets have in common: folders with WordNet names inside the folder that a user names."""

from __future__ import annotations

from pathlib import Path

from vitscope.data import ImageData, load_data, synsets
from vitscope.data.folders import subfolders
from vitscope.errors import DataError
from vitscope.robustness.sets.registry import SetOptions


def inner_folder(folder: Path) -> Path:
    """The folder itself, or, where an archive was unpacked into a folder of its own, the only folder inside."""
    inside = subfolders(folder, [])
    while len(inside) == 1 and not synsets.count_known([inside[0].name]) and subfolders(inside[0], []):
        folder, inside = inside[0], subfolders(inside[0], [])
    return folder


def wordnet_classes(folder: Path, name: str) -> tuple[int, ...]:
    """Class numbers of the folders' WordNet names, sorted. Anything but ImageNet's classes is an error."""
    number = {wordnet_id: i for i, wordnet_id in enumerate(synsets.wordnet_ids())}
    names = [d.name for d in subfolders(folder, [])]
    foreign = [n for n in names if n not in number]
    if foreign or not names:
        found = (
            f"{len(foreign):,} of its {len(names):,} folders are not (e.g. {foreign[0]})" if names else "it has none"
        )
        raise DataError(
            f"{folder} is not {name}: its class folders should be WordNet ids of ImageNet-1k such as n01440764, but "
            f"{found}. Name the folder that holds the class folders."
        )
    return tuple(sorted(number[n] for n in names))


def read_set(folder: Path, options: SetOptions) -> ImageData:
    """The chosen pictures of a folder with WordNet class folders, labelled 0 to 999."""
    return load_data("imagenet", root=folder, images=options.images, seed=options.seed, strict=options.strict)


def remark(data: ImageData, name: str, found: int, expected: int) -> None:
    """Say so where a set has another number of classes than the published one."""
    if found != expected:
        data.warnings.append(f"{name} has {expected:,} classes as published; {data.root} has {found:,}.")
