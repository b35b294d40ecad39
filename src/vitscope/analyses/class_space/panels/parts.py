"""What the class-space panels share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Tables
from vitscope.report.panel_parts import blocks_of, counts

KINDS = ("class", "distillation", "image", "register")
_NAMED = {
    "class": "class token", "distillation": "distillation token", "image": "image tokens", "register": "registers",
    "object": "class-labelled tokens", "context": "context tokens",
}  # fmt: skip
POINT_NAMES = {"resid_post": "block output", "attn_out": "attention output", "mlp_out": "MLP output"}
POINT_STYLES = {
    "resid_post": f.LineStyle(f.INK, "o"),
    "attn_out": f.LineStyle(f.ORANGE, "s"),
    "mlp_out": f.LineStyle(f.SKY, "^"),
}


def kinds_of(tables: Tables, wanted: Sequence[str] = KINDS) -> list[str]:
    """Kinds of tokens that any model has, in a fixed order."""
    there = {kind for table in tables.values() for kind in table["tokens"].unique()}
    return [kind for kind in wanted if kind in there]


def named(kind: str) -> str:
    """'class' -> 'class token', 'image' -> 'image tokens'."""
    return _NAMED.get(kind, kind)


def images_text(tables: Tables) -> str:
    """'1,000 images', or '192 and 1,000 images'."""
    return f"{counts(tables, 'n_images')} images"


def control_line(ax: Axes, rows: pd.DataFrame, column: str, name: bool = False) -> None:
    """The random-weights control as a grey dotted line, where the run has one; `name`: for `direct_labels`."""
    control = f"{column}_control"
    if control in rows.columns and rows[control].notna().any():
        label = "random weights" if name else "_"
        ax.plot(rows["block"], rows[control], color=f.MUTED, linestyle=":", linewidth=1.3, label=label, zorder=1)


def few_ticks(ax: Axes) -> None:
    """Whole numbers with room between them, for axes a third of the page wide."""
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def banded(ax: Axes, rows: pd.DataFrame, column: str, style: f.LineStyle, prefix: str = "") -> None:
    """A line over blocks with its interval, from the columns `column`, `<prefix>low` and `<prefix>high`."""
    low, high = rows[f"{prefix}low"], rows[f"{prefix}high"]
    f.line_per_block(ax, rows["block"], rows[column], style=style, label="_", low=low, high=high)


def draw_differences(ax: Axes, tables: Tables, styles: Mapping[str, f.LineStyle], title: str) -> None:
    """The column `difference` per block with its interval; filled where its corrected p is below 0.05."""
    for i, (label, table) in enumerate(tables.items()):
        rows, style = table.sort_values("block"), styles[label]
        x, clear = rows["block"] + 0.16 * (i - (len(tables) - 1) / 2), rows["p_holm"] < 0.05
        ax.vlines(x, rows["low"], rows["high"], color=style.colour, linewidth=1.4)
        ax.plot(x[clear], rows["difference"][clear], linestyle="", marker=style.marker, color=style.colour)
        (unclear,) = ax.plot(x[~clear], rows["difference"][~clear], linestyle="", marker=style.marker)
        unclear.set(markerfacecolor=f.PAPER, markeredgecolor=style.colour)
    f.null_line(ax, 0, "_")
    f.block_axis(ax, blocks_of(tables))
    f.label_axes(ax, y=title)


def records(table: pd.DataFrame, key: str) -> dict[str, dict[str, Any]]:
    """{value of the key column: its row}."""
    return {str(row[key]): {str(k): v for k, v in row.items()} for row in table.to_dict("records")}


def largest(table: pd.DataFrame, column: str) -> dict[str, Any]:
    """The row with the largest value."""
    return {str(k): v for k, v in table.sort_values(column).iloc[-1].to_dict().items()}


def interval(row: Mapping[Any, Any], prefix: str = "", unit: str = "") -> str:
    """'95 % interval 0.1 to 0.2'."""
    low, high = (float(row[f"{prefix}{end}"]) for end in ("low", "high"))
    if low != low or high != high:
        return "one image, so no interval"
    return f"95 % interval {short(low)} to {short(high)}{unit}"


def who(label: str, several: bool) -> str:
    return f"{label}: " if several else ""
