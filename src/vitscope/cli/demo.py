"""`vitscope demo`: from nothing to a page about a transformer, in minutes."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from vitscope.cli.parsing import named, parse
from vitscope.errors import VitscopeError

EXAMPLES = """\
  vitscope demo
  vitscope demo --out runs/second --seed 1
  vitscope demo --text                    # language models on the help topics of Python
  vitscope demo --segmentation            # what every pixel of a scene of digits is
"""


@dataclass(frozen=True)
class DemoOptions:
    """Train two small ViTs on 4,000 handwritten digits, look inside and attack them on others, and write a report."""

    out: Annotated[str | None, named("DIR")] = None
    """where the trained models, the analysis, the attacks and report.html go; none: runs/demo, runs/demo-text, ..."""
    text: bool = False
    """language models on texts, with swapped words and typos, instead of ViTs on digits and attacks"""
    segmentation: bool = False
    """segmenters on scenes of several digits, clean and corrupted, instead"""
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
    if options.text and options.segmentation:
        raise VitscopeError("--text and --segmentation are two demos: give one of them.")
    from vitscope.demonstration import DATA, demo, demo_segmentation, demo_text

    changes: dict[str, Any] = {} if options.epochs is None else {"epochs": options.epochs}
    changes |= {"overwrite": options.overwrite, "progress": options.progress, "seed": options.seed}
    changes["command"] = ["vitscope", "demo", *arguments]
    result: Any
    if options.text:
        result = demo_text(options.out or "runs/demo-text", **changes)
        told = f"The model foresees held-out help topics with a perplexity of {result.perplexity:.1f}."
    elif options.segmentation:
        result = demo_segmentation(options.out or "runs/demo-segmentation", **changes)
        told = f"The model finds digits in held-out scenes with a mean IoU of {result.mean_iou:.1f} %."
    else:
        result = demo(options.out or "runs/demo", **changes)
        told = f"The model reads {result.accuracy:.1f} % of 1,000 held-out digits correctly."
    print(f"{told} What is inside:")
    for finding in result.findings:
        print(f"  * {finding.text}")
    print(f"Report: {result.report}")
    if not options.segmentation:
        print(f"Explore: {explore_command([run.path for run in result.trainings], None if options.text else DATA)}")


def explore_command(models: Sequence[Path], data: str | None) -> str:
    """What opens them in the browser, as it can be typed here."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "vitscope" and not shutil.which("vitscope") else "vitscope"
    return shlex.join([program, "explore", *map(str, models), *(["--data", data] if data else [])])
