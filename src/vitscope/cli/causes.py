"""`vitscope causes`: which parts of a model make its answer, and which restore it?"""

from __future__ import annotations

from collections.abc import Sequence

from vitscope.analyses.causes.causes_options import CausesOptions
from vitscope.cli.configuration import carry_out, with_file

EXAMPLES = """\
  vitscope causes vit_tiny_patch16_224 --data path/to/imagenet --split val --every 5 --out runs/causes
  vitscope causes vit_tiny_patch16_224 --data path/to/imagenet --parts patching --pairs pgd@1/255,corrupt:fog@3
  vitscope causes vit_tiny_patch16_224 --data path/to/ImageNetS919 --split validation --pairs mask,class
  vitscope causes vit_tiny_patch16_224 --data path/to/imagenet --method mean --together 11.2+10.0,9.1+8.2
  vitscope causes vit_tiny_patch16_224 --data path/to/imagenet --pairs class --paths '8.1>11.2,9.0>11.2:v'
  vitscope causes vit_tiny_patch16_224 --data path/to/imagenet --images 16 --batch-size 4 --pairs pgd@1/255 \\
      --parts patching --tokens each --set causes.patching.kinds=resid causes.patching.directions=denoising
  vitscope causes path/to/a-language-model --data pydoc --unit windows --context 64 --images 20 --pairs swap
  torchrun --nproc_per_node 2 -m vitscope causes vit_tiny_patch16_224 --data path/to/imagenet --out runs/causes
"""
Words = with_file(CausesOptions)


def main(arguments: Sequence[str]) -> None:
    carry_out(Words, "causes", arguments, EXAMPLES)
