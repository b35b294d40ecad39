"""`vitscope evaluate`: how do models break?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from vitscope.cli.parsing import named, parse
from vitscope.cli.results import show
from vitscope.robustness.evaluation.request import EvaluateOptions

EXAMPLES = """\
  vitscope evaluate vit_tiny_patch16_224 --data path/to/imagenet --split val --corrupt all --images 200
  vitscope evaluate vit_tiny_patch16_224 --data path/to/imagenet --split val \\
      --ood A=path/to/imagenet-a,R=path/to/imagenet-r,O=path/to/imagenet-o,C=path/to/imagenet-c
  vitscope evaluate vit_tiny_patch16_224 deit_tiny_patch16_224 --data path/to/imagenet \\
      --ood V2=path/to/imagenetv2-matched-frequency-format-val,SKETCH=path/to/sketch --out runs/pair
  vitscope evaluate runs/softmax runs/rpc --data mnist5k --corrupt noise,fog --severities 1,3,5 --out runs/broken
  torchrun --nproc_per_node 2 -m vitscope evaluate runs/softmax --data mnist5k --corrupt all --out runs/broken
"""


@dataclass(frozen=True)
class Words(EvaluateOptions):
    __doc__ = EvaluateOptions.__doc__

    models: Annotated[tyro.conf.Positional[tuple[str, ...]], named("MODEL [MODEL ...]")] = ()
    """timm names, with or without tag, or folders of `vitscope train`"""
    only: tyro.conf.Suppress[tuple[str, ...] | None] = None
    set: tyro.conf.Suppress[Mapping[str, Any]] = field(default_factory=dict)
    save: tyro.conf.Suppress[tuple[str, ...]] = ()
    ood: Annotated[tuple[str, ...], named("A=DIR,R=DIR,...")] = ()
    """published sets by letter: A, R, C, O, V2, SKETCH, each in the layout in which it is distributed"""
    corrupt: Annotated[tuple[str, ...], named("all|NAME,...")] = ()
    """corruptions applied to --data on the fly: all, a family (noise, blur, weather, digital) or names"""
    severities: Annotated[tuple[str, ...], named("1-5")] = ("1-5",)
    """of --corrupt and of ImageNet-C, such as 3 or 1,3,5"""
    c_corruptions: Annotated[tuple[str, ...], named("NAME,...")] = ("all",)
    """folders of ImageNet-C to read; mCE needs all 15"""
    trust: bool = False
    """import the code outside of vitscope that a run folder names; only what you trust"""


def main(arguments: Sequence[str]) -> None:
    options = parse(Words, "evaluate", arguments, EXAMPLES)
    show(options.run(command=["vitscope", "evaluate", *arguments]))
