"""What lenses of words and of patches draw alike: what the branches of a block add, and from when on a class is known.

Tables have a row per block, point and kind of tokens (`tokens`); a value has its interval beside it, VALUE_low and
VALUE_high.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.panel import Tables
from vitscope.report.panel_parts import name_models
from vitscope.statistics.intervals import Z95

BRANCHES = {"attn_out": ("attention", f.LineStyle(f.ORANGE, "s")), "mlp_out": ("MLP", f.LineStyle(f.SKY, "^"))}


def over_blocks(table: pd.DataFrame, point: str, tokens: str = "all") -> pd.DataFrame:
    """All tokens, or those of a kind, at one point, by block."""
    return table[(table["point"] == point) & (table["tokens"] == tokens)].sort_values("block")


def from_embedding(table: pd.DataFrame, tokens: str = "all") -> pd.DataFrame:
    """The embedding, as block -1, and then the blocks."""
    before = over_blocks(table, "resid_pre", tokens).assign(block=-1)
    return pd.concat([before, over_blocks(table, "resid_post", tokens)])


def over_heads(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Mean over heads per block, and half of its 95 % interval over images.

    The deviation of a mean is at most the mean of the deviations (equal if the heads go up and down together), so the
    interval is on the safe side without the heads' covariances.
    """
    groups = rows.assign(error=rows["std"] / np.sqrt(rows["n"])).groupby("block")
    return groups["mean"].mean(), Z95 * groups["error"].mean()


def draw_heads(tables: Tables, value: str, name: str, height: float = 2.6) -> Figure:
    """Heads x blocks, a column per table, one symmetric scale."""
    fig, axes = f.new_figure(height=height, columns=len(tables), share_x=False, share_y=False)
    largest = max(float(table[value].abs().max()) for table in tables.values()) or 1.0
    for ax, (label, table) in zip(axes, tables.items()):
        grid = table.pivot(index="head", columns="block", values=value).to_numpy()
        f.heat_map(
            fig, ax, grid, low=-largest, high=largest, cmap=f.DIVERGING, label=name,
            colour_bar=ax is axes[len(tables) - 1],
        )  # fmt: skip
        ax.set_xlabel("block")
        f.label_axes(ax, y=f"{f.ellipsis(label)}: head" if len(tables) > 1 else "head")
    return fig


def rates_card(rows: Tables, question: str, **words: Any) -> Card | None:
    """{model: `rate` per block, in per cent}: the last one with its interval, and the way there."""
    rows = {label: table for label, table in rows.items() if len(table)}
    if not rows:
        return None
    last = {label: table.iloc[-1] for label, table in rows.items()}
    values = {label: Value(row["rate"], row["rate_low"], row["rate_high"]) for label, row in last.items()}
    return Card(question, values, lines={label: table["rate"].tolist() for label, table in rows.items()}, **words)


def banded(ax: Axes, rows: pd.DataFrame, value: str, style: f.LineStyle, label: str = "_") -> None:
    low, high = rows[f"{value}_low"], rows[f"{value}_high"]
    f.line_per_block(ax, rows["block"], rows[value], style=style, label=label, low=low, high=high)


def blocks_with_embedding(ax: Axes, blocks: int) -> None:
    f.block_axis(ax, blocks)
    ax.set_xlim(-1.3, blocks - 0.7)
    step = max(1, -(-blocks // 10))
    ticks = [-1, *range(0, blocks, step)]
    ax.set_xticks(ticks, ["emb.", *map(str, ticks[1:])])


def draw_branches(tables: Tables) -> Figure:
    """A column per model: what attention and MLP of each block add."""
    fig, axes = f.new_figure(height=2.9, columns=len(tables))
    for ax, (label, table) in zip(axes, tables.items()):
        for point, (_, style) in BRANCHES.items():
            banded(ax, over_blocks(table, point), "change", style)
        f.null_line(ax, 0, "_")
        who = f"{f.ellipsis(label)}: " if len(tables) > 1 else ""
        f.block_axis(ax, int(table["block"].max()) + 1)
        f.label_axes(ax, y=f"{who}log-probability added (nats)")
    handles = [Line2D([], [], color=style.colour, marker=style.marker) for _, style in BRANCHES.values()]
    fig.legend(handles, [name for name, _ in BRANCHES.values()], loc="outside lower center", ncols=2)
    return fig


def draw_known(tables: Tables, labels: list[str], items: str) -> Figure:
    """Bars over embedding, blocks and 'never'; models side by side."""
    styles = f.model_styles(labels)
    fig, (ax,) = f.new_figure(height=2.7)
    blocks = max(len(table[table["tokens"] == "all"]) for table in tables.values()) - 2
    width = 0.8 / len(tables)
    for i, (label, table) in enumerate(tables.items()):
        rows = table[table["tokens"] == "all"]
        place = {"embedding": -1, "never": blocks}
        x = np.array([place.get(name, name) for name in rows["known_from"]], dtype=float) + width * (
            i - (len(tables) - 1) / 2
        )
        ax.bar(x, rows["rate"], width=0.92 * width, color=styles[label].colour)
        some = (rows["rate"] > 0).to_numpy()  # of none, a bar without a block would say little and show much
        ax.vlines(x[some], rows["rate_low"][some], rows["rate_high"][some], color=f.INK, linewidth=1)
    blocks_with_embedding(ax, blocks)
    ax.set_xticks([*ax.get_xticks(), blocks], [*(t.get_text() for t in ax.get_xticklabels()), "never"])
    ax.set_xlim(-1.6, blocks + 0.6)
    ax.set_ylim(0, 100)
    f.label_axes(ax, x="known from this block on", y=f"{items} (%)")
    name_models(fig, labels, tables)
    return fig
