"""From what the caller names (folders, runs) to the models of a page, each under a label of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscope.errors import RunError
from vitscope.runs import Run

if TYPE_CHECKING:
    import pandas as pd


class ModelRuns(Run):
    """Several runs of one model read as one: its analysis, and the training that made it."""

    def __init__(self, main: Run, others: Sequence[Run]) -> None:
        super().__init__(main.path, main.config)
        self.parts = [main, *others]

    def table(self, name: str) -> pd.DataFrame | None:
        tables = (part.table(name) for part in self.parts)
        return next((table for table in tables if table is not None), None)

    def list_tables(self) -> list[str]:
        return sorted({name for part in self.parts for name in part.list_tables()})

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        return {name: figure for part in reversed(self.parts) for name, figure in part.summary.items()}


def parts_of(run: Run) -> list[Run]:
    """The folders behind one model."""
    return run.parts if isinstance(run, ModelRuns) else [run]


def gather(runs: Iterable[Run | str | Path] | Run | str | Path) -> dict[str, Run]:
    """{label: run}. A folder that holds run folders stands for them; a training run joins the analysis of its model."""
    given = [runs] if isinstance(runs, (Run, str, Path)) else list(runs)
    opened = [run for item in given for run in ([item] if isinstance(item, Run) else _open(Path(item)))]
    unique = list({run.path.resolve(): run for run in opened}.values())
    if not unique:
        raise RunError("A report needs at least one run folder, e.g. `vitscope report runs/NAME`.")
    trainings = {run.path.resolve().name: run for run in unique if run.kind == "train"}
    joined: list[Run] = []
    used: set[Path] = set()
    for run in unique:
        source = run.config.get("model")
        training = trainings.get(str(source.get("run"))) if isinstance(source, dict) and source.get("run") else None
        if training is not None and training is not run:
            joined.append(ModelRuns(run, [training]))
            used.add(training.path)
        else:
            joined.append(run)
    return _label([run for run in joined if run.path not in used])


def _open(path: Path) -> list[Run]:
    inside = sorted(p.parent for p in path.glob("*/run.json")) if path.is_dir() else []
    if inside and not (path / "run.json").exists():
        return [Run.open(p) for p in inside]
    return [Run.open(path)]


def _label(runs: list[Run]) -> dict[str, Run]:
    """Labels are the models' names; where two are the same, their folders tell them apart."""
    labels = [run.label for run in runs]
    named: dict[str, Run] = {}
    for run, label in zip(runs, labels):
        name = label if labels.count(label) == 1 else f"{label} ({run.path.resolve().name})"
        number = 2
        while name in named:
            name, number = f"{label} ({run.path.resolve().name}, {number})", number + 1
        named[name] = run
    return named


def default_page(runs: Iterable[Run]) -> Path:
    """One run: its own report.html. Several: report.html in the folder that holds them all."""
    folders = [part.path.resolve() for run in runs for part in parts_of(run)]
    if len(folders) == 1:
        return folders[0] / "report.html"
    return Path(os.path.commonpath([str(folder.parent) for folder in folders])) / "report.html"
