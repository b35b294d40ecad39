"""What `separation` says of a run beside its tables: spike, fall and rates, in one row."""

from __future__ import annotations

from typing import Any

import pandas as pd

from vitscope.analyses.separation.fits import determined
from vitscope.analyses.separation.profile import block_fits, epoch_fits, read_token, spikes
from vitscope.runs import Run

PROBE = "probe_separation"
RATES = ("rate", "decay", "epoch_rate", "epoch_decay")  # rho of the log-linear law and b of the published curve
GEOMETRIC = ("last_fuzziness", "over_pixels", "over_embedding", "fall", *RATES)  # averaged as logarithms
CURVES = ("best_curve", "best_epoch_curve")  # with the lowest AICc


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
    layers = table[table["point"] == "block"]["layer"]
    return values | _fitted(block_fits(table), token, float(layers.max() - layers.min()), "", "best_curve")


def learning(run: Run) -> dict[str, Any]:
    """How the last block's held-out fuzziness fell with the epochs."""
    probe = run.table(PROBE)
    if probe is None:
        return {}
    fits = epoch_fits(probe)
    held_out = fits[fits["split"] == ("test" if (fits["split"] == "test").any() else "train")]
    epochs = probe[probe["epoch"] > 0]["epoch"]
    span = float(epochs.max() - epochs.min())
    return _fitted(held_out, read_token(probe), span, "epoch_", "best_epoch_curve")


def _fitted(fits: pd.DataFrame, token: str, span: float, prefix: str, best: str) -> dict[str, Any]:
    """Numbers of the log-linear law and of the published curve, and which curve has the lowest AICc.

    A decay at the edge of what was searched is no estimate: there is none then.
    """
    rows = fits[fits["token"] == token].to_dict("records")
    values: dict[str, Any] = {}
    for row in rows:
        if row["curve"] == "log_linear":
            values |= {f"{prefix}rate{end}": row[c] for end, c in (("", "rho"), ("_r", "r"), ("_r2", "r2"))}
        if (row["curve"], row["errors"]) == ("exponential", "D"):
            decay = row["b"] if determined(row["b"], span) else float("nan")
            values |= {f"{prefix}decay": decay, f"{prefix}exponential_r2": row["r2"]}
        if row["delta"] == 0:
            values[best] = f"{row['curve']} ({row['errors']})"
    return values
