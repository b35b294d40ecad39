"""Rows of a table: the models behind some run folders, or the settings, where runs differ in their seed alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitscope.errors import RunError
from vitscope.papers.measured import Measured
from vitscope.report.sources import gather, parts_of
from vitscope.runs import Run

OF_SEEDS = "Student's over seeds"
# what differs between two seeds of one setting, and what changes no result
BY_SEED = ("seed", "label", "device", "workers", "track_name", "weights_digest")
_NUMBERED = re.compile(r"[-_ ]*(?:seed)?[-_ =]*\d+$", re.IGNORECASE)


@dataclass(frozen=True)
class TableRow:
    label: str
    runs: tuple[Run, ...]  # one, or several seeds


def model_rows(folders: Sequence[str | Path]) -> list[TableRow]:
    """One row per model; runs that looked at the same model in different ways are one."""
    return [TableRow(label, (run,)) for label, run in gather(_inside_sweeps(folders)).items()]


def pooled(rows: Sequence[TableRow]) -> tuple[list[TableRow], list[str]]:
    """(rows, remarks): runs of one setting are one row."""
    groups: dict[str, list[TableRow]] = {}
    remarks = []
    for number, row in enumerate(rows):
        key, seed = setting_of(row.runs[0])
        if key is None:
            remarks.append(f"{row.label}: the training behind it is not there, so that its setting is not known.")
        elif any(setting_of(other.runs[0])[1] == seed for other in groups.get(key, [])):
            remarks.append(f"{row.label}: the same seed is there already, looked at in another way: a row of its own.")
            key = None
        groups.setdefault(f"alone {number}" if key is None else key, []).append(row)
    names = [_common([row.label for row in group]) for group in groups.values()]
    found = []
    for name, group in zip(names, groups.values()):
        label = name if names.count(name) == 1 else group[0].label
        found.append(TableRow(label, tuple(run for row in group for run in row.runs)))
    return found, remarks


def setting_of(run: Run) -> tuple[str | None, str]:
    """(all that decides a model except the seed, its seed).

    The setting of a trained model is that of its training, and None where that cannot be found; of any other it is that
    of its runs.
    """
    parts = parts_of(run)
    model = run.config.get("model")
    training = next((part for part in parts if part.kind == "train"), None)
    if training is None and isinstance(model, Mapping) and "run" in model:
        training = _training(str(model.get("run_path", "")), run.path)
        if training is None:
            return None, ""
    found = [training] if training is not None else parts
    settings = [json.dumps(_without_seed(part.config), sort_keys=True, default=str) for part in found]
    seeds = [_seeds(part.config) for part in found]
    return json.dumps(sorted(settings)), json.dumps(seeds)


def _seeds(config: Mapping[str, Any]) -> list[Any]:
    options = config.get("options")
    return [config.get("seed"), options.get("seed") if isinstance(options, Mapping) else None]


def _training(place: str, beside: Path) -> Run | None:
    """Where it was, or, if the folders have moved together, beside the run."""
    for folder in (Path(place), beside.parent / Path(place).name):
        try:
            if place and (folder / "run.json").exists():
                return Run.open(folder)
        except RunError:
            continue
    return None


def _without_seed(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_seed(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    left_out = set(BY_SEED)
    if str(value.get("weights", "")).startswith("random"):
        left_out.add("weights")
    if value.get("images") is not None or value.get("share", 1.0) != 1.0:
        left_out.add("fingerprint")  # a seed draws other images
    return {str(key): _without_seed(item) for key, item in value.items() if key not in left_out}


def over_seeds(values: Sequence[Measured]) -> Measured | str:
    """Mean of several runs with Student's 95 % interval, none of fewer than three; or why they have no mean."""
    from vitscope.sweeps.averages import mean_with_interval

    first = values[0]
    for what, all_of in (("under", {m.how for m in values}), ("on images:", {m.n for m in values})):
        if len(all_of) > 1:
            return f"the seeds were not measured alike, {what} {' and '.join(sorted(map(str, all_of)))}"
    mean, low, high = mean_with_interval([m.value for m in values], geometric=first.log)
    if first.unit == "%":  # Student's interval does not know where a share ends
        low, high = max(low, 0.0) if low == low else low, min(high, 100.0) if high == high else high
    kind = OF_SEEDS if low == low else ""
    return Measured(mean, low, high, first.unit, first.n, kind, first.how, first.log)


def _common(labels: Sequence[str]) -> str:
    """'dropout-0.1' of 'dropout-0.1_seed-0', 'dropout-0.1_seed-1'; else the first label."""
    short = {_NUMBERED.sub("", label.removesuffix(")")) + (")" if label.endswith(")") else "") for label in labels}
    return short.pop() if len(short) == 1 and len(labels) > 1 and all(short) else labels[0]


def _inside_sweeps(folders: Sequence[str | Path]) -> list[Path]:
    """A sweep stands for its runs."""
    found: list[Path] = []
    for folder in map(Path, folders):
        sweep = (folder / "run.json").exists() and Run.open(folder).kind == "sweep"
        found += sorted(p.parent for p in (folder / "runs").glob("*/run.json")) if sweep else [folder]
    return found
