"""ImageNetV2: class folders called 0 to 999, the numbers of ImageNet's classes, not in the order of their spelling.

Recht et al., "Do ImageNet classifiers generalize to ImageNet?", ICML 2019. Copies with WordNet names are read, too.
"""

from __future__ import annotations

from pathlib import Path

from vitscope.data import Source, load_data, register_dataset, synsets
from vitscope.data.folders import FileList, list_images, subfolders
from vitscope.errors import DataError
from vitscope.robustness.condition import Condition
from vitscope.robustness.sets.folders import inner_folder, read_set, remark, wordnet_classes
from vitscope.robustness.sets.registry import SetOptions, register_set


@register_set("V2", "ImageNetV2")
def imagenet_v2(folder: Path, options: SetOptions) -> list[Condition]:
    folder = inner_folder(folder)
    names = [d.name for d in subfolders(folder, [])]
    if any(name.isdigit() for name in names):
        data = load_data("imagenet-v2", root=folder, images=options.images, seed=options.seed, strict=options.strict)
    else:
        wordnet_classes(folder, "ImageNetV2")
        data = read_set(folder, options)
    remark(data, "ImageNetV2", len(names), synsets.NUM_CLASSES)
    return [Condition("V2", data)]


@register_dataset("imagenet-v2")
def numbered_folders(root: Path | None) -> Source:
    """Folders 0 to 999, labelled by their numbers."""
    if root is None:
        raise DataError("Dataset 'imagenet-v2' needs to know where it is: give root=FOLDER.")
    folders = subfolders(root, [])
    wrong = [d.name for d in folders if not (d.name.isdigit() and int(d.name) < synsets.NUM_CLASSES)]
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
