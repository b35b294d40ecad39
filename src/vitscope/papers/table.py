"""A table for a paper: models as rows, figures as columns, a reason for every gap, a word where rows are not alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitscope.errors import VitscopeError
from vitscope.papers.columns import Column, cell, full_name, is_cell, parse_columns, reason
from vitscope.papers.measured import Measured, measured
from vitscope.papers.rows import TableRow, model_rows, over_seeds, pooled
from vitscope.report.sources import parts_of
from vitscope.runs import Run


@dataclass(frozen=True)
class Missing:
    reason: str


@dataclass(frozen=True)
class PaperTable:
    """`cells[i][j]` belongs to row i and column j."""

    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: tuple[tuple[Measured | Missing, ...], ...]
    seeds: tuple[int, ...]  # runs behind each row
    notes: tuple[str, ...]  # what a reader of the numbers must know

    def unit(self, column: int) -> str:
        units = {c.unit for row in self.cells if isinstance(c := row[column], Measured)}
        return units.pop() if len(units) == 1 else ""


def paper_table(
    runs: Sequence[str | Path] | str | Path, columns: str | Sequence[str], *, average_seeds: bool = False
) -> PaperTable:
    """Figures of many runs, read from their summaries and tables; needs neither models nor data.

    columns: names such as `top1,pgd@1/255`, with another heading `top1=Top-1`, or `TABLE.COLUMN[KEY=VALUE]`.
    average_seeds: runs that differ in their seed alone are one row, with the interval over seeds.
    """
    wanted = parse_columns(columns)
    folders = [runs] if isinstance(runs, str | Path) else list(runs)
    rows, remarks = model_rows(folders), list[str]()
    known = {id(run): measured(run) for row in rows for run in row.runs}
    every = [name for figures in known.values() for name in figures]
    named = [c if is_cell(c.name) else replace(c, name=full_name(c.name, every)) for c in wanted]
    if average_seeds:
        rows, remarks = pooled(rows)
    cells = [tuple(_cell(row, column, known) for column in named) for row in rows]
    if all(isinstance(c, Missing) for line in cells for c in line):
        raise VitscopeError(f"--table: there is nothing to show. {_gaps(rows, wanted, cells)[0]}")
    notes = [*_intervals(wanted, cells, rows), *remarks, *_unlike(wanted, rows, cells), *_gaps(rows, wanted, cells)]
    notes += [f"{row.label}: unfinished, figures so far." for row in rows if any(_open(run) for run in row.runs)]
    labels, seeds = tuple(row.label for row in rows), tuple(len(row.runs) for row in rows)
    return PaperTable(labels, tuple(wanted), tuple(cells), seeds, tuple(notes))


def _cell(row: TableRow, column: Column, known: Mapping[int, Mapping[str, Measured]]) -> Measured | Missing:
    found: list[Measured | str] = []
    for run in row.runs:
        if is_cell(column.name):
            found.append(cell(run, column.name))
        else:
            figures = known[id(run)]
            found.append(figures[column.name] if column.name in figures else reason(column.name, run, figures))
    numbers = [f for f in found if isinstance(f, Measured)]
    if len(numbers) < len(found):
        why = next(f for f in found if isinstance(f, str))
        return Missing(why if len(row.runs) == 1 else f"{len(found) - len(numbers)} of {len(found)} seeds: {why}")
    mean = numbers[0] if len(numbers) == 1 else over_seeds(numbers)
    return Missing(mean) if isinstance(mean, str) else mean


def _intervals(columns: Sequence[Column], cells: Sequence[Sequence[Any]], rows: Sequence[TableRow]) -> list[str]:
    """What the intervals are, and what the numbers were counted on."""
    kinds: dict[str, list[str]] = {}
    there = [*zip(columns, zip(*cells))]
    for column, found in there:
        for kind in dict.fromkeys(m.interval for m in found if isinstance(m, Measured) and m.interval):
            kinds.setdefault(kind, []).append(column.heading)
    notes = [f"95 % intervals, {kind}: {', '.join(names)}." for kind, names in kinds.items()]
    bare = [c.heading for c, found in there if any(isinstance(m, Measured) and not m.has_interval for m in found)]
    if bare:
        notes.append(f"Without an interval, or not in every row: {', '.join(bare)}.")
    if any(len(row.runs) > 1 for row in rows):
        counts = ", ".join(f"{row.label}: {len(row.runs)}" for row in rows)
        notes.append(f"Means over seeds ({counts} runs); fewer than three runs have no interval.")
    return notes


def _unlike(columns: Sequence[Column], rows: Sequence[TableRow], cells: Sequence[Sequence[Any]]) -> list[str]:
    """Numbers of one column that must not be compared without a word."""
    notes = []
    for column, found in zip(columns, zip(*cells)):
        there = [(row, m) for row, m in zip(rows, found) if isinstance(m, Measured)]
        for what, values in (
            ("protocol", {row.label: m.how for row, m in there}),
            ("unit", {row.label: m.unit for row, m in there}),
            ("number of images", {row.label: f"{m.n:,}" for row, m in there}),
            ("data", {row.label: _data(row.runs[0]) for row, _ in there}),
        ):
            if len(set(values.values())) > 1:
                told = "; ".join(f"{label}: {value or 'none'}" for label, value in values.items())
                notes.append(f"{column.heading}: not the same {what} in all rows ({told}).")
    return list(dict.fromkeys(notes))


def _gaps(rows: Sequence[TableRow], columns: Sequence[Column], cells: Sequence[Sequence[Any]]) -> list[str]:
    gaps: dict[str, list[str]] = {}
    for row, line in zip(rows, cells):
        for column, found in zip(columns, line):
            if isinstance(found, Missing):
                gaps.setdefault(f"{column.heading}: {found.reason}", []).append(row.label)
    return [f"No {gap} ({', '.join(labels)})." for gap, labels in gaps.items()]


def _data(run: Run) -> str:
    data = run.config.get("data")
    return str(data.get("name") or data.get("source")) if isinstance(data, Mapping) else str(data or "")


def _open(run: Run) -> bool:
    return any(part.status != "finished" for part in parts_of(run))


def decimals(values: Sequence[float], unit: str) -> int:
    """Digits behind the point that all numbers of a column have: one of percents, else three in all of the largest."""
    largest = max((abs(v) for v in values if math.isfinite(v) and v), default=1.0)
    return 1 if unit == "%" else min(max(0, 2 - math.floor(math.log10(largest))), 8)
