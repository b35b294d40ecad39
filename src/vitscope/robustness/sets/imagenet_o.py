"""ImageNet-O: pictures of classes that ImageNet-1k does not have, in folders named after 200 classes that it has.

Hendrycks et al., "Natural adversarial examples", CVPR 2021. There is no right answer: what is measured is how well the
confidence tells these pictures from the clean ones of the same 200 classes.
"""

from __future__ import annotations

from pathlib import Path

from vitscope.robustness.condition import Condition
from vitscope.robustness.sets.folders import inner_folder, read_set, remark, wordnet_classes
from vitscope.robustness.sets.registry import SetOptions, register_set


@register_set("O", "ImageNet-O")
def imagenet_o(folder: Path, options: SetOptions) -> list[Condition]:
    folder = inner_folder(folder)
    classes = wordnet_classes(folder, "ImageNet-O")
    data = read_set(folder, options)
    remark(data, "ImageNet-O", len(classes), 200)
    return [Condition("O", data, classes=classes, labelled=False)]
