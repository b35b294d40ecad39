"""ImageNet-A and ImageNet-R: 200 of ImageNet's classes each, in folders with WordNet names.

Hendrycks et al., "Natural adversarial examples" (CVPR 2021) and "The many faces of robustness" (ICCV 2021). Published
accuracies are of the logits of the 200 classes alone; which classes these are is read off the folders.
"""

from __future__ import annotations

from pathlib import Path

from vitscope.robustness.condition import Condition
from vitscope.robustness.sets.folders import inner_folder, read_set, remark, wordnet_classes
from vitscope.robustness.sets.registry import SetOptions, register_set

CLASSES = 200


@register_set("A", "ImageNet-A")
def imagenet_a(folder: Path, options: SetOptions) -> list[Condition]:
    return _masked("A", "ImageNet-A", folder, options)


@register_set("R", "ImageNet-R")
def imagenet_r(folder: Path, options: SetOptions) -> list[Condition]:
    return _masked("R", "ImageNet-R", folder, options)


def _masked(letter: str, name: str, folder: Path, options: SetOptions) -> list[Condition]:
    folder = inner_folder(folder)
    classes = wordnet_classes(folder, name)
    data = read_set(folder, options)
    remark(data, name, len(classes), CLASSES)
    return [Condition(letter, data, classes=classes)]
