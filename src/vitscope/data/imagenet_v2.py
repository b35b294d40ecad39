"""ImageNetV2: class folders called 0 to 999, the numbers of ImageNet's classes, not in the order of their spelling."""

from __future__ import annotations

from pathlib import Path

from vitscope.data import synsets
from vitscope.data.folders import FileList, list_images, subfolders
from vitscope.data.places import given_root
from vitscope.data.registry import register_dataset
from vitscope.data.source import Source
from vitscope.errors import DataError


@register_dataset("imagenet-v2")
def numbered_folders(root: Path | None) -> Source:
    """Folders 0 to 999, labelled by their numbers."""
    root = given_root(root, "imagenet-v2")
    folders = subfolders(root, [])
    wrong = [d.name for d in folders if not (d.name.isdecimal() and int(d.name) < synsets.NUM_CLASSES)]
    if wrong:
        raise DataError(
            f"{root} is not ImageNetV2: its class folders should be called 0 to 999, but there is {wrong[0]!r}."
        )
    files, labels = [], []
    for d in sorted(folders, key=lambda d: int(d.name)):
        inside = list_images(d).files
        files += [f"{d.name}/{name}" for name in inside]
        labels += [int(d.name)] * len(inside)
    ids, names = list(synsets.wordnet_ids()), list(synsets.class_names())
    return Source(FileList(root, files), labels, names, root=root, names=files, class_ids=ids, holds="all")
