"""Averages over seeds, and how sure they are.

The interval is Student's, of the mean of n runs: mean ± t(0.975, n - 1) s / √n, right where runs scatter about the
mean as a normal distribution does. It is taken on the figure's own scale, except for what multiplies (perplexity,
separation fuzziness, its ratios and rates): there logarithms are averaged, the mean is the geometric one, and the ends
are turned back. Whether a figure multiplies follows from what it is, never from the values that came out.

Two runs have no interval: with one degree of freedom t is 12.7, and what comes out says nothing that the two runs do
not say themselves. Nor has what would span more than four decades: so few runs do not even tell its order of
magnitude. The smallest and the largest run stand beside every mean and say what was seen.

What has no mean is left out: p-values, and the parameters of a curve, which mean nothing apart from each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from vitscope.runs.tidy import images_of, shape_of

LEAST_RUNS = 3  # for an interval
MOST_DECADES = 4.0  # that an interval of logarithms may span
OVER_SEEDS = ("mean", "low", "high", "smallest", "largest", "runs", "scale")
OWN, LOG = "own", "log"
# By table; all other figures are averaged on their own scale.
MULTIPLY = {
    "training": ("train_perplexity", "test_perplexity", "ema_test_perplexity"),
    "probe_separation": ("fuzziness",),
    "probe_separation_fits": ("rho",),
    "probe_separation_spike": ("peak", "last", "fall", "pixels", "embedding", "over_pixels", "over_embedding"),
}
ENDS = {"%": 100.0, "share": 1.0}  # of shares: Student's interval does not know them
NO_MEAN = {"probe_separation_fits": ("a", "b", "c", "aicc")}


def mean_with_interval(values: Sequence[float], *, geometric: bool = False) -> tuple[float, float, float]:
    """Mean of runs and its 95 % interval; NaN where there is none."""
    row = over_seeds(pd.DataFrame({"value": values}).assign(key=0), ["key"], "value", LOG if geometric else OWN)
    return tuple(float(row[c].iloc[0]) for c in ("mean", "low", "high"))  # type: ignore[return-value]


def over_seeds(table: pd.DataFrame, keys: Sequence[str], figure: str, scale: str = OWN) -> pd.DataFrame:
    """`keys` and OVER_SEEDS of one column, one row per key; runs where it is undefined are not counted."""
    values = table[[*keys, figure]].dropna(subset=[figure])
    if scale == LOG:
        values = values[values[figure] > 0].assign(**{figure: lambda t: np.log(t[figure])})
    groups = values.groupby(list(keys), sort=False, dropna=False)[figure]
    found = groups.agg(mean="mean", sd="std", smallest="min", largest="max", runs="count").reset_index()
    half = found["sd"] * found["runs"].map({n: _reach(n) for n in set(found["runs"])})
    found["low"], found["high"] = found["mean"] - half, found["mean"] + half
    if scale == LOG:
        ends = ["low", "high"]
        found[ends] = found[ends].where(2 * half <= MOST_DECADES * math.log(10), axis=0)
        columns = ["mean", *ends, "smallest", "largest"]
        found[columns] = np.exp(found[columns])
    return found.assign(scale=scale)[[*keys, *OVER_SEEDS]]


def _reach(n: int) -> float:
    """Half of the interval in standard deviations."""
    if n < LEAST_RUNS:
        return math.nan
    from scipy.stats import t

    return float(t.ppf(0.975, n - 1)) / math.sqrt(n)


def averaged_tables(name: str, tables: Sequence[pd.DataFrame], cells: Sequence[str]) -> pd.DataFrame:
    """Every figure of a table over the seeds: `cells`, the table's keys, its unit and so on, figure, OVER_SEEDS.

    Each table belongs to one run; its columns `cells` hold the run's setting. The heads of a block are in no order
    that two trainings share, so that their mean is taken in each run first. What is the same in every run and epoch (a
    chance level, the edges of a histogram) is left to the runs' own tables.
    """
    stacked = pd.concat([table.assign(_run=number) for number, table in enumerate(tables)], ignore_index=True)
    shape = shape_of(stacked, given=["_run", *cells])
    keys = [key for key in shape.keys if not (key == "head" and stacked[key].dtype.kind in "iu")]
    by = [*cells, *keys, *shape.facts]
    # one number for what a row is about, so that the many text columns are compared once and not for every figure
    stacked["_about"] = stacked.groupby(by, sort=False, dropna=False).ngroup()
    about = stacked.drop_duplicates("_about").set_index("_about")[by]
    parts = []
    for figure in shape.moving or shape.figures:
        if figure in NO_MEAN.get(name, ()) or figure == "p" or figure.startswith("p_"):
            continue
        runs = stacked.dropna(subset=[figure]).groupby(["_about", "_run"], sort=False)[figure].mean().reset_index()
        scale = LOG if figure in MULTIPLY.get(name, ()) else OWN
        found = over_seeds(runs, ["_about"], figure, scale).set_index("_about")
        parts.append(about.loc[found.index].assign(figure=figure).join(found))
    images = images_of(stacked)
    if not parts:
        return pd.DataFrame(columns=[*by, "figure", *OVER_SEEDS])
    table = pd.concat(parts, ignore_index=True)
    if "unit" in table:
        shares = table["unit"].isin(list(ENDS)) & (table["smallest"] >= 0)
        table["low"] = table["low"].clip(lower=0).where(shares, table["low"])
        table["high"] = table["high"].clip(upper=table["unit"].map(ENDS)).where(shares, table["high"])
    return table if images is None else table.assign(images=images)
