"""The picture of `swapped.lens`: in which block, and how far behind it, a changed word is noticed."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, register_panel
from vitscope.report.panel_parts import protocol, stacked, tables_of, told
from vitscope.robustness.text.names import GROUPS
from vitscope.robustness.text.panel import NAMES

SHOWN = {
    "before": (f.LineStyle(f.MUTED, "x", ":"), "before it"),
    "0": (f.LineStyle(f.VERMILLION, "o"), "the word"),
    "1": (f.LineStyle(f.ORANGE, "s"), "1 behind"),
    "2-4": (f.LineStyle(f.GREEN, "^"), "2 to 4"),
    "5-16": (f.LineStyle(f.SKY, "D"), "5 to 16"),
    "further": (f.LineStyle(f.BLUE, "v"), "17 on"),
}


@register_panel("swapped_lens")
def swapped_lens_panel(runs: Runs) -> Panel | None:
    """Table `swapped_lens`: one figure per model and condition."""
    tables = tables_of(runs, "swapped_lens")
    if not tables:
        return None
    figures, alt, captions = {}, {}, {}
    for number, (label, table) in enumerate(tables.items()):
        for condition in table["condition"].unique():
            part = table[table["condition"] == condition]
            stem = f"swapped_lens_{condition}" + (f"_{number}" if len(tables) > 1 else "")
            figures[stem] = draw_lens(part)
            alt[stem] = "Cosine of clean and changed residuals, and change of the next token's log p, per block"
            captions[stem] = _caption(label if len(runs) > 1 else "", condition, part)
    return Panel(
        key="swapped_lens",
        lens="Changed words",
        title="In which block, and how far behind it, is a changed word noticed?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "Each line is tokens at one distance behind the last changed word; those before it cannot know, and lie at "
            "1 and at 0. A cosine that falls from block to block says where the damage is carried on to other tokens."
        ),
        tables={"swapped_lens": stacked(tables)},
        protocol=protocol(runs, "swapped_lens", "tokens that are the same in both texts; own final norm and head"),
        findings=told({label: _findings(table) for label, table in tables.items()}, len(runs) > 1),
        order=26,
    )


def draw_lens(table: pd.DataFrame) -> Figure:
    """Cosine on the left; the change of log p beside it, of the word itself and, on a scale of its own, behind it."""
    fig, axes = f.new_figure(height=2.9, columns=3, share_y=False)
    draw_lines(axes[0], table, "cosine", GROUPS)
    draw_lines(axes[1], table, "change", ("before", "0"))
    draw_lines(axes[2], table, "change", ("before", *GROUPS[2:]))
    titles = ("cosine to the clean residual", "change of log p, at the word", "change of log p, behind it")
    for ax, title in zip(axes, titles):
        f.block_axis(ax, int(table["block"].max()) + 1)
        f.label_axes(ax, x="block", y=title)
    handles, names = axes[0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside lower center", ncols=len(names), title="tokens behind the changed word")
    return fig


def draw_lines(ax: Axes, table: pd.DataFrame, value: str, groups: Sequence[str]) -> None:
    """A line over the blocks for each distance."""
    for group in groups:
        rows = table[(table["distance"] == group) & table[value].notna()].sort_values("block")
        if len(rows):
            low, high = rows[f"{value}_low"], rows[f"{value}_high"]
            style, name = SHOWN[group]
            f.line_per_block(ax, rows["block"], rows[value], low=low, high=high, style=style, label=name)


def _caption(label: str, condition: str, table: pd.DataFrame) -> str:
    last = table[table["block"] == table["block"].max()]
    n = f"{int(last['n_cosine'].sum()):,} tokens of {int(last['n_documents'].max()):,} documents"
    whose = f"{label}, " if label else ""
    return (
        f"{whose}{NAMES.get(condition, condition)}. Left: residual stream after the block, clean beside changed text. "
        "Right: log p (nats) of the next token read from it, less that of the clean text, where the next token is the "
        f"same. {n}; bands: 95 % intervals over documents."
    )


def _findings(table: pd.DataFrame) -> list[Finding]:
    """The block after which the token right behind a changed word is least like the clean one."""
    found = []
    for condition, part in table[table["distance"] == "1"].groupby("condition"):
        row = min(part.to_dict("records"), key=lambda row: row["cosine"])
        text = (
            f"{NAMES.get(str(condition), condition)}: the token right behind one is "
            f"least like the clean one after block {int(row['block'])} (cosine {short(float(row['cosine']))}"
        )
        if row["cosine_low"] == row["cosine_low"]:
            text += f", 95 % interval {short(float(row['cosine_low']))} to {short(float(row['cosine_high']))}"
        found.append(Finding(text + ").", 0.5))
    return found
