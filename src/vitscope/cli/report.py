"""`vitscope report`: draw the page again, or write a table for a paper, from tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitscope.cli.parsing import named, parse
from vitscope.cli.results import hand_over
from vitscope.errors import RunError, VitscopeError

EXAMPLES = """\
  vitscope report runs/tiny                       redraws runs/tiny/report.html
  vitscope report runs/tiny runs/small            both on one page, report.html in the folder they share
  vitscope report runs/tiny runs/small --out comparison.html
  vitscope report runs/* --table top1,ece,pgd@1/255                    a table with intervals, printed
  vitscope report runs/* --table 'top1=Top-1,pgd@1/255=PGD' --out table.tex
  vitscope report runs/dropout --table test_accuracy --average-seeds --format csv
"""


@dataclass(frozen=True)
class ReportOptions:
    """Draw the report of one or more runs from their tables. Needs neither model nor data.

    With --table it writes a table for a paper instead: models as rows, figures as columns, with 95 % intervals.
    """

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], named("RUN [RUN ...]")]
    """run folders, finished or not; a folder that holds run folders stands for them"""
    out: Annotated[Path | None, named("FILE")] = None
    """the page to write; for one run its own report.html, for several report.html in the folder that holds them. With
    --table the file of the table, else it is printed"""
    table: Annotated[tuple[str, ...], named("NAME,NAME")] = ()
    """figures, by the names that runs print: top1, pgd@1/255, fog@3, NAME=HEADING, or TABLE.COLUMN[KEY=VALUE]"""
    format: Literal["markdown", "latex", "csv"] | None = None
    """of the table; none: by the ending of --out (.md, .tex, .csv), else markdown"""
    average_seeds: bool = False
    """runs that differ in their seed alone are one row of the table: mean, and Student's interval over seeds"""
    digits: Annotated[int | None, named("N")] = None
    """behind the point, in the table; none: one of percents, else three in all"""
    trust: bool = False
    """import the code outside of vitscope that the run folders name, for its panels; only what you trust"""


def main(arguments: Sequence[str]) -> None:
    options = parse(ReportOptions, "report", arguments, EXAMPLES)
    if options.table:
        _table(options)
        return
    for name in ("format", "average_seeds", "digits"):
        if getattr(options, name) not in (None, False):
            flag = name.replace("_", "-")
            raise VitscopeError(f"--{flag} belongs to a table: say which figures, such as --table top1,pgd@1/255.")
    from vitscope.report.page import draw_report

    page, failed = draw_report([Path(run) for run in options.runs], options.out)
    print(f"Report: {page}")
    if failed:
        raise RunError(
            "\n".join(failed) + "\nThe page has everything else. The tables behind these parts are damaged, or written "
            "by another version: put them back from a copy, or make the run again with --overwrite."
        )


def _table(options: ReportOptions) -> None:
    from vitscope.papers.formats import form_of, written
    from vitscope.papers.table import paper_table

    if options.digits is not None and not 0 <= options.digits <= 12:
        raise VitscopeError(f"--digits {options.digits}: expected 0 to 12.")
    form = options.format or form_of(options.out)
    text = written(paper_table(options.runs, options.table, average_seeds=options.average_seeds), form, options.digits)
    hand_over(text, options.out, "Table")
