"""Whose class does the block output carry?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.class_space.conventions import SHARES, SOURCES, exclusive_shares
from vitscope.analyses.class_space.panels.identifiability import variant_text
from vitscope.analyses.class_space.panels.parts import images_text, kinds_of, named, who
from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import blocks_of, protocol, stacked, tables_of, told

TABLE, MATCHES = "class_space_composition", "class_space_matches"
COLOURS = {"previous": f.NULL, "attention": f.ORANGE, "mlp": f.SKY, "several": f.PURPLE, "none": f.INK}
NAMES = {"previous": "previous block", "attention": "attention", "mlp": "MLP", "several": "several", "none": "none"}


@register_panel("class_space_composition")
def composition_panel(runs: Runs) -> Panel | None:
    """Exclusive shares, stacked."""
    tables = {label: exclusive(t) for label, t in tables_of(runs, MATCHES).items()}
    if not tables:
        return None
    published = [label for label, t in tables_of(runs, TABLE).items() if "composition" in set(t["source"])]
    note = f" The table has the published, overlapping matches of {', '.join(published)}." if published else ""
    return Panel(
        key="class_space_composition",
        lens="Class space",
        title="Whose class does the block output carry?",
        figures={"class_space_composition": draw_stack(tables)},
        alt={"class_space_composition": "Stacked shares per block: whose top class the block output has"},
        captions={
            "class_space_composition": "Share of tokens whose top class after a block is that of the previous block "
            "alone, of the attention output alone, of the MLP output alone, of several of them, or of none. The shares "
            f"are exclusive and sum to 100 %. {images_text(tables)}.{note}"
        },
        reading=(
            "Grey: the block leaves the residual's class alone; orange and blue: a layer writes its own class over it. "
            "Black is composition: a class that none of the three had on top."
        ),
        tables={TABLE: stacked(tables_of(runs, TABLE))},
        protocol=protocol(runs, TABLE, variant_text(runs, "class_space.composition")),
        findings=told({label: _findings(table) for label, table in tables.items()}, len(runs) > 1),
        order=22,
    )


def exclusive(matches: pd.DataFrame) -> pd.DataFrame:
    """The eight patterns of matches -> exclusive shares by `source`, whatever the variant of the run."""
    rows = []
    for keys, part in matches.groupby(["block", "tokens", "n_tokens", "n_images"], sort=False):
        key = dict(zip(("block", "tokens", "n_tokens", "n_images"), keys))
        patterns = part.sort_values(list(SOURCES[::-1]))["share"]  # by match code
        rows += [key | {"source": source, "share": share} for source, share in exclusive_shares(patterns).items()]
    return pd.DataFrame(rows)


def draw_stack(tables: Tables) -> Figure:
    """A row per model, a column per kind of token."""
    kinds = kinds_of(tables, ("class", "image"))
    fig, axes = f.new_figure(height=0.9 + 1.7 * len(tables), rows=len(tables), columns=len(kinds))
    blocks = blocks_of(tables)
    handles = {}
    for i, (label, table) in enumerate(tables.items()):
        for j, kind in enumerate(kinds):
            ax = axes[i * len(kinds) + j]
            part = table[table["tokens"] == kind].pivot_table(index="block", columns="source", values="share")
            if not len(part):
                ax.set_axis_off()
                ax.text(0, 0.5, f"{f.ellipsis(label)}: no {named(kind)}", transform=ax.transAxes, color=f.MUTED)
                continue
            below = np.zeros(len(part))
            for source, colour in COLOURS.items():
                values = part[source].to_numpy()
                handles[source] = ax.bar(part.index, values, bottom=below, width=0.86, color=colour)[0]
                below = below + values
            f.block_axis(ax, blocks, "block" if i == len(tables) - 1 else "")
            ax.set(ylim=(0, 100), xlim=(-0.5, blocks - 0.5))
            ax.grid(False)
            f.label_axes(ax, y=f"{who(f.ellipsis(label), len(tables) > 1)}{named(kind)} (%)")
    fig.legend([handles[s] for s in COLOURS], [NAMES[s] for s in COLOURS], loc="outside lower center", ncols=5)
    return fig


def _findings(table: pd.DataFrame) -> list[Finding]:
    part = table[table["tokens"] == "image"].pivot_table(index="block", columns="source", values="share")
    if not len(part):
        return []
    block = int(part["none"].to_numpy().argmax())
    last = {source: short(float(part[source].iloc[-1])) for source in SHARES}
    text = (
        f"in the last block {last['previous']} % of the image tokens keep the class they had, the "
        f"MLP alone decides {last['mlp']} %, attention alone {last['attention']} %, several agree on "
        f"{last['several']} %, and {last['none']} % carry a class that none of them had. Most composition happens in "
        f"block {block} ({short(float(part['none'].max()))} %)."
    )
    return [Finding(text, 0.45)]
