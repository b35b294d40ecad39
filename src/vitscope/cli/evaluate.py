"""`vitscope evaluate`: how do models break?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitscope.cli.configuration import FromFile, parse_with_config
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
class Words(FromFile, EvaluateOptions):
    __doc__ = EvaluateOptions.__doc__


def main(arguments: Sequence[str]) -> None:
    options = parse_with_config(Words, "evaluate", arguments, EXAMPLES)
    show(options.run(command=["vitscope", "evaluate", *arguments]))
