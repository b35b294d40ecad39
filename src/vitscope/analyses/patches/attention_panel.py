"""The pictures of `patches.attention`: does attention stay within the class?"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.patches.panel import sizes
from vitscope.report import figures as f
from vitscope.report.lens_drawing import banded, draw_heads
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import blocks_of, name_models, protocol, stacked, tables_of, told

HEADS, BLOCKS = "patches_attention", "patches_attention_blocks"


@register_panel("patches_attention")
def patch_attention_panel(runs: Runs) -> Panel | None:
    """Curves per block against chance, inside and at borders, and a heat map of heads."""
    heads, blocks = tables_of(runs, HEADS), tables_of(runs, BLOCKS)
    if not heads or not blocks:
        return None
    n = sizes(heads)
    everyone = {label: table[table["tokens"] == "all"] for label, table in heads.items()}
    return Panel(
        key="patches_attention",
        lens="Patches",
        title="Does attention stay within the class?",
        figures={
            "patches_within": draw_blocks(blocks, list(runs)),
            "patches_heads": draw_heads(everyone, "excess", "above chance (points)", 2.8),
        },
        alt={
            "patches_within": "Share of attention within the class above chance, per block, inside and at borders",
            "patches_heads": "Share of attention within the class above chance, per head and block",
        },
        captions={
            "patches_within": "Attention that a patch gives to others of its own class, of all that it gives to other "
            "patches, minus the share of patches of that class; mean over heads. Left: patches inside of objects; "
            f"right: at borders. {n}; bands: 95 % intervals over images.",
            "patches_heads": f"The same for all patches, head by head, in percentage points. {n}.",
        },
        reading=(
            "At zero a head does not care for the class. Heads look at what is near, and near patches are often of "
            "one class: compare the first blocks, which can know little more than places, with the later ones."
        ),
        tables={HEADS: stacked(heads), BLOCKS: stacked(blocks)},
        protocol=protocol(runs, HEADS, "the patch itself, class and register tokens are left out; RPC: last iteration"),
        findings=told({label: [_finding(table)] for label, table in heads.items()}, len(runs) > 1),
        order=15,
    )


def draw_blocks(tables: Tables, labels: list[str]) -> Figure:
    styles = f.model_styles(labels)
    fig, axes = f.new_figure(height=2.8, columns=2)
    for ax, kind in zip(axes, ("inside", "border")):
        for label, table in tables.items():
            rows = table[table["tokens"] == kind].sort_values("block")
            banded(ax, rows, "excess", styles[label])
        f.null_line(ax, 0, "chance")
        f.block_axis(ax, blocks_of(tables))
        where = "inside of objects" if kind == "inside" else "at borders"
        f.label_axes(ax, y=f"{where}: within the class, above chance (points)")
        f.direct_labels(ax)
    name_models(fig, labels, tables)
    return fig


def _finding(table: pd.DataFrame) -> Finding:
    best = table[table["tokens"] == "all"].sort_values("excess").to_dict("records")[-1]
    text = (
        f"head {best['head']} of block {best['block']} gives {short(best['within'])} % of its attention "
        f"between patches to its own class, where chance is {short(best['chance'])} %."
    )
    return Finding(text, 0.55)
