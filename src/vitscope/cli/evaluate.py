"""`vitscope evaluate`: how do models break?"""

from __future__ import annotations

from collections.abc import Sequence

from vitscope.cli.configuration import carry_out, with_file
from vitscope.robustness.evaluation.evaluate_options import EvaluateOptions

EXAMPLES = """\
  vitscope evaluate vit_tiny_patch16_224 --data path/to/imagenet --split val --corrupt all --images 200
  vitscope evaluate vit_tiny_patch16_224 --data path/to/imagenet --split val \\
      --ood A=path/to/imagenet-a,R=path/to/imagenet-r,O=path/to/imagenet-o,C=path/to/imagenet-c
  vitscope evaluate vit_tiny_patch16_224 deit_tiny_patch16_224 --data path/to/imagenet \\
      --ood V2=path/to/imagenetv2-matched-frequency-format-val,SKETCH=path/to/sketch --out runs/pair
  vitscope evaluate runs/softmax runs/rpc --data mnist5k --corrupt noise,fog --severities 1,3,5 --out runs/broken
  vitscope evaluate path/to/stories260K --data pydoc --context 128 --swap --noise 0.02 --out runs/swapped
  vitscope evaluate runs/scenes --data digit-scenes --corrupt all --severities 1-3 --out runs/broken
  torchrun --nproc_per_node 2 -m vitscope evaluate runs/softmax --data mnist5k --corrupt all --out runs/broken
"""
Words = with_file(EvaluateOptions)


def main(arguments: Sequence[str]) -> None:
    carry_out(Words, "evaluate", arguments, EXAMPLES)
