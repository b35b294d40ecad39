"""`vitscope analyze`: look inside models in one pass over the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitscope.analyses.request import AnalyzeOptions
from vitscope.cli.configuration import parse_with_config
from vitscope.cli.parsing import named
from vitscope.cli.results import show

EXAMPLES = """\
  vitscope analyze vit_tiny_patch16_224 --data path/to/imagenet --split val --out runs/tiny
  vitscope analyze vit_tiny_patch16_224 --weights tiny.safetensors --data path/to/imagenet --images 1000
  vitscope analyze deit_tiny_patch16_224 deit3_small_patch16_224 --data path/to/imagenet --out runs/pair
  vitscope analyze runs/my-training --data mnist5k --only accuracy,attention
  vitscope analyze runs/my-training --data mnist5k --save 'blocks.*.hook_resid_post' --set save.dtype=float16
  vitscope analyze --config runs/tiny/config.yaml --batch-size 32 --out runs/tiny-32
  torchrun --nproc_per_node 2 -m vitscope analyze vit_tiny_patch16_224 --data path/to/imagenet --out runs/tiny
"""


@dataclass(frozen=True)
class Words(AnalyzeOptions):
    __doc__ = AnalyzeOptions.__doc__

    models: Annotated[tyro.conf.Positional[tuple[str, ...]], named("MODEL [MODEL ...]")] = ()
    """timm names, with or without tag, or folders of `vitscope train`"""
    only: Annotated[tuple[str, ...] | None, named("A,B")] = None
    """analyses by name, separated by commas; none: those that run by default"""
    config: Annotated[str | None, named("FILE")] = None
    """YAML with the names of these options, or a run's config.yaml; what else is typed here wins"""
    trust: bool = False
    """import the code and fetch the weights that only a run folder or --config names; only what you trust"""


def main(arguments: Sequence[str]) -> None:
    options = parse_with_config(Words, "analyze", arguments, EXAMPLES)
    show(options.run(command=["vitscope", "analyze", *arguments]))
