"""`vitscope report`: draw the page again from tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from vitscope.cli.parsing import named, parse
from vitscope.errors import RunError

EXAMPLES = """\
  vitscope report runs/tiny                       redraws runs/tiny/report.html
  vitscope report runs/tiny runs/small            both on one page, report.html in the folder they share
  vitscope report runs/tiny runs/small --out comparison.html
"""


@dataclass(frozen=True)
class ReportOptions:
    """Draw the report of one or more runs from their tables. Needs neither model nor data."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], named("RUN [RUN ...]")]
    """run folders, finished or not; a folder that holds run folders stands for them"""
    out: Annotated[Path | None, named("FILE")] = None
    """the page to write; for one run its own report.html, for several report.html in the folder that holds them"""
    trust: bool = False
    """import the code outside of vitscope that the run folders name, for its panels; only what you trust"""


def main(arguments: Sequence[str]) -> None:
    options = parse(ReportOptions, "report", arguments, EXAMPLES)
    from vitscope.report.page import draw_report

    page, failed = draw_report([Path(run) for run in options.runs], options.out)
    print(f"Report: {page}")
    if failed:
        raise RunError(
            "\n".join(failed) + "\nThe page has everything else. The tables behind these parts are damaged, or written "
            "by another version: put them back from a copy, or make the run again with --overwrite."
        )
