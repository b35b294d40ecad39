"""From what the caller names (folders, runs) to the models of a page, each under a label of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscope.errors import RunError
from vitscope.runs import Run

if TYPE_CHECKING:
    import pandas as pd


class ModelRuns(Run):
    """Several runs of one model read as one: its analyses, attacks on it, and the training that made it."""

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
    """{label: run}. A folder that holds run folders stands for them.

    Runs that looked at the same model in different ways are one model, and the training that made it joins them.
    """
    given = [runs] if isinstance(runs, (Run, str, Path)) else list(runs)
    opened = [run for item in given for run in ([item] if isinstance(item, Run) else _open(Path(item)))]
    unique = list({run.path.resolve(): run for run in opened}.values())
    if not unique:
        raise RunError("A report needs at least one run folder, e.g. `vitscope report runs/NAME`.")
    models: list[list[Run]] = []
    for run in unique:
        same = next((parts for parts in models if all(_complement(run, part) for part in parts)), None)
        if same is None:
            models.append([run])
        else:
            same.append(run)
    trainings = [_training_of(parts[0], unique) for parts in models]
    used = {training.path for training in trainings if training}
    joined = [[*parts, training] if training else parts for parts, training in zip(models, trainings)]
    return _label([ModelRuns(p[0], p[1:]) if len(p) > 1 else p[0] for p in joined if p[0].path not in used])


def _complement(a: Run, b: Run) -> bool:
    """Did two runs look at one model in different ways? Then no table of one hides one of the other."""
    analyses = [_analyses(run) for run in (a, b)]
    same = a.label == b.label and a.config.get("model") == b.config.get("model") is not None
    return same and all(analyses) and not analyses[0] & analyses[1]


def _analyses(run: Run) -> set[str]:
    found = run.config.get("analyses")
    return set(map(str, found)) if isinstance(found, Mapping | list) else set()


def owner_of(run: Run, table: str) -> Run:
    """The run that wrote a table: its configuration is the table's protocol."""
    return next((part for part in parts_of(run) if table in part.list_tables()), run)


def _training_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """The training run whose weights `run` looked at, if among `runs`: found by its place, else by its name."""
    model = run.config.get("model")
    if not isinstance(model, dict) or not model.get("run"):
        return None
    trainings = [other for other in runs if other.kind == "train" and other is not run]
    for place in (
        lambda r: str(r.path.absolute()) == model.get("run_path"),
        lambda r: r.path.resolve().name == model["run"],
    ):
        found = [other for other in trainings if place(other)]
        if len(found) == 1:
            return found[0]
    return None


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
