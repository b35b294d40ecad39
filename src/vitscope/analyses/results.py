"""What analyses have found so far, written into the run folder: tables, rows per image, headline figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vitscope.analyses.base import Analysis, Headline, tables_of
from vitscope.analyses.rows import merge_rows, rows_folder
from vitscope.errors import VitscopeError
from vitscope.runs import Run

if TYPE_CHECKING:
    from vitscope.analyses.state import State


def write_results(run: Run, analyses: Sequence[Analysis], states: Sequence[State], *, so_far: bool = False) -> None:
    """Merge the rows of all processes, write every table and the summary.

    `so_far`: the run is not finished, and this is for its report. An analysis that needs more images is left out.
    """
    merged = merge_rows(rows_folder(run.state_dir), run.tables_dir, [state.rows for state in states])
    owner = dict.fromkeys(merged, "the per-image rows")
    for analysis in analyses:
        try:
            _write(run, analysis, owner)
        except VitscopeError:
            if not so_far:
                raise


def _write(run: Run, analysis: Analysis, owner: dict[str, str]) -> None:
    tables, who = tables_of(analysis), type(analysis).__name__
    if not (isinstance(tables, Mapping) and all(hasattr(table, "columns") for table in tables.values())):
        raise VitscopeError(f"{who}.tables() returns no tables by name; expected {{'lengths': pd.DataFrame(...)}}.")
    for name, table in tables.items():
        if name in owner:
            raise VitscopeError(f"Analysis {analysis.name!r} and {owner[name]} both write a table {name!r}.")
        owner[name] = analysis.name
        run.write_table(name, table, allow_nan=[c for c in analysis.optional if c in table])
    figures = analysis.summary()
    for key, figure in figures.items():
        if not isinstance(figure, Headline):
            raise VitscopeError(
                f"{who}.summary()[{key!r}] is of type {type(figure).__name__}; expected Headline(value, unit, n, note) "
                "of vitscope.analyses, n the number of images behind it."
            )
    run.write_summary({f"{analysis.name}.{key}": figure for key, figure in figures.items()})
