"""`vitscope models`: what can be opened and what each can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitscope.cli.parsing import named, parse
from vitscope.errors import VitscopeError, suggest

EXAMPLES = """\
  vitscope models                    every name that opens
  vitscope models tiny               names that contain 'tiny'
  vitscope models 'vit_*_dinov3*'    names that match a pattern
  vitscope models swin --all         also what is refused, and why
"""
COLUMNS = "{:<44} {:<28} {:>11} {:>6} {:>5} {:>5} {:>10} {:>4} {}"
HEADER = COLUMNS.format("name", "family", "input", "blocks", "heads", "width", "tokens", "tags", "class space")
LEGEND = "tokens: class + register + image; tags: pretrained weights that timm knows"


@dataclass(frozen=True)
class ModelsOptions:
    """List the models that can be opened and what each can do."""

    filter: Annotated[tyro.conf.Positional[str], named("FILTER")] = ""
    """part of a name, or a pattern with * and ?"""
    all: bool = False
    """also list the models that are refused, each with the reason"""


def main(arguments: Sequence[str]) -> None:
    options = parse(ModelsOptions, "models", arguments, EXAMPLES)
    from vitscope.models import candidate_names, iter_models

    found = 0
    for row in iter_models(options.filter):
        if not (row.supported or options.all):
            continue
        if not found:
            print(HEADER)
        found += 1
        if row.supported:
            size = (row.input, row.blocks, row.heads, row.width, row.tokens, row.pretrained)
            print(COLUMNS.format(row.name, row.family, *size, "yes" if row.class_space else row.remark), flush=True)
        else:
            print(f"{row.name:<44} refused: {row.remark}", flush=True)
    if not found:
        refused = candidate_names(options.filter)
        hint = " --all lists those that are refused." if refused else suggest(options.filter, candidate_names())
        raise VitscopeError(f"No model that opens has {options.filter!r} in its name.{hint}")
    print(f"{found} models ({LEGEND})")
