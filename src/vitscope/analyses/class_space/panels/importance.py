"""Which memories speak for the class? A table; every memory is a row, so there is nothing to draw per block."""

from __future__ import annotations

import pandas as pd

from vitscope.analyses.class_space.panels.identifiability import variant_text
from vitscope.analyses.class_space.panels.memories import LAYERS
from vitscope.analyses.class_space.panels.parts import interval, largest
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, register_panel
from vitscope.report.panel_parts import protocol, stacked, tables_of, told

TABLE, SHOWN = "class_space_memory_importance", 20


@register_panel("class_space_importance")
def importance_panel(runs: Runs) -> Panel | None:
    """The memories with the largest contribution, of all blocks."""
    tables = tables_of(runs, TABLE)
    if not tables:
        return None
    best = {label: table.nlargest(SHOWN, "contribution") for label, table in tables.items()}
    return Panel(
        key="class_space_importance",
        lens="Class space",
        title="Which memories speak for the class?",
        reading=(
            "A memory's contribution is its coefficient times the gradient of the class's evidence in the layer's "
            f"output, mean over images. The {SHOWN} largest of all blocks are listed with the class that each points "
            f"to most; tables/{TABLE}.csv has more."
        ),
        tables={TABLE: stacked(best)},
        protocol=protocol(runs, TABLE, variant_text(runs, "importance") + _asked(runs)),
        findings=told({label: [_finding(table)] for label, table in best.items()}, len(runs) > 1),
        order=25,
    )


def _asked(runs: Runs) -> str:
    found = set()
    for run in runs.values():
        options = (run.config.get("analyses") or {}).get("importance") or {}
        usual = "cross_entropy_code" if options.get("variant") == "code" else "cross_entropy"
        found.add(f"objective {options.get('objective') or usual}, asked for {options.get('target', 'label')}")
    return ", " + " / ".join(sorted(found))


def _finding(table: pd.DataFrame) -> Finding:
    top = largest(table, "contribution")
    text = (
        f"the memory that speaks most for the class is number {int(top['memory'])} in the "
        f"{LAYERS[str(top['layer'])]} of block {int(top['block'])}, which points to {top['class_name']}: contribution "
        f"{short(float(top['contribution']))} ({interval(top, 'contribution_')})."
    )
    return Finding(text, 0.3)
