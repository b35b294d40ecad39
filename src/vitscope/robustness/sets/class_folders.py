"""The sets whose pictures lie in folders of ImageNet's classes: A, R, O, Sketch and V2.

* A, R: 200 of the classes. Hendrycks et al., "Natural adversarial examples" (CVPR 2021), "The many faces of robustness"
  (ICCV 2021). Published accuracies are of the logits of these classes alone, which are read off the folders.
* O (CVPR 2021, as A): pictures of other classes, in folders named after 200 that ImageNet has. There is no right
  answer: what is measured is how well the confidence tells them from clean pictures of the same 200 classes.
* Sketch: all classes, in a folder `sketch` as unpacked. Wang et al., NeurIPS 2019,
  "Learning robust global representations by penalizing local predictive power".
* V2: all classes, in folders 0 to 999, the numbers of ImageNet's classes, not in the order of their spelling. Recht et
  al., "Do ImageNet classifiers generalize to ImageNet?", ICML 2019. Copies with WordNet names are read, too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitscope.data import load_data, synsets
from vitscope.data.folders import subfolders
from vitscope.robustness.condition import Condition
from vitscope.robustness.sets.folders import inner_folder, read_set, remark, wordnet_classes
from vitscope.robustness.sets.registry import SetOptions, register_set


@register_set("A", "ImageNet-A")
def imagenet_a(folder: Path, options: SetOptions) -> list[Condition]:
    return [_of_200("A", "ImageNet-A", folder, options)]


@register_set("R", "ImageNet-R")
def imagenet_r(folder: Path, options: SetOptions) -> list[Condition]:
    return [_of_200("R", "ImageNet-R", folder, options)]


@register_set("O", "ImageNet-O")
def imagenet_o(folder: Path, options: SetOptions) -> list[Condition]:
    return [replace(_of_200("O", "ImageNet-O", folder, options), labelled=False)]


def _of_200(letter: str, name: str, folder: Path, options: SetOptions) -> Condition:
    folder = inner_folder(folder)
    classes = wordnet_classes(folder, name)
    data = read_set(folder, options)
    remark(data, name, len(classes), 200)
    return Condition(letter, data, classes=classes)


@register_set("SKETCH", "ImageNet-Sketch")
def imagenet_sketch(folder: Path, options: SetOptions) -> list[Condition]:
    folder = inner_folder(folder)
    found = len(wordnet_classes(folder, "ImageNet-Sketch"))
    data = read_set(folder, options)
    remark(data, "ImageNet-Sketch", found, synsets.NUM_CLASSES)
    return [Condition("SKETCH", data)]


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
