"""Results of a sweep: one row per run, and every figure and probe of the runs averaged over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from vitscope.runs import Run
from vitscope.sweeps.averages import LOG, OVER_SEEDS, OWN, averaged_tables, over_seeds
from vitscope.sweeps.execution import Failure, finished
from vitscope.sweeps.plan import PlannedRun, describe
from vitscope.sweeps.separation import CURVES, GEOMETRIC, last_profiles, learning, shape

ALL = "all runs"  # the setting where nothing is varied
NO_METRIC = ("setting", "seed", "run", "status", "reason", "log", "epochs", "spike_place", *CURVES)


def sweep_tables(plan: Sequence[PlannedRun], failures: Mapping[str, Failure]) -> dict[str, pd.DataFrame]:
    """`sweep_runs` and `sweep_summary`; per epoch `sweep_training` and `sweep_probe_*`; of separation `sweep_profile`.

    Columns that nobody measured are not there.
    """
    rows: list[dict[str, Any]] = []
    found: dict[str, list[pd.DataFrame]] = {}
    profiles: list[pd.DataFrame] = []
    for planned in plan:
        cells = {"setting": _setting(planned), **_cells(planned.settings)}
        row: dict[str, Any] = {**cells, "seed": planned.options.seed, "run": planned.name}
        row |= {"status": "unfinished", "reason": "", "log": ""}
        if planned.name in failures:
            failure = failures[planned.name]
            row |= {"status": "failed", "reason": failure.reason, "log": _relative(failure.log, planned.path)}
        elif finished(planned):
            run = Run.open(planned.path)
            profile = last_profiles(run)
            row |= {"status": "finished", **scores(run), **shape(profile), **learning(run)}
            for name in run.list_tables():
                table = run.table(name) if name == "training" or name.startswith("probe_") else None
                if table is not None:
                    found.setdefault(name, []).append(table.assign(**cells))
            if profile is not None:
                profiles.append(profile.assign(**cells))
        rows.append(row)
    runs = pd.DataFrame(rows)
    for column in CURVES:
        if column in runs:
            runs[column] = [value if isinstance(value, str) else "" for value in runs[column]]
    metrics = [c for c in map(str, runs.columns) if c not in NO_METRIC and not c.startswith("option.")]
    tables = {"sweep_runs": runs, "sweep_summary": _summary(runs, plan, metrics)}
    for name, parts in sorted(found.items()):
        tables[f"sweep_{name}"] = averaged_tables(name, parts, ["setting", *_names(plan)])
    if profiles:
        keys = ["setting", *_names(plan), "split", "point", "token", "layer"]
        found_profiles = over_seeds(pd.concat(profiles, ignore_index=True), keys, "fuzziness", LOG)
        tables["sweep_profile"] = found_profiles.rename(columns={"mean": "fuzziness"})
    return tables


def scores(run: Run) -> dict[str, float]:
    """What a training says of itself: its last epoch, and the figures of its summary. Accuracies are shares."""
    table = run.table("training")
    last = {} if table is None or not len(table) else table.to_dict("records")[-1]
    found = {"epochs": last["epoch"]} if last else {}
    found |= {str(name): value for name, value in last.items() if name not in ("epoch", "lr")}
    for name, figure in run.summary.items():
        scale = 100 if figure["unit"] == "%" else 1
        found.setdefault(name.removeprefix("train."), figure["value"] / scale)
    return found


def _summary(runs: pd.DataFrame, plan: Sequence[PlannedRun], metrics: Sequence[str]) -> pd.DataFrame:
    cells = ["setting", *_names(plan)]
    done = runs[runs["status"] == "finished"]
    scales = {m: LOG if m in GEOMETRIC or m.endswith("perplexity") else OWN for m in metrics}
    parts = [over_seeds(done, cells, m, scale).assign(metric=m) for m, scale in scales.items()]
    if not parts:
        return pd.DataFrame(columns=[*cells, "metric", *OVER_SEEDS])
    table = pd.concat(parts, ignore_index=True)
    # Student's interval does not know where a share ends
    shares = table["metric"].str.endswith(("accuracy", "_r", "_r2"))
    lowest = table["metric"].map(lambda m: -1.0 if m.endswith("_r") else 0.0)
    table["low"] = table["low"].clip(lower=lowest).where(shares, table["low"])
    table["high"] = table["high"].clip(upper=1.0).where(shares, table["high"])
    order = {setting: i for i, setting in enumerate(dict.fromkeys(_setting(planned) for planned in plan))}
    table = table.sort_values("setting", key=lambda column: column.map(order), kind="stable", ignore_index=True)
    return table[[*cells, "metric", *OVER_SEEDS]]


def _setting(planned: PlannedRun) -> str:
    return describe(planned.settings) or ALL


def _cells(settings: Mapping[str, Any]) -> dict[str, str]:
    """One column per varied option, e.g. `option.dropout`; as text, because values may be of any kind."""
    return {f"option.{name}": str(value) for name, value in settings.items()}


def _names(plan: Sequence[PlannedRun]) -> list[str]:
    return [f"option.{name}" for name in plan[0].settings]


def _relative(log: Path, run: Path) -> str:
    """Seen from the sweep's folder."""
    root = run.parent.parent
    return str(log.relative_to(root)) if log.is_relative_to(root) else str(log)
