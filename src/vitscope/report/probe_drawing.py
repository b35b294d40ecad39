"""How the general panel of probes draws a quantity: small multiples with one scale, against the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscope.report import figures as f
from vitscope.report.probe_curves import Quantity

MOST_GROUPS = 8  # small axes of a figure
MOST_BLOCKS, MOST_AXES = 4, 12  # where runs are compared: blocks of a group, and axes in all
MOST_LINES = 12  # of one axes
DECADES = 100.0  # largest over smallest from which on an axis is logarithmic
DUST = 1e-9  # of the largest: below it a value is a zero with rounding errors, and has no place on such an axis


def draw(shown: Sequence[Quantity], labels: Sequence[str]) -> Figure:
    """One figure: several quantities with an axes each, or one quantity in small multiples with one scale."""
    if len(shown) > 1 or not shown[0].line:
        return _draw_runs(shown, labels)
    alone = len(shown[0].labels) == 1 and (shown[0].rows["runs"] == 1).all()
    return _draw_depth(shown[0]) if alone else _draw_blocks(shown[0], labels)


def _draw_runs(shown: Sequence[Quantity], labels: Sequence[str]) -> Figure:
    """Without blocks: one axes per quantity or group, one line per run."""
    parts = [(q, group) for q in shown for group in q.groups][:MOST_GROUPS]
    fig, axes = _grid(len(parts), shared=len(shown) == 1)
    for ax, (quantity, group) in zip(axes, parts):
        rows = quantity.rows[quantity.rows["group"] == group]
        _one_line_per_run(ax, rows, labels)
        _finish(ax, quantity.rows["mean"])
        if len(shown) == 1:
            _title(ax, group, len(parts))
        if len(shown) > 1 or ax is axes[0]:
            f.label_axes(ax, y=name_of(quantity))
    _name_runs(fig, labels, shown[0].labels)
    return fig


def _draw_depth(quantity: Quantity) -> Figure:
    """One run: an axes per group, a line per block, from the first (dark) to the last (light)."""
    groups = quantity.groups[:MOST_GROUPS]
    lines = _spread(quantity.lines, MOST_LINES)
    colours = _shades(len(lines))
    rows = quantity.rows[_held_out(quantity.rows)]
    fig, axes = _grid(len(groups))
    handles: dict[str, Any] = {}
    for ax, group in zip(axes, groups):
        for line, colour in zip(lines, colours):
            mine = rows[(rows["group"] == group) & (rows["line"] == line)].sort_values("epoch")
            if len(mine):
                name = f"{line:g}"
                handles[name] = _line(ax, mine, f.LineStyle(colour))
        _finish(ax, rows["mean"])
        _title(ax, group, len(groups))
    f.label_axes(axes[0], y=name_of(quantity))
    _legend(fig, list(handles.values()), list(handles), title=quantity.line, widest=0.55)
    return fig


def _draw_blocks(quantity: Quantity, labels: Sequence[str]) -> Figure:
    """Several runs: some blocks of a group beside each other, a line per run; groups without blocks share a row."""
    places = compared_places(quantity)
    columns = sum(group == places[0][0] for group, _ in places)
    rows = -(-len(places) // columns)
    fig, axes = f.new_figure(height=0.6 + (1.5 if rows > 1 else 1.8) * rows, rows=rows, columns=columns)
    for spare in axes[len(places) :]:
        spare.remove()
    fig.suptitle(name_of(quantity), x=0.01, ha="left", fontsize=8, color=f.MUTED)
    parts = [quantity.rows[(quantity.rows["group"] == g) & (quantity.rows["line"] == line)] for g, line in places]
    for number, (ax, (group, line)) in enumerate(zip(axes, places)):
        _one_line_per_run(ax, parts[number], labels, training=False)
        start = number - number % columns
        ax.xaxis.set_tick_params(labelbottom=number >= len(places) - columns)
        _finish(ax, pd.concat(parts[start : start + columns])["mean"])
        if number == 0 or places[number - 1][0] != group:
            ax.set_title(f.ellipsis(group, 70), pad=18, fontsize=8)
        ax.annotate(
            f"{quantity.line} {line:g}", (1, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points",
            ha="right", va="bottom", color=f.MUTED, fontsize=8,
        )  # fmt: skip
    _name_runs(fig, labels, quantity.labels)
    return fig


def compared_places(quantity: Quantity) -> list[tuple[str, float]]:
    """(group, block) of each axes: whole groups in their order, those with the most blocks first."""
    lines = {
        group: _spread(sorted(set(quantity.rows[quantity.rows["group"] == group]["line"])), MOST_BLOCKS)
        for group in quantity.groups
    }
    places: list[tuple[str, float]] = []
    for group in sorted(lines, key=lambda group: -len(lines[group])):
        if len(places) + len(lines[group]) <= MOST_AXES:
            places += [(group, line) for line in lines[group]]
    return places


def _one_line_per_run(ax: Axes, rows: pd.DataFrame, labels: Sequence[str], *, training: bool = True) -> None:
    """Held-out images solid with their interval, training images dashed."""
    held_out = _held_out(rows)
    for label, style in f.model_styles(labels).items():
        for solid in (False, True) if training else (True,):
            mine = rows[(rows["run"] == label) & (held_out == solid)].sort_values("epoch")
            if not len(mine):
                continue
            if solid:
                _line(ax, mine, style, band=True)
            else:
                _line(ax, mine, f.LineStyle(style.colour, "", "--")).set(linewidth=1.1, alpha=0.75)


def _line(ax: Axes, rows: pd.DataFrame, style: f.LineStyle, *, band: bool = False) -> Line2D:
    low, high = (rows["low"], rows["high"]) if band and rows["low"].notna().any() else (None, None)
    line = f.line_per_block(ax, rows["epoch"], rows["mean"], style=style, low=low, high=high, markers=len(rows) <= 12)
    line.set_markersize(3)
    return line


def _held_out(rows: pd.DataFrame) -> pd.Series:
    """Rows of held-out images; all where nothing else was probed."""
    splits = set(rows["split"])
    return rows["split"] != "train" if splits - {"train"} else rows["split"] == "train"


def _columns(n: int) -> int:
    """Of n small axes, so that the rows are about equally long."""
    return n if n <= 4 else -(-n // -(-n // 4))


def _grid(n: int, *, shared: bool = True) -> tuple[Figure, list[Axes]]:
    columns = _columns(n)
    width = f.PAGE if columns > 2 else f.PAGE * (0.55, 0.8)[columns - 1]
    rows = -(-n // columns)
    fig, axes = f.new_figure(width, 0.75 + 1.55 * rows, rows=rows, columns=columns, share_y=False)
    for spare in axes[n:]:
        spare.remove()
    for ax in axes[1:n] if shared else []:
        ax.sharey(axes[0])
        ax.tick_params(labelleft=axes.index(ax) % columns == 0)
    for ax in axes[max(0, n - columns) : n]:
        ax.xaxis.set_tick_params(labelbottom=True)
    return fig, axes[:n]


def _finish(ax: Axes, values: pd.Series) -> None:
    """Scale and ticks. `values`: of all axes that share this scale."""
    if values.min() > DUST * values.abs().max() and values.max() / values.min() > DECADES:
        f.log_axis(ax)
    f.whole_numbers(ax)
    if ax.xaxis.get_tick_params()["labelbottom"]:
        ax.set_xlabel("epoch")


def _title(ax: Axes, text: str, axes: int) -> None:
    """Above the name of the quantity, short enough for one of so many axes."""
    if text:
        ax.set_title(f.ellipsis(text, 76 // _columns(axes)), pad=18, fontsize=8)


def _shades(n: int) -> list[str]:
    """From dark to light, the ends left out: they are lost on a dark or on a white page."""
    scale = mpl.colormaps[f.SEQUENTIAL]
    return [to_hex(scale(0.25 + 0.57 * i / max(n - 1, 1))) for i in range(n)]


def _spread(values: Sequence[float], most: int) -> list[float]:
    """At most so many of them, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _name_runs(fig: Figure, labels: Sequence[str], drawn: Sequence[str]) -> None:
    styles = {label: style for label, style in f.model_styles(labels).items() if label in drawn}
    if len(labels) < 2:
        return
    looks: list[dict[str, Any]] = [
        {"color": style.colour, "marker": style.marker, "linestyle": style.dash} for style in styles.values()
    ]
    handles = [Line2D([], [], **look) for look in looks]
    _legend(fig, handles, [f.ellipsis(label, 34) for label in styles], widest=2.3)


def _legend(fig: Figure, handles: Sequence[Any], names: Sequence[str], *, widest: float, title: str = "") -> None:
    """Under the figure, where there is room for names; `widest`: inches of one."""
    n = len(names)
    rows = -(-n // int(fig.get_figwidth() / widest))
    columns = -(-n // rows)
    order = [i for column in range(columns) for i in range(column, n, columns)]  # matplotlib fills columns first
    legend = fig.legend(
        [handles[i] for i in order], [names[i] for i in order], loc="outside lower center", ncols=columns,
        title=title or None, title_fontsize=8, handlelength=1.4, columnspacing=1.2,
    )  # fmt: skip
    legend.get_title().set_color(f.MUTED)


def name_of(quantity: Quantity) -> str:
    """'entropy (nats)'"""
    return plain(quantity.name) + (f" ({quantity.unit})" if quantity.unit else "")


def plain(name: str) -> str:
    """'rate_per_image' -> 'rate per image'"""
    return name.replace("_", " ")
