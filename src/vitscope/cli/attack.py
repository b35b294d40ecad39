"""`vitscope attack`: how easily do models break?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from vitscope.cli.configuration import OnCluster, carry_out, with_file
from vitscope.errors import VitscopeError
from vitscope.robustness.attack_options import AttackOptions
from vitscope.robustness.epsilons import UnitError

EXAMPLES = """\
  vitscope attack vit_tiny_patch16_224 --data path/to/imagenet --attacks fgsm,pgd --eps 1/255..6/255 --out runs/attack
  vitscope attack runs/softmax runs/rpc --data mnist5k --attacks noise,fgsm,pgd --eps 8/255,16/255,32/255 --steps 40
  vitscope attack runs/softmax --data mnist5k --attacks pgd --eps 16/255 --set pgd.restarts=5 pgd.momentum=0.9
  vitscope attack runs/softmax --data mnist5k --norm l2 --attacks pgd,cw --eps 0.5..3:0.5
  vitscope attack runs/softmax --data mnist5k --norm l1 --attacks sparse-l1 --eps 5,10,20
  vitscope attack vit_tiny_patch16_224 --data path/to/imagenet --attacks pgd --eps 1/255 --lens
  vitscope attack vit_tiny_patch16_224 --data path/to/imagenet --attacks autoattack --eps 4/255 --every 10 --cumulative
  vitscope attack vit_tiny_patch16_224 --data path/to/imagenet --attacks fgsm,pgd --protocol published
  vitscope attack runs/scenes --data digit-scenes --images 50 --attacks noise,pgd --eps 2/255,8/255 --out runs/attacked
  torchrun --nproc_per_node 2 -m vitscope attack vit_tiny_patch16_224 --data path/to/imagenet --out runs/attack
  vitscope attack vit_base_patch16_224 --data path/to/imagenet --device cuda --out runs/attack \\
      --cluster slurm --slurm partition=gpu tasks_per_node=4 gpus_per_node=4
"""
Words = with_file(AttackOptions, OnCluster)


def main(arguments: Sequence[str]) -> None:
    try:
        carry_out(Words, "attack", arguments, EXAMPLES)
    except UnitError as error:
        raise VitscopeError(f"{error} The command is then:\n  {corrected(arguments, error.instead)}") from error


def corrected(arguments: Sequence[str], eps: str) -> str:
    """The user's command with other epsilons."""
    words, skip = ["vitscope", "attack"], False
    for word in arguments:
        if word == "--eps" or word.startswith("--eps="):
            words += ["--eps", eps] if "--eps" not in words else []
            skip = True
        elif not skip or word.startswith("-"):
            words.append(word)
            skip = False
    return shlex.join(words)
