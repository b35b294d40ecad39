"""Which columns of a tidy table say what a row is about, and which were measured. Told from the table itself.

A table of an analysis says it nowhere, and analyses of one's own have tables of their own. But a tidy table has one
row per observation: the columns that tell its rows apart are its keys, and numbers among the others are its figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

# Looked at first: a count that stands before `block` must not be taken for a key because it, too, tells rows apart.
USUAL = ("epoch", "split", "block", "layer", "head", "label", "metric")
ENDS = ("low", "high")  # of an interval over images: they belong to a figure and are none
COUNTS = ("n", "n_images", "images")  # how many images are behind a row


@dataclass(frozen=True)
class Shape:
    """The columns of a table by what they are for."""

    keys: tuple[str, ...]  # tell the rows apart
    figures: tuple[str, ...]  # were measured, or at least are numbers; whole ones, which count, come last
    moving: tuple[str, ...]  # those of them that differ from epoch to epoch or from run to run: a chance level does not
    facts: tuple[str, ...]  # text that follows from the keys, such as a unit

    def interval_of(self, figure: str, columns: Sequence[str]) -> tuple[str, str] | None:
        """The columns with the ends of its interval: `rate_low`, `rate_high`; `low`, `high` are of the first figure."""
        named = f"{figure}_low", f"{figure}_high"
        if set(named) <= set(columns):
            return named
        first = (self.moving or self.figures)[0]
        plain = set(ENDS) <= set(columns) - set(self.keys) and figure == first
        return ENDS if plain else None


def shape_of(table: pd.DataFrame, given: Sequence[str] = ()) -> Shape:
    """Keys and figures of a table. `given`: columns known to be keys, such as the run where tables are stacked.

    Keys are taken from the usual names, then text, then numbers, those with the fewest different values first (a key
    comes back in every epoch, a measurement hardly does), each if it tells rows apart that those before it do not. How
    many images there were is no figure unless it differs.
    """
    columns = [c for c in table.columns if c not in given]
    kinds = {c: {"i": "whole", "u": "whole", "f": "number"}.get(table[c].dtype.kind, "text") for c in columns}
    apart = _Apart(table)
    order = [c for c in USUAL if c in columns]
    others = [c for c in columns if c not in order]
    order += sorted(others, key=lambda c: (kinds[c] != "text", 0 if kinds[c] == "text" else apart(c)))
    keys: list[str] = [c for c in ("epoch", "split") if c in columns]
    for column in order:
        if apart(*given, *keys) == len(table):
            break
        if column not in keys and apart(*given, *keys, column) > apart(*given, *keys):
            keys.append(column)
    for column in [c for c in keys if kinds[c] != "text" and c not in USUAL]:  # a later one may have made it needless
        rest = [c for c in keys if c != column]
        if apart(*given, *rest) == apart(*given, *keys):
            keys = rest
    keys = [c for c in columns if c in keys]
    ends = [c for c in columns if c in ENDS or c.endswith(("_low", "_high"))]
    numbers = [c for c in columns if kinds[c] != "text" and c not in keys and c not in ends]
    numbers.sort(key=lambda c: kinds[c] == "whole")
    still = [c for c in keys if c != "epoch"]
    moving = [c for c in numbers if apart(*still, c) > apart(*still)]
    figures = [c for c in numbers if c in moving or c not in COUNTS]
    facts = [c for c in columns if kinds[c] == "text" and c not in keys and apart(*keys, c) == apart(*keys)]
    return Shape(tuple(keys), tuple(figures), tuple(moving), tuple(facts))


class _Apart:
    """How many rows some columns tell apart. Tables may have a million rows: each column becomes numbers once."""

    def __init__(self, table: pd.DataFrame) -> None:
        self._table = table
        self._rows: dict[tuple[str, ...], np.ndarray] = {(): np.zeros(len(table), dtype=np.int64)}

    def __call__(self, *columns: str) -> int:
        return int(self._numbers(columns).max(initial=-1)) + 1

    def _numbers(self, columns: tuple[str, ...]) -> np.ndarray:
        """A number for each row, the same for rows that agree in these columns."""
        if columns not in self._rows:
            last = pd.factorize(self._table[columns[-1]], use_na_sentinel=False)[0]
            both = self._numbers(columns[:-1]) * (last.max(initial=0) + 1) + last
            self._rows[columns] = pd.factorize(both)[0]
        return self._rows[columns]


def images_of(table: pd.DataFrame) -> int | None:
    """How many images are behind the rows, where the table says so and all rows agree."""
    for column in COUNTS:
        if column in table and table[column].nunique() == 1:
            return int(table[column].iloc[0])
    return None
