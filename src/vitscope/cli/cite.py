"""`vitscope cite`: the BibTeX of the methods that runs used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from vitscope.cli.parsing import named, parse
from vitscope.cli.results import hand_over

EXAMPLES = """\
  vitscope cite runs/tiny                         what to cite for this run, as BibTeX
  vitscope cite runs/tiny runs/attack --out vitscope.bib
"""


@dataclass(frozen=True)
class CiteOptions:
    """Print the BibTeX of the methods, models and data that runs used, and of vitscope itself.

    Comments say what is cited for what. Nothing is fetched: entries are those whose facts are known here.
    """

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], named("RUN [RUN ...]")]
    """run folders; a folder that holds run folders stands for them"""
    out: Annotated[Path | None, named("FILE")] = None
    """the file to write; none: it is printed"""
    trust: bool = False
    """import the code outside of vitscope that the run folders name, for what it cites; only what you trust"""


def main(arguments: Sequence[str]) -> None:
    options = parse(CiteOptions, "cite", arguments, EXAMPLES)
    from vitscope.papers.citing import bibliography

    hand_over(bibliography([Path(run) for run in options.runs]), options.out, "BibTeX")
