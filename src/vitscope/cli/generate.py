"""`vitscope generate`: what a language model goes on with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitscope.cli.parsing import named, parse
from vitscope.models.naming import check_model_name

EXAMPLES = """\
  vitscope generate runs/pydoc --prompt 'The "for" statement'
  vitscope generate runs/pydoc --prompt 'class' --tokens 300 --temperature 0.5 --seed 1
  vitscope generate path/to/llama --prompt 'Once upon a time'
"""


@dataclass(frozen=True)
class GenerateOptions:
    """Text that a language model draws, token by token, after a prompt."""

    model: Annotated[tyro.conf.Positional[str], named("MODEL")]
    """the run folder of a training on texts, or a text model's folder, .gguf file or name"""
    prompt: str = ""
    """what it goes on with; empty: it begins"""
    tokens: int = 100
    """how many tokens are drawn"""
    temperature: float = 0.8
    """below 1 likely words become likelier; 0 takes the most likely one every time"""
    seed: int = 0
    """of the draws"""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ..."""


def main(arguments: Sequence[str]) -> None:
    options = parse(GenerateOptions, "generate", arguments, EXAMPLES)
    check_model_name(options.model)
    from vitscope.models import open_model
    from vitscope.models.generation import generate

    model = open_model(options.model, device=options.device)
    pieces = generate(model, options.prompt, tokens=options.tokens, temperature=options.temperature, seed=options.seed)
    sys.stdout.write(options.prompt)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
