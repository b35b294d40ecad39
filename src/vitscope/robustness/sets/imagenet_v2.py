"""ImageNetV2: class folders called 0 to 999, the numbers of ImageNet's classes, not in the order of their spelling.

Recht et al., "Do ImageNet classifiers generalize to ImageNet?", ICML 2019. Copies with WordNet names are read, too.
"""

from __future__ import annotations

from pathlib import Path

from vitscope.data import load_data, synsets
from vitscope.data.folders import subfolders
from vitscope.robustness.condition import Condition
from vitscope.robustness.sets.folders import inner_folder, read_set, remark, wordnet_classes
from vitscope.robustness.sets.registry import SetOptions, register_set


@register_set("V2", "ImageNetV2")
def imagenet_v2(folder: Path, options: SetOptions) -> list[Condition]:
    folder = inner_folder(folder)
    names = [d.name for d in subfolders(folder, [])]
    if any(name.isdecimal() for name in names):
        data = load_data("imagenet-v2", root=folder, images=options.images, seed=options.seed, strict=options.strict)
    else:
        wordnet_classes(folder, "ImageNetV2")
        data = read_set(folder, options)
    remark(data, "ImageNetV2", len(names), synsets.NUM_CLASSES)
    return [Condition("V2", data)]
