"""What a command prints when its runs are done: the headline figures and where the report is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vitscope.runs import Run, atomic_write
from vitscope.tasks.words import Words


def first_process() -> bool:
    """Under torchrun all processes run the command; one of them speaks."""
    return os.environ.get("RANK", "0") == "0"


def hand_over(text: str, file: Path | None, what: str) -> None:
    """A text into its file, or printed where none is named."""
    if file is None:
        print(text, end="")
        return
    atomic_write(file, text)
    print(f"{what}: {file}")


def show(runs: Sequence[Run]) -> None:
    if not first_process():
        return
    for run in runs:
        items = Words.of_config(run.config).items
        print(f"{run.label}: {run.path}")
        for name, figure in run.summary.items():
            print(f"  {name:<36} {figure['value']:>10.4g} {figure['unit']:<6} ({figure['n']:,} {items})")
        for warning in run.warnings:
            print(f"  note: {warning}")
    page = (runs[0].path if len(runs) == 1 else Path(os.path.commonpath([r.path for r in runs]))) / "report.html"
    if page.exists():
        print(f"Report: {page}")
