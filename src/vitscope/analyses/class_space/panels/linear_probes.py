"""What could a linear readout know?"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.class_space.panels import parts as p
from vitscope.analyses.class_space.panels.identifiability import variant_text
from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import blocks_of, name_models, protocol, stacked, tables_of, told

TABLE = "probes"
KINDS = {"class": "class token", "image": "image tokens", "mean": "mean token"}


@register_panel("class_space_probes")
def probes_panel(runs: Runs) -> Panel | None:
    """Probe accuracy beside the class projection, per block and point."""
    tables = tables_of(runs, TABLE)
    if not tables:
        return None
    first = next(iter(tables.values())).iloc[0]
    return Panel(
        key="class_space_probes",
        lens="Class space",
        title="What could a linear readout know?",
        figures={"class_space_probes": draw_probes(tables, list(runs))},
        alt={"class_space_probes": "Accuracy of ridge probes and of the class projection per block"},
        captions={
            "class_space_probes": f"Solid: ridge probes (alpha {first['alpha']:g}), trained on "
            f"{int(first['n_train']):,} other images; image tokens: a probe for every position, mean over positions. "
            f"Dashed: the model's own head, choosing among the same {int(first['n_classes'])} classes. "
            f"{p.images_text(tables)}; bands: 95 % intervals over images."
        },
        reading=(
            "Where the solid line is above the dashed one, the block holds class information that the model's own head "
            "does not yet read. Probes see few training images, so they may also lie below it."
        ),
        tables={TABLE: stacked(tables)},
        protocol=protocol(runs, TABLE, variant_text(runs, "probes")),
        findings=told({label: _findings(table) for label, table in tables.items()}, len(runs) > 1),
        order=27,
    )


def main_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The first regulariser that was asked for."""
    return table[table["alpha"] == table["alpha"].iloc[0]]


def draw_probes(tables: Tables, labels: list[str]) -> Figure:
    """Rows: kinds of tokens; columns: points."""
    styles = f.model_styles(labels)
    kinds = [k for k in KINDS if any(k in set(t["tokens"]) for t in tables.values())]
    fig, axes = f.new_figure(height=0.7 + 1.7 * len(kinds), rows=len(kinds), columns=3)
    blocks = blocks_of(tables)
    for i, kind in enumerate(kinds):
        for j, (point, title) in enumerate(p.POINT_NAMES.items()):
            ax = axes[3 * i + j]
            for label, table in tables.items():
                rows = main_rows(table)
                rows = rows[(rows["tokens"] == kind) & (rows["point"] == point)].sort_values("block")
                if not len(rows):
                    continue
                p.banded(ax, rows, "accuracy", styles[label])
                dashed = f.LineStyle(styles[label].colour, "", "--")
                f.line_per_block(ax, rows["block"], rows["projection_among"], style=dashed, label="_", markers=False)
                name = j == 2 and label == next(iter(tables))
                p.control_line(ax, rows, "accuracy", name)
                f.null_line(ax, float(rows["chance"].iloc[0]), "chance" if name else "_")
            ax.set_ylim(0, 100)
            f.block_axis(ax, blocks, "block" if i == len(kinds) - 1 else "")
            p.few_ticks(ax)
            f.label_axes(ax, y=f"{KINDS[kind]}, {title} (%)")
            f.direct_labels(ax)
    name_models(fig, labels, tables)
    return fig


def _findings(table: pd.DataFrame) -> list[Finding]:
    rows = main_rows(table)
    rows = rows[(rows["point"] == "resid_post") & rows["tokens"].isin(["image", "mean"])]
    if not len(rows):
        return []
    kind = "mean" if "mean" in set(rows["tokens"]) else "image"
    rows = rows[rows["tokens"] == kind].sort_values("block")
    row = p.largest(rows.assign(ahead=rows["accuracy"] - rows["projection_among"]), "ahead")
    text = (
        f"a linear probe on the {KINDS[kind]} is furthest ahead of the model's own head in "
        f"block {int(row['block'])}: {short(float(row['accuracy']))} % ({p.interval(row, unit=' %')}) "
        f"against {short(float(row['projection_among']))} %, among "
        f"{int(row['n_classes'])} classes."
    )
    return [Finding(text, 0.45)]
