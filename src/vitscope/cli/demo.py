"""`vitscope demo`: from nothing to a page about a transformer, in minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from vitscope.cli.parsing import named, parse

EXAMPLES = """\
  vitscope demo
  vitscope demo --out runs/second --seed 1
  vitscope demo --text                    # language models on the help topics of Python
"""


@dataclass(frozen=True)
class DemoOptions:
    """Train two small ViTs on 4,000 handwritten digits, look inside and attack them on others, and write a report."""

    out: Annotated[str | None, named("DIR")] = None
    """where the trained models, the analysis, the attacks and report.html go; none: runs/demo or runs/demo-text"""
    text: bool = False
    """language models on texts, with swapped words and typos, instead of ViTs on digits and attacks"""
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
    from vitscope.demonstration import demo, demo_text

    changes: dict[str, Any] = {} if options.epochs is None else {"epochs": options.epochs}
    changes |= {"overwrite": options.overwrite, "progress": options.progress, "seed": options.seed}
    changes["command"] = ["vitscope", "demo", *arguments]
    result: Any = (demo_text if options.text else demo)(
        options.out or ("runs/demo-text" if options.text else "runs/demo"), **changes
    )
    if options.text:
        print(f"The model foresees held-out help topics with a perplexity of {result.perplexity:.1f}. What is inside:")
    else:
        print(f"The model reads {result.accuracy:.1f} % of 1,000 held-out digits correctly. What is inside:")
    for finding in result.findings:
        print(f"  * {finding.text}")
    print(f"Report: {result.report}")
