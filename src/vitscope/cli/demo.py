"""`vitscope demo`: from nothing to a page about a transformer, in minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from vitscope.cli.parsing import named, parse

EXAMPLES = """\
  vitscope demo
  vitscope demo --out runs/second --seed 1
"""


@dataclass(frozen=True)
class DemoOptions:
    """Train two small ViTs on 4,000 handwritten digits, look inside and attack them on others, and write a report."""

    out: Annotated[str, named("DIR")] = "runs/demo"
    """where the trained models, the analysis, the attacks and report.html go"""
    seed: int = 0
    """of the initial weights and the order of the images"""
    epochs: int | None = None
    """passes over the digits; none: as many as the recipe says"""
    progress: bool = True
    """show progress bars"""
    overwrite: bool = False
    """begin again instead of going on with what is there"""


def main(arguments: Sequence[str]) -> None:
    options = parse(DemoOptions, "demo", arguments, EXAMPLES)
    from vitscope.demonstration import demo

    changes = {} if options.epochs is None else {"epochs": options.epochs}
    result = demo(
        options.out,
        overwrite=options.overwrite,
        progress=options.progress,
        command=["vitscope", "demo", *arguments],
        seed=options.seed,
        **changes,
    )
    print(f"The model reads {result.accuracy:.1f} % of 1,000 held-out digits correctly. What is inside:")
    for finding in result.findings:
        print(f"  * {finding.text}")
    print(f"Report: {result.report}")
