"""Tidy tables as CSV: exact on the way out and on the way back, and never a silent NaN.

Floats are written with the shortest digits that read back to the same bits. Text is quoted and numbers are not, so that
a class called `7` or `NA` comes back as text.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitscope.errors import NumericalError, RunError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


def check_name(name: str) -> str:
    """Table names become file names and links."""
    if not _NAME.fullmatch(name):
        raise RunError(
            f"{name!r} cannot be the name of a table. Use letters, digits, '_', '-' and '.', e.g. 'attention'."
        )
    return name


def check_table(name: str, table: pd.DataFrame, allow_nan: Collection[str] = ()) -> None:
    """Refuse what is not tidy: unnamed or doubled columns, lists in cells, NaN or infinity outside `allow_nan`."""
    columns = list(table.columns)
    if not columns or not all(isinstance(c, str) and c for c in columns):
        raise RunError(f"Table {name!r} needs named columns, but has {columns}.")
    if len(set(columns)) < len(columns):
        raise RunError(f"Table {name!r} has a column twice: {sorted({c for c in columns if columns.count(c) > 1})}.")
    unknown = sorted(set(allow_nan) - set(columns))
    if unknown:
        raise RunError(
            f"Table {name!r} has no column {unknown[0]!r} to allow NaN in. Its columns: {', '.join(columns)}."
        )
    for column in columns:
        values = table[column]
        if values.dtype == object:
            nested = values.map(lambda cell: isinstance(cell, (list, tuple, dict, set, np.ndarray)))
            if nested.any():
                row = int(np.flatnonzero(nested)[0])
                raise RunError(
                    f"Table {name!r}, column {column!r}, row {row} holds a {type(values.iloc[row]).__name__}. "
                    "A tidy table has one value per cell: use one row per observation."
                )
        if column not in allow_nan:
            _check_finite(name, column, values)


def _check_finite(name: str, column: str, values: pd.Series) -> None:
    bad = values.isna().to_numpy(dtype=bool)
    if values.dtype.kind == "f":
        bad = bad | np.isinf(values.to_numpy(dtype=np.float64))
    if bad.any():
        rows = np.flatnonzero(bad)
        raise NumericalError(
            f"Table {name!r}, column {column!r}: {len(rows)} of {len(values)} values are missing, NaN or infinite "
            f"(first in row {rows[0]}: {values.iloc[int(rows[0])]}). If that is meant: "
            f"allow_nan=[{column!r}], which an analysis says with its attribute `optional`."
        )


def to_csv(table: pd.DataFrame) -> str:
    """Text quoted, numbers bare, NaN empty. The index is not written."""
    return table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")


def read_csv(path: Path) -> pd.DataFrame:
    """The inverse of `to_csv`, bit for bit in every float64. Only an empty cell is NaN; in a text column it is ''."""
    try:
        _check_end(path)
        text = _text_columns(path)
        # from pandas 3.1 on floats are exact in any case, and asking is deprecated
        old = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
        exact: dict[str, Any] = {"float_precision": "round_trip"} if old else {}
        table = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(text, "str"), **exact)
    except (OSError, ValueError, csv.Error) as error:  # pandas' parser errors are ValueErrors
        raise RunError(f"Cannot read the table {path}: {getattr(error, 'strerror', None) or error}") from error
    for column in table.columns:
        if table[column].dtype == "str":
            table[column] = table[column].fillna("")
    return table


def _check_end(path: Path) -> None:
    """Half of a file often reads well, with empty cells at its end."""
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                raise ValueError("it ends in the middle of a row")


def _text_columns(path: Path) -> list[str]:
    """Columns whose first cell is quoted and not empty."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header, first = next(rows, []), next(rows, [])
        lines = rows.line_num
    with open(path, encoding="utf-8", newline="") as file:
        raw = "".join(next(file) for _ in range(lines))
    row = raw[len(_record(raw)) :]
    quoted = []
    for cell in first:
        quoted.append(row.startswith('"'))
        written = '"' + cell.replace('"', '""') + '"' if quoted[-1] else cell
        row = row[len(written) + 1 :]
    return [column for column, cell, mark in zip(header, first, quoted) if mark and cell]


def _record(raw: str) -> str:
    """The first CSV record of a text, line breaks inside quotes included."""
    inside = False
    for at, character in enumerate(raw):
        if character == '"':
            inside = not inside
        elif character == "\n" and not inside:
            return raw[: at + 1]
    return raw
