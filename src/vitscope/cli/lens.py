"""`vitscope lens`: where does a ViT know the class?"""

from __future__ import annotations

from collections.abc import Sequence

from vitscope.analyses.class_space.lens_options import LensOptions
from vitscope.cli.configuration import carry_out, with_file

EXAMPLES = """\
  vitscope lens vit_tiny_patch16_224 --data path/to/imagenet --split val --control random --out runs/lens
  vitscope lens vit_tiny_patch16_224 --data path/to/ImageNetS919 --split validation \\
      --train path/to/ImageNetS919 --train-split test --out runs/lens
  vitscope lens vit_tiny_patch16_224 --data path/to/imagenet --tokens class
  vitscope lens vit_tiny_patch16_224 --data path/to/ImageNetS919 --split validation --parts relevance
  vitscope lens vit_tiny_patch16_224 --data path/to/ImageNetS919 --split validation --parts relevance \\
      --set relevance.block=3 relevance.attention_head=1 relevance.target=tabby
"""
Words = with_file(LensOptions)


def main(arguments: Sequence[str]) -> None:
    carry_out(Words, "lens", arguments, EXAMPLES)
