"""The house style of figures, and the few shapes that most panels need.

A panel function is called inside `house_style()`, so it just draws:

    from vitscope.report import figures as f

    fig, (ax,) = f.new_figure(height=2.6)
    for label, style in f.model_styles(runs).items():          # one colour per model, the same on the whole page
        f.line_per_block(ax, blocks, mean, low=low, high=high, style=style, label=label)
    f.null_line(ax, 0.1, "chance")
    f.block_axis(ax, n_blocks)
    f.label_axes(ax, x="block", y="accuracy (%)")
    f.direct_labels(ax)

Figures are made with matplotlib's object interface: no pyplot, no global state. Text and lines are drawn in the named
inks below; in the page these become CSS variables, so that one figure serves the light and the dark page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import ArrayLike

COLUMN, PAGE = 3.4, 7.0  # inches: one column and both columns of a two-column paper

# Okabe & Ito (2008), a palette that colour-blind readers can tell apart.
ORANGE, SKY, GREEN, YELLOW = "#e69f00", "#56b4e9", "#009e73", "#f0e442"
BLUE, VERMILLION, PURPLE, BLACK = "#0072b2", "#d55e00", "#cc79a7", "#000000"

# Inks. Exact values matter: the page replaces them by CSS variables (see svg.py).
INK = "#1b1c20"  # text, axes
MUTED = "#6a6e76"  # secondary text, reference lines
RULE = "#dfe1e6"  # grid
NULL = "#c3c7cf"  # null band
PAPER = "#ffffff"  # behind a label that crosses a line

# Disjoint from the model colours, so that a hue never means two things on one page.
TOKEN_COLOURS = {"class": ORANGE, "image": SKY, "register": PURPLE}
TOKEN_MARKERS = {"class": "s", "image": "o", "register": "^"}  # tells them apart in grey
_MODEL_COLOURS = (BLUE, VERMILLION, GREEN, INK)
_MODEL_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_MODEL_DASHES = ("-", "--", ":", "-.")

SEQUENTIAL = "cividis"  # colour map for amounts: colour-blind safe, monotone in grey
DIVERGING = "PuOr"  # for signed values, with the middle at zero

_STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # ships with matplotlib; the page substitutes the reader's own font
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "patch.linewidth": 0,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "image.cmap": SEQUENTIAL,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a class called "$x^" is a name, not a formula; log axes: use log_axis()
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "axes.prop_cycle": cycler(color=[BLUE, VERMILLION, GREEN, INK]),
}


@contextmanager
def house_style() -> Iterator[None]:
    """The house style while the block runs; the caller's own matplotlib settings come back after it."""
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc must not change what a report looks like
        for name, value in _STYLE.items():
            mpl.rcParams[name] = value  # type: ignore[index]
        yield


@dataclass(frozen=True)
class LineStyle:
    """How one model (or one kind of token) is drawn, everywhere."""

    colour: str
    marker: str = "o"
    dash: str = "-"


def model_styles(labels: Iterable[str]) -> dict[str, LineStyle]:
    """One style per model, from its place in the list. Pass *all* labels of the page, also of models you do not draw.

    Four colours, then the same four dashed; the marker differs from neighbour to neighbour, for readers without colour.
    """
    return {
        label: LineStyle(
            _MODEL_COLOURS[i % len(_MODEL_COLOURS)],
            _MODEL_MARKERS[i % len(_MODEL_MARKERS)],
            _MODEL_DASHES[(i // len(_MODEL_COLOURS)) % len(_MODEL_DASHES)],
        )
        for i, label in enumerate(labels)
    }


def token_style(kind: str) -> LineStyle:
    """'class', 'image' or 'register'."""
    return LineStyle(TOKEN_COLOURS[kind], TOKEN_MARKERS[kind])


def new_figure(
    width: float = PAGE,
    height: float = 2.6,
    rows: int = 1,
    columns: int = 1,
    *,
    share_x: bool = True,
    share_y: bool = True,
) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row. Axes share x, and in one row y, unless they show different things."""
    fig = Figure(figsize=(width, height))
    axes = fig.subplots(rows, columns, squeeze=False, sharex=share_x, sharey="row" if share_y else False)
    return fig, list(axes.flat)


def small_multiples(
    n: int, columns: int = 4, *, width: float = PAGE, row_height: float = 1.6
) -> tuple[Figure, list[Axes]]:
    """n small axes in a grid, all with the same x and y; the empty places of the last row stay empty."""
    columns = max(1, min(columns, n))
    rows = max(1, -(-n // columns))
    fig = Figure(figsize=(width, row_height * rows + 0.3))
    axes = list(fig.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for spare in axes[n:]:
        spare.remove()
    for above in axes[max(0, n - columns) : n]:
        above.xaxis.set_tick_params(labelbottom=True)  # also where the row below is cut short
    return fig, axes[:n]


def line_per_block(
    ax: Axes,
    x: ArrayLike,
    y: ArrayLike,
    *,
    style: LineStyle,
    label: str = "",
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    markers: bool | None = None,
) -> Line2D:
    """A line over blocks (or epochs), with its interval as a band where `low` and `high` are given.

    Say in the caption what the interval is of. Markers are drawn unless the points are many.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if low is not None and high is not None:
        ax.fill_between(x, np.asarray(low, float), np.asarray(high, float), color=style.colour, alpha=0.18, linewidth=0)
    marker = style.marker if (len(x) <= 40 if markers is None else markers) else ""
    (line,) = ax.plot(x, y, color=style.colour, linestyle=style.dash, marker=marker, label=label, clip_on=False)
    return line


def dots_per_block(ax: Axes, x: ArrayLike, y: ArrayLike, *, style: LineStyle, label: str = "") -> None:
    """One dot per observation (a head), several at the same block."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    ax.plot(x, y, linestyle="", marker=style.marker, color=style.colour, alpha=0.6, markersize=3.2, label=label)


def null_line(ax: Axes, y: float, text: str = "chance") -> None:
    """Chance level, dashed. `direct_labels` (or a legend) writes its name."""
    ax.axhline(y, color=MUTED, linestyle=(0, (4, 3)), linewidth=1, zorder=1, label=text)


def null_band(ax: Axes, low: ArrayLike, high: ArrayLike, text: str = "null", x: ArrayLike | None = None) -> None:
    """The range of a null: numbers for a horizontal band, arrays over `x` for one that varies."""
    low, high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    if x is None:
        ax.axhspan(float(low), float(high), color=NULL, alpha=0.5, linewidth=0, zorder=0)
        ax.axhline(float(low + high) / 2, color=MUTED, alpha=0, label=text)  # carries the name only
    else:
        ax.fill_between(np.asarray(x, float), low, high, color=NULL, alpha=0.5, linewidth=0, zorder=0)
        ax.plot(np.asarray(x, float), (low + high) / 2, color=MUTED, alpha=0, label=text)


def heat_map(
    fig: Figure,
    ax: Axes,
    values: np.ndarray,
    *,
    low: float | None = None,
    high: float | None = None,
    label: str = "",
    cmap: str = SEQUENTIAL,
    colour_bar: bool = True,
) -> QuadMesh:
    """Rows x columns of cells (heads x blocks), row 0 at the top, as vector squares. NaN cells stay empty."""
    rows, columns = values.shape
    edges = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
    mesh = ax.pcolormesh(
        *edges, np.ma.masked_invalid(values), vmin=low, vmax=high, cmap=cmap, edgecolors="face", lw=0.2
    )
    ax.set_ylim(rows - 0.5, -0.5)
    ax.grid(False)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    if colour_bar:
        bar = fig.colorbar(mesh, ax=ax, pad=0.02, aspect=25)
        bar.outline.set_visible(False)
        bar.solids.set_edgecolor("face")  # type: ignore[union-attr]
        bar.set_label(label, fontsize=8, color=MUTED, rotation_mode="anchor", ha="center", va="top")
    return mesh


def block_axis(ax: Axes, blocks: int, name: str = "block") -> None:
    """Whole-numbered x-axis 0 .. blocks-1."""
    ax.set_xlim(-0.3, max(blocks - 1, 0) + 0.3)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True))
    ax.set_xlabel(name)


def whole_numbers(ax: Axes, axis: str = "x") -> None:
    """Ticks at whole numbers only: epochs, heads, counts."""
    getattr(ax, f"{axis}axis").set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))


def label_axes(ax: Axes, *, x: str = "", y: str = "", title: str = "") -> None:
    """Axis labels with units. The y label lies flat above the axis, where it can be read without tilting one's head."""
    if x:
        ax.set_xlabel(x)
    if title:
        ax.set_title(title, pad=18 if y else 6)
    if y:
        ax.annotate(
            y, (0, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points",
            ha="left", va="bottom", color=MUTED, fontsize=8,
        )  # fmt: skip


def percent_axis(ax: Axes, axis: str = "y") -> None:
    """For values in [0, 1]: ticks in percent."""
    getattr(ax, f"{axis}axis").set_major_formatter(PercentFormatter(1.0, decimals=None))


def log_axis(ax: Axes, axis: str = "y", steps: tuple[int, ...] = (1,)) -> None:
    """Logarithmic, with ticks as plain numbers (0.01, 1, 1e-6) at these steps of each decade: (1, 2, 5) within one."""
    getattr(ax, f"set_{axis}scale")("log")
    target = getattr(ax, f"{axis}axis")
    if len(steps) > 1:
        target.set_major_locator(LogLocator(subs=steps))
    target.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    target.set_minor_formatter(NullFormatter())


def ellipsis(text: str, longest: int = 24) -> str:
    """'vit_tiny_patch16_224.augreg_in21k' -> 'vit_tiny_pat…reg_in21k': both ends tell models apart."""
    if len(text) <= longest:
        return text
    keep = longest - 1
    return f"{text[: keep - keep // 2]}…{text[len(text) - keep // 2 :]}"


def direct_labels(ax: Axes, *, least: float = 0.075) -> None:
    """Write each line's label at its right end, moved apart where they would overlap (`least`: in axes heights).

    Call it last, when the limits stand. Lines that end well before the right edge are named where they end. Lines
    without a label are left alone.
    """
    ax.get_xlim(), ax.get_ylim()  # matplotlib scales lazily: until asked, the limits are still 0 .. 1
    ends: dict[float, list[tuple[float, float, Line2D]]] = {}  # lines that end at the same place
    for line in ax.get_lines():
        if not str(line.get_label()) or str(line.get_label()).startswith("_"):
            continue
        # to axes coordinates with the line's own transform: a null line's x is already in them
        xy = np.column_stack([np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)])
        xy = ax.transAxes.inverted().transform(line.get_transform().transform(xy[np.isfinite(xy).all(axis=1)]))
        if not len(xy):
            continue
        x, y = xy[np.argmax(xy[:, 0])]
        place = float(x) if x < 0.85 else 1.0
        ends.setdefault(round(place, 2), []).append((float(y), place, line))
    for lines in ends.values():
        lines.sort(key=lambda end: end[0])
        for height, (_, x, line) in zip(_spread([y for y, _, _ in lines], least), lines):
            _name(ax, line, x, height)


def _name(ax: Axes, line: Line2D, x: float, y: float) -> None:
    above = 0 if x == 1.0 else 6  # inside the axes, something else may go on from the line's end
    ax.annotate(
        ellipsis(str(line.get_label())), (x, y), xytext=(6, above), xycoords="axes fraction",
        textcoords="offset points", color=line.get_color(), fontsize=8, va="center", ha="left", annotation_clip=False,
    )  # fmt: skip


def _spread(heights: list[float], least: float) -> list[float]:
    """Move sorted positions apart to at least `least`, as little as possible: merge touching labels into groups."""
    groups: list[tuple[float, int]] = []  # centre, members
    for height in heights:
        groups.append((height, 1))
        while len(groups) > 1:
            (c1, n1), (c2, n2) = groups[-2:]
            if c2 - c1 >= least * (n1 + n2) / 2:
                break
            groups[-2:] = [((c1 * n1 + c2 * n2) / (n1 + n2), n1 + n2)]
    return [centre + least * (i - (n - 1) / 2) for centre, n in groups for i in range(n)]
