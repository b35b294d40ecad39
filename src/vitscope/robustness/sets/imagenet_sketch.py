"""ImageNet-Sketch: <WordNet id>/*.JPEG for all 1,000 classes, in a folder `sketch` as unpacked.

Wang et al., "Learning robust global representations by penalizing local predictive power", NeurIPS 2019.
"""

from __future__ import annotations

from pathlib import Path

from vitscope.robustness.condition import Condition
from vitscope.robustness.sets.folders import inner_folder, read_set, remark, wordnet_classes
from vitscope.robustness.sets.registry import SetOptions, register_set


@register_set("SKETCH", "ImageNet-Sketch")
def imagenet_sketch(folder: Path, options: SetOptions) -> list[Condition]:
    folder = inner_folder(folder)
    found = len(wordnet_classes(folder, "ImageNet-Sketch"))
    data = read_set(folder, options)
    remark(data, "ImageNet-Sketch", found, 1000)
    return [Condition("SKETCH", data)]
