"""`vitscope analyze`: look inside models in one pass over the data."""

from __future__ import annotations

from collections.abc import Sequence

from vitscope.analyses.request import AnalyzeOptions
from vitscope.cli.configuration import OnCluster, carry_out, with_file

EXAMPLES = """\
  vitscope analyze vit_tiny_patch16_224 --data path/to/imagenet --split val --out runs/tiny
  vitscope analyze vit_tiny_patch16_224 --weights tiny.safetensors --data path/to/imagenet --images 1000
  vitscope analyze deit_tiny_patch16_224 deit3_small_patch16_224 --data path/to/imagenet --out runs/pair
  vitscope analyze runs/my-training --data mnist5k --only accuracy,attention
  vitscope analyze runs/my-training --data mnist5k --save 'blocks.*.hook_resid_post' --set save.dtype=float16
  vitscope analyze --config runs/tiny/config.yaml --batch-size 32 --out runs/tiny-32
  torchrun --nproc_per_node 2 -m vitscope analyze vit_tiny_patch16_224 --data path/to/imagenet --out runs/tiny
  vitscope analyze vit_base_patch16_224 --data path/to/imagenet --device cuda --out runs/base \\
      --cluster slurm --slurm partition=gpu nodes=2 tasks_per_node=4 gpus_per_node=4
"""
Words = with_file(AnalyzeOptions, OnCluster)


def main(arguments: Sequence[str]) -> None:
    carry_out(Words, "analyze", arguments, EXAMPLES)
