"""Columns of a table as they are typed: `top1`, `pgd@1/255=PGD`, `attention.mean[block=11,head=0,metric=entropy]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitscope.errors import VitscopeError, suggest
from vitscope.papers.measured import Measured, in_table
from vitscope.runs import Run

if TYPE_CHECKING:
    import pandas as pd


_ADDRESS = re.compile(r"(\w+)\.(\w+)\[([^\[\]]*)\]")
MOST = 80  # names that an error lists
EXAMPLE = "attention.mean[block=11,head=0,query=class,metric=entropy]"


@dataclass(frozen=True)
class Column:
    name: str  # as typed: a name, a short name or an address
    heading: str


def parse_columns(words: str | Sequence[str]) -> list[Column]:
    """Commas separate, except between brackets; `NAME=HEADING` gives a column another heading."""
    given = [words] if isinstance(words, str) else list(words)
    texts = [text.strip() for word in given for text in re.split(r",(?![^\[]*\])", word) if text.strip()]
    columns = []
    for text in texts:
        name, _, heading = re.fullmatch(r"([^=\[]*(?:\[[^\]]*\])?)(=?)(.*)", text).groups()  # type: ignore[union-attr]
        columns.append(Column(name.strip(), heading.strip() or name.strip()))
    if not columns:
        raise VitscopeError("--table: no column is named. Expected names of figures, such as top1,pgd@1/255.")
    headings = [column.heading for column in columns]
    if twice := [heading for heading in headings if headings.count(heading) > 1]:
        raise VitscopeError(f"--table: the column {twice[0]!r} is there twice.")
    return columns


def full_name(name: str, known: Iterable[str]) -> str:
    """`top1` -> `accuracy.top1`. A name that nobody measured suggests the nearest and lists what is there."""
    names = sorted(set(known))
    if name in names:
        return name
    found = [full for full in names if name in _endings(full)]
    if len(found) == 1:
        return found[0]
    if found:
        raise VitscopeError(f"--table {name}: there is more than one: {', '.join(found)}. Type one of these.")
    short = [_short(full, names) for full in names]
    near = suggest(name, [*short, *(full for full in names if full not in short)])
    there = ", ".join(short[:MOST]) + (f", ... ({len(short) - MOST} more)" if len(short) > MOST else "")
    raise VitscopeError(
        f"--table {name}: none of these runs has a figure {name!r}.{near} There are: {there or 'none'}. "
        f"Other numbers of a table are named TABLE.COLUMN[KEY=VALUE,...], such as {EXAMPLE}."
    )


def _endings(full: str) -> list[str]:
    """`kpca.values.cka` -> ['cka', 'values.cka']. The point of a budget, as in `attack.pgd@0.5`, separates nothing."""
    name, at, budget = full.partition("@")
    parts = name.split(".")
    return [".".join(parts[start:]) + at + budget for start in range(len(parts) - 1, 0, -1)]


def _short(full: str, names: Sequence[str]) -> str:
    """The shortest ending that means this name alone."""
    mine = [e for e in _endings(full) if sum(e in (other, *_endings(other)) for other in names) == 1]
    return mine[0] if mine else full


def is_cell(name: str) -> bool:
    return _ADDRESS.fullmatch(name) is not None


def cell(run: Run, name: str) -> Measured | str:
    """The number behind `TABLE.COLUMN[KEY=VALUE,...]`, or why this run has none."""
    table_name, figure, keys = _ADDRESS.fullmatch(name).groups()  # type: ignore[union-attr]
    table = run.table(table_name)
    if table is None:
        return f"it has no table {table_name}"
    columns = [str(c) for c in table.columns]
    for column in (figure, *(key for key, _ in _pairs(keys, name))):
        if column not in columns:
            raise VitscopeError(
                f"--table {name}: the table {table_name} of {run.path} has no column {column!r}."
                f"{suggest(column, columns)} It has {', '.join(columns)}."
            )
    rows = table
    for key, value in _pairs(keys, name):
        rows = rows[[_same(v, value) for v in rows[key]]]
        if not len(rows):
            return f"its table {table_name} has no row with {key}={value}"
    if len(rows) > 1:
        apart = [c for c in _keys(table) if rows[c].nunique() > 1] or columns
        some = ", ".join(f"{c}={rows[c].iloc[0]}" for c in apart)
        raise VitscopeError(f"--table {name}: {len(rows)} rows of {run.path} fit. Say also, for example, {some}.")
    if table[figure].dtype.kind not in "iuf":
        raise VitscopeError(f"--table {name}: {figure} of the table {table_name} holds words, not numbers.")
    found = in_table(table, rows, figure)
    return found if found.value == found.value else "it was not measured"


def _keys(table: pd.DataFrame) -> Sequence[str]:
    from vitscope.runs.tidy import shape_of

    return shape_of(table).keys


def _pairs(text: str, name: str) -> list[tuple[str, str]]:
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    if wrong := [key for key, equals, _ in parts if not equals]:
        raise VitscopeError(f"--table {name}: expected KEY=VALUE between the brackets, not {wrong[0]!r}.")
    return [(key.strip(), value.strip()) for key, _, value in parts]


def _same(value: Any, typed: str) -> bool:
    """11 and 11.0 are what somebody means by `11`."""
    try:
        return str(value) == typed or float(value) == float(typed)
    except (TypeError, ValueError):
        return False


def reason(name: str, run: Run, known: Mapping[str, Measured]) -> str:
    """Why a run has no figure that another one has."""
    analysis = name.partition("@")[0].rpartition(".")[0]
    some = any(other.startswith(f"{analysis}.") for other in known)
    if run.status != "finished":
        return "the run is not finished"
    return f"`{analysis}` has no such figure here" if some else f"`{analysis}` was not run"
