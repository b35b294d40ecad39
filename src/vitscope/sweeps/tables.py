"""Results of a sweep: one row per run, averages over seeds with intervals, profiles per setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitscope.analyses.separation.profile import block_fits, epoch_fits, read_token, spikes
from vitscope.runs import Run
from vitscope.sweeps.execution import Failure, finished
from vitscope.sweeps.plan import PlannedRun, describe

if TYPE_CHECKING:
    import pandas as pd

PROBE = "probe_separation"
# Averaged over seeds. Quantities that multiply (ratios, rates, fuzziness) are averaged as logarithms.
SCORES = ("test_accuracy", "train_accuracy", "test_loss", "train_loss")
LINEAR = (*SCORES, "rate_r", "rate_r2", "exponential_r2", "epoch_rate_r", "epoch_rate_r2", "epoch_exponential_r2")
RATES = ("rate", "decay", "epoch_rate", "epoch_decay")  # rho of the log-linear law and b of the published curve
GEOMETRIC = ("last_fuzziness", "over_pixels", "over_embedding", "fall", *RATES)
SHARES = tuple(name for name in LINEAR if not name.endswith("_loss"))  # accuracies, r and R^2
METRICS = (*LINEAR, *GEOMETRIC)
CURVES = ("best_curve", "best_epoch_curve")  # with the lowest AICc
ALL = "all runs"  # the setting where nothing is varied


def mean_with_interval(values: Sequence[float], *, geometric: bool = False) -> tuple[float, float, float]:
    """Mean and its 95 % interval over seeds (Student's t); no interval for one value."""
    x = np.asarray(values, dtype=float)
    x = np.log(x) if geometric else x
    mean = float(x.mean())
    half = math.nan
    if len(x) > 1:
        from scipy.stats import t

        half = float(t.ppf(0.975, len(x) - 1)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    low, high = mean - half, mean + half
    return (math.exp(mean), math.exp(low), math.exp(high)) if geometric else (mean, low, high)


def sweep_tables(plan: Sequence[PlannedRun], failures: Mapping[str, Failure]) -> dict[str, pd.DataFrame]:
    """`sweep_runs`, `sweep_summary` and, where separation was probed, `sweep_profile`."""
    import pandas as pd

    rows, profiles = [], []
    for planned in plan:
        row: dict[str, Any] = {"setting": describe(planned.settings) or ALL, **_cells(planned.settings)}
        row |= {"seed": planned.options.seed, "run": planned.name, "status": "unfinished", "reason": "", "log": ""}
        if planned.name in failures:
            failure = failures[planned.name]
            row |= {"status": "failed", "reason": failure.reason, "log": _relative(failure.log, planned.path)}
        elif finished(planned):
            run = Run.open(planned.path)
            profile = last_profiles(run)
            row |= {"status": "finished", **scores(run), **shape(profile), **learning(run)}
            if profile is not None:
                profiles.append(profile.assign(setting=row["setting"], **_cells(planned.settings)))
        rows.append(row)
    first = ["setting", *_names(plan), "seed", "run", "status", "reason", "log"]
    runs = pd.DataFrame(rows, columns=[*first, "epochs", *METRICS, "spike_place", *CURVES])
    for column in CURVES:
        runs[column] = [value if isinstance(value, str) else "" for value in runs[column]]
    tables = {"sweep_runs": runs, "sweep_summary": _summary(runs, plan)}
    if profiles:
        tables["sweep_profile"] = _profiles(pd.concat(profiles, ignore_index=True), plan)
    return tables


def scores(run: Run) -> dict[str, float]:
    """Accuracy and loss after the last epoch."""
    table = run.table("training")
    if table is None or not len(table):
        return {}
    last = table.to_dict("records")[-1]
    return {"epochs": last["epoch"], **{name: last[name] for name in SCORES}}


def last_profiles(run: Run) -> pd.DataFrame | None:
    """The profiles after the last epoch, all splits."""
    probe = run.table(PROBE)
    return None if probe is None else probe[probe["epoch"] == probe["epoch"].max()]


def shape(profile: pd.DataFrame | None) -> dict[str, Any]:
    """Spike, fall and rate of the held-out profile, for the token that the head reads."""
    if profile is None:
        return {}
    split = "test" if (profile["split"] == "test").any() else profile["split"].iloc[0]
    table = profile[profile["split"] == split]
    token = read_token(table)
    found = spikes(table)
    spike = found[found["token"] == token].to_dict("records")
    if not spike:
        return {}
    values: dict[str, Any] = {name: spike[0][name] for name in ("over_pixels", "over_embedding", "fall")}
    values |= {"last_fuzziness": spike[0]["last"], "spike_place": spike[0]["place"]}
    return values | _fitted(block_fits(table), token, "", "best_curve")


def learning(run: Run) -> dict[str, Any]:
    """How the last block's held-out fuzziness fell with the epochs."""
    probe = run.table(PROBE)
    if probe is None:
        return {}
    fits = epoch_fits(probe)
    held_out = fits[fits["split"] == ("test" if (fits["split"] == "test").any() else "train")]
    return _fitted(held_out, read_token(probe), "epoch_", "best_epoch_curve")


def _fitted(fits: pd.DataFrame, token: str, prefix: str, best: str) -> dict[str, Any]:
    """Numbers of the log-linear law and of the published curve, and which curve has the lowest AICc."""
    rows = fits[fits["token"] == token].to_dict("records")
    values: dict[str, Any] = {}
    for row in rows:
        if row["curve"] == "log_linear":
            values |= {f"{prefix}rate{end}": row[c] for end, c in (("", "rho"), ("_r", "r"), ("_r2", "r2"))}
        if (row["curve"], row["errors"]) == ("exponential", "D"):
            values |= {f"{prefix}decay": row["b"], f"{prefix}exponential_r2": row["r2"]}
        if row["delta"] == 0:
            values[best] = f"{row['curve']} ({row['errors']})"
    return values


def _summary(runs: pd.DataFrame, plan: Sequence[PlannedRun]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    done = runs[runs["status"] == "finished"]
    for setting, cells in _settings(plan).items():
        for metric in METRICS:
            values = done[done["setting"] == setting][metric].dropna().tolist()
            if values:
                mean, low, high = mean_with_interval(values, geometric=metric in GEOMETRIC)
                if metric in SHARES:  # Student's interval does not know where a share ends
                    low, high = max(low, -1.0 if metric.endswith("_r") else 0.0), min(high, 1.0)
                rows.append({"setting": setting, **cells, "metric": metric, "mean": mean, "low": low, "high": high})
                rows[-1]["runs"] = len(values)
    names = ["setting", *_names(plan), "metric", "mean", "low", "high", "runs"]
    return pd.DataFrame(rows, columns=names)


def _profiles(profiles: pd.DataFrame, plan: Sequence[PlannedRun]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    keys = ["split", "point", "token", "layer"]
    for setting, cells in _settings(plan).items():
        for key, part in profiles[profiles["setting"] == setting].groupby(keys, sort=False):
            values = part["fuzziness"].dropna().tolist()
            if values:
                mean, low, high = mean_with_interval(values, geometric=True)
                row = {"setting": setting, **cells, **dict(zip(keys, key)), "fuzziness": mean, "low": low, "high": high}
                rows.append({**row, "runs": len(values)})
    return pd.DataFrame(rows, columns=["setting", *_names(plan), *keys, "fuzziness", "low", "high", "runs"])


def _settings(plan: Sequence[PlannedRun]) -> dict[str, dict[str, str]]:
    return {describe(planned.settings) or ALL: _cells(planned.settings) for planned in plan}


def _cells(settings: Mapping[str, Any]) -> dict[str, str]:
    """One column per varied option, e.g. `option.dropout`; as text, because values may be of any kind."""
    return {f"option.{name}": str(value) for name, value in settings.items()}


def _names(plan: Sequence[PlannedRun]) -> list[str]:
    return [f"option.{name}" for name in plan[0].settings]


def _relative(log: Path, run: Path) -> str:
    """Seen from the sweep's folder."""
    root = run.parent.parent
    return str(log.relative_to(root)) if log.is_relative_to(root) else str(log)
