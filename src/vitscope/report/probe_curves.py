"""What the general panel of probes draws: from tables with one row per epoch to quantities, each with its curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from vitscope.report.panel import Tables
from vitscope.runs.tidy import COUNTS, images_of, shape_of

DEPTH = ("block", "layer")
METRICS = ("metric", "measure", "statistic")  # keys whose values are quantities of their own, each with its unit
AVERAGED = ("mean", "low", "high", "smallest", "largest", "runs", "scale", "images")  # of a sweep's table
PLAIN = ("mean", "value")  # figures that are named by their metric


@dataclass(frozen=True)
class Quantity:
    """One figure of one metric, of all runs: what shares a scale."""

    key: str  # as in the table: 'entropy', 'rate_per_image', 'mean'
    name: str  # for an axis: 'entropy', 'class_space_identifiability mean'
    unit: str
    rows: pd.DataFrame  # run, epoch, split, group, line, mean, low, high, runs
    line: str  # what `line` counts: 'block', 'axis'; '' where there are no lines
    keys: tuple[str, ...]  # what `group` says: ('point', 'tokens')

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(self.rows["group"]))

    @property
    def lines(self) -> list[float]:
        return sorted(set(self.rows["line"]))

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(self.rows["run"]))


def long_form(table: pd.DataFrame) -> pd.DataFrame:
    """A probe's table as a sweep's is: one row per figure, with mean, low, high and runs = 1. Heads are averaged."""
    shape = shape_of(table)
    keys = [key for key in shape.keys if not _is_head(table, key)]
    heads = len(keys) < len(shape.keys)
    by = [*keys, *shape.facts]
    parts = []
    for figure in (f for f in shape.figures if f not in COUNTS):
        ends = None if heads else shape.interval_of(figure, list(table.columns))
        columns = {"mean": figure, **dict(zip(("low", "high"), ends or ()))}
        rows = table[by].assign(**{name: table[column] for name, column in columns.items()})
        rows = rows.dropna(subset=["mean"]).groupby(by, sort=False, dropna=False)[list(columns)].mean().reset_index()
        parts.append(rows.assign(figure=figure, runs=1))
    if not parts:
        return pd.DataFrame(columns=[*by, "figure", "mean", "low", "high", "runs"])
    long = pd.concat(parts, ignore_index=True)
    long = long.assign(**{c: float("nan") for c in ("low", "high") if c not in long})
    return long.assign(images=images_of(table)) if images_of(table) is not None else long


def by_setting(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The averages of a sweep, one table per setting. Two seeds have no interval: their range stands in for it."""
    options = [c for c in table.columns if c.startswith("option.")]
    few = table["low"].isna() & (table["runs"] == 2)
    table = table.assign(
        low=table["low"].where(~few, table["smallest"]), high=table["high"].where(~few, table["largest"])
    )
    settings = dict.fromkeys(table["setting"])
    return {s: table[table["setting"] == s].drop(columns=["setting", *options]) for s in settings}


def quantities(tables: Tables, name: str = "") -> list[Quantity]:
    """Everything that moves in the long tables of some runs, in the order of the table. `name`: of the table."""
    rows = pd.concat([table.assign(run=label) for label, table in tables.items()], ignore_index=True)
    shape = shape_of(rows.drop(columns=[c for c in AVERAGED if c in rows]), given=["run", "figure"])
    numbers = [k for k in shape.keys if k != "epoch" and rows[k].dtype.kind in "iuf"]
    # a number that is no depth (an axis, a class, a bin) is told apart by colour, and the blocks stand side by side
    line = next((k for k in numbers if k not in DEPTH), numbers[0] if numbers else "")
    metric = next((k for k in METRICS if k in shape.keys), "")
    words = [k for k in shape.keys if k not in ("epoch", "split", line, metric)]
    rows = rows.assign(
        group=[_group(words, values) for values in zip(*(rows[k] for k in words))] if words else "",
        line=rows[line] if line else 0,
        split=rows["split"] if "split" in rows.columns else "",
    )
    found = []
    for figure in dict.fromkeys(rows["figure"]):
        mine = rows[rows["figure"] == figure]
        for value in dict.fromkeys(mine[metric]) if metric else [""]:
            part = mine[mine[metric] == value] if metric else mine
            if not _moves(part):
                continue
            # 'entropy' of a column `mean`; without a metric the table says whose mean it is
            key = str(value) if metric and figure in PLAIN else f"{value} {figure}".strip()
            whose = "" if metric or figure not in PLAIN else name.removeprefix("sweep_").removeprefix("probe_")
            unit = str(part["unit"].iloc[0]) if "unit" in part else ""
            found.append(Quantity(key, f"{whose} {key}".strip(), unit, part, line, tuple(words)))
    return found


def _moves(rows: pd.DataFrame) -> bool:
    """Does it differ between epochs or runs? A chance level does not; spreads and p-values are left to the table."""
    figure = str(rows["figure"].iloc[0])
    if figure in ("std", "p", *COUNTS) or figure.endswith("_std") or figure.startswith("p_"):
        return False
    return bool((rows.groupby(["split", "group", "line"], dropna=False)["mean"].nunique() > 1).any())


def _is_head(table: pd.DataFrame, key: str) -> bool:
    return key == "head" and table[key].dtype.kind in "iu"


def _group(keys: Sequence[str], values: Sequence[object]) -> str:
    return ", ".join(_word(key, value) for key, value in zip(keys, values) if value != "")


def _word(key: str, value: object) -> str:
    """'block 3', 'class tokens' -> 'class'; a yes or no needs its question: 'mlp: yes'."""
    if isinstance(value, bool):
        return f"{key}: {'yes' if value else 'no'}"
    return f"{key} {value}" if key in DEPTH and not isinstance(value, str) else str(value)
