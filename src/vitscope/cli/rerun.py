"""`vitscope rerun`: do a run again from the configuration that it saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitscope.cli.parsing import named, parse
from vitscope.cli.results import first_process, show

EXAMPLES = """\
  vitscope rerun runs/tiny                     does it again in runs/tiny-rerun
  vitscope rerun runs/tiny --out runs/check    ... or elsewhere
  vitscope rerun runs/tiny --out runs/tiny     goes on with it where it was stopped
"""


@dataclass(frozen=True)
class RerunOptions:
    """Do a run again from the configuration that it saved. Refused if its data or weights have changed since."""

    run: Annotated[tyro.conf.Positional[str], named("RUN")]
    """the run folder"""
    out: Annotated[str | None, named("DIR")] = None
    """the new run folder; none: beside the old one, NAME-rerun"""
    overwrite: bool = False
    """replace what is in the new run folder"""
    trust: bool = False
    """import the code and fetch the weights that the run folder names; only what you trust"""
    progress: bool = True
    """show a progress bar"""


def main(arguments: Sequence[str]) -> None:
    options = parse(RerunOptions, "rerun", arguments, EXAMPLES)
    from vitscope.repeat import rerun

    run = rerun(options.run, options.out, overwrite=options.overwrite, progress=options.progress)
    if run.kind == "train" and first_process():  # as `vitscope train` does; the others draw their own
        from vitscope.report import build_report

        build_report(run)
    show([run])
