"""What a profile of fuzziness says: its fits over blocks and epochs, and its spike. Tables in, tables out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pandas as pd

from vitscope.analyses.separation.fits import Fit, compare_fits

FIT_COLUMNS = ("a", "b", "c", "rho", "r", "r2", "aicc", "delta", "weight")
SPIKE_COLUMNS = ("fall", "pixels", "embedding", "over_pixels", "over_embedding")
_FIT_ORDER = ["over", "token", *(f.name for f in fields(Fit))]


def read_token(table: pd.DataFrame) -> str:
    """The token that the head reads: the class token where there is one."""
    return "class" if (table["token"] == "class").any() else "mean"


def blocks_of(table: pd.DataFrame, token: str) -> pd.DataFrame:
    """The blocks' rows of one token, first to last."""
    return table[(table["point"] == "block") & (table["token"] == token)].sort_values("layer")


def tokens_of(table: pd.DataFrame) -> list[str]:
    return [token for token in ("class", "mean") if (table["token"] == token).any()]


def value_at(table: pd.DataFrame, point: str, token: str = "") -> float:
    """D at a point outside the blocks, NaN where it was not measured or is undefined."""
    rows = table[(table["point"] == point) & (table["token"] == token)]
    return float(rows["fuzziness"].iloc[0]) if len(rows) else float("nan")


def block_fits(table: pd.DataFrame) -> pd.DataFrame:
    """Curves over the blocks (layers 1 .. L) of one measured profile, for each token."""
    return _fit_table(
        {"over": "blocks", "token": token} | vars(fit)
        for token in tokens_of(table)
        for rows in [blocks_of(table, token)]
        for fit in compare_fits(rows["layer"], rows["fuzziness"])
    )


def fits_of(profile: pd.DataFrame, stored: pd.DataFrame | None, **where: object) -> pd.DataFrame:
    """Curves over the blocks of a profile: the rows of a run's table that `where` names, or fitted now if it has none.

    A page is drawn from tables; fitting the same curves again would only cost time.
    """
    if stored is not None:
        for column, value in where.items():
            stored = stored[stored[column] == value]
        if len(stored):
            return stored.drop(columns=list(where)).reset_index(drop=True)
    return block_fits(profile)


def epoch_fits(table: pd.DataFrame) -> pd.DataFrame:
    """Curves over the epochs for the last block, for each split and token. The untrained model (epoch 0) is left out.

    `table` is a training's `probe_separation`.
    """
    parts = []
    for split, rows in table[table["epoch"] > 0].groupby("split", sort=False):
        last = rows[(rows["point"] == "block") & (rows["layer"] == rows[rows["point"] == "block"]["layer"].max())]
        fits = _fit_table(
            {"over": "epochs", "token": token} | vars(fit)
            for token in tokens_of(last)
            for mine in [last[last["token"] == token].sort_values("epoch")]
            for fit in compare_fits(mine["epoch"], mine["fuzziness"])
        )
        fits.insert(0, "split", str(split))
        parts.append(fits)
    return pd.concat(parts, ignore_index=True) if parts else _fit_table([]).assign(split="")


def spikes(table: pd.DataFrame) -> pd.DataFrame:
    """Where the blocks' fuzziness is highest, and how high, against both references, for each token.

    over_pixels compares with the raw pixels, as published: it includes the change of space. over_embedding compares
    with the mean token that enters the first block, which lives in the blocks' own space (the class token carries no
    picture there): what is left of the spike is the blocks' work. fall: the peak over the last block.
    """
    pixels, embedding = value_at(table, "pixels"), value_at(table, "embedding", "mean")
    rows = []
    for token in tokens_of(table):
        blocks = blocks_of(table, token).dropna(subset=["fuzziness"])
        if not len(blocks):
            continue
        peak = blocks.iloc[int(blocks["fuzziness"].to_numpy().argmax())]
        height, last = float(peak["fuzziness"]), float(blocks["fuzziness"].iloc[-1])
        rows.append(
            {
                "token": token,
                "place": int(peak["layer"]),
                "peak": height,
                "last": last,
                "fall": _ratio(height, last),
                "pixels": pixels,
                "embedding": embedding,
                "over_pixels": _ratio(height, pixels),
                "over_embedding": _ratio(height, embedding),
            }
        )
    return pd.DataFrame(rows, columns=["token", "place", "peak", "last", *SPIKE_COLUMNS])


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else float("nan")


def _fit_table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=_FIT_ORDER)
