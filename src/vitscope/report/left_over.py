"""Tables that no panel shows: those of an analysis of one's own that has no panel, or whose code is not at hand."""

from __future__ import annotations

from collections.abc import Sequence

from vitscope.report.panel import Panel, Runs
from vitscope.report.panel_parts import stacked, tables_of
from vitscope.report.sources import parts_of

ELSEWHERE = (
    "predictions",
    "skipped",
    "images",
    "texts",
    "vocabulary_topk",
    "maps_",
)  # how tables of the gallery and long lists begin


def left_over_tables(runs: Runs, panels: Sequence[Panel]) -> list[Panel]:
    """One panel with them, for runs that used code outside of vitscope; none where there is nothing to show."""
    shown = {name for panel in panels for name in panel.tables}
    own = [part for run in runs.values() for part in parts_of(run) if part.config.get("modules")]
    names = dict.fromkeys(name for part in own for name in part.list_tables() if not name.startswith(ELSEWHERE))
    found = {name: tables for name in names if name not in shown and (tables := tables_of(runs, name))}
    if not found:
        return []
    return [
        Panel(
            key="further_tables",
            title="What else was measured?",
            reading="Tables of these runs that no panel of this page draws: an analysis from outside of vitscope "
            "brings a panel of its own, or is read here.",
            tables={name: stacked(tables) for name, tables in found.items()},
            order=98,
        )
    ]
