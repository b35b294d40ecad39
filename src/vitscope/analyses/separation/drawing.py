"""Figures of separation: a profile through the layers, and what becomes of it over the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscope.analyses.separation.fits import Fit
from vitscope.analyses.separation.profile import block_fits, blocks_of, epoch_fits, read_token, tokens_of, value_at
from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Tables

WORDS = {"class": "class token", "mean": "mean token"}
AXIS = "separation fuzziness D"
_CURVES = {("log_linear", "log D"): ("· ·", (1.0, 1.5)), ("exponential", "D"): ("– –", (4.0, 2.0))}  # how each is drawn


def draw_profile(
    table: pd.DataFrame,
    fits: pd.DataFrame | None = None,
    *,
    limits: tuple[float, float] | None = None,
    title: str = "",
    other: pd.DataFrame | None = None,
) -> Figure:
    """One profile: pixels, embedding, both tokens of every block, logits; the curve through the read token's blocks.

    `fits` are those over its blocks (None: fitted now). `other` (the training images beside the held-out ones) is drawn
    pale. `limits` keep the axis still in an animation.
    """
    fig, (ax,) = f.new_figure(height=3.0)
    layers = int(table["layer"].max())
    if other is not None:
        _lines(ax, other, alpha=0.35, named=False)
    _lines(ax, table)
    _ends(ax, table, layers)
    token = read_token(table)
    read, fits = blocks_of(table, token), block_fits(table) if fits is None else fits
    _curves(ax, read["layer"], read["fuzziness"], fits[fits["token"] == token], "block")
    f.log_axis(ax)
    if limits is not None:
        ax.set_ylim(*limits)
    _layer_axis(ax, layers)
    f.label_axes(ax, y=AXIS, title=title)
    f.direct_labels(ax, least=0.1)
    return fig


def draw_profiles(profiles: Tables, labels: list[str]) -> Figure:
    """Several models: the token that each head reads, one colour per model; what is no block as open markers."""
    fig, (ax,) = f.new_figure(height=3.0)
    styles = f.model_styles(labels)
    deepest = max(int(t["layer"].max()) for t in profiles.values())
    for label, table in profiles.items():
        rows, style = blocks_of(table, read_token(table)), styles[label]
        # shallower models are stretched, so that first and last blocks stand above each other
        scale = (deepest - 2) / max(len(rows) - 1, 1)
        places = 1 + (rows["layer"] - 1) * scale
        f.line_per_block(ax, places, rows["fuzziness"], style=style, label=label)
        others = {-1: ("pixels",), 0: ("embedding", "mean"), deepest: ("logits",)}
        for place, point in others.items():
            value = value_at(table, *point)
            ax.plot([place], [value], marker=style.marker, color=style.colour, markerfacecolor="none", linestyle="")
    f.log_axis(ax)
    _layer_axis(ax, deepest)
    f.label_axes(ax, y=AXIS)
    f.direct_labels(ax, least=0.1)
    return fig


def draw_over_epochs(
    table: pd.DataFrame, layer: int | None = None, *, fits: pd.DataFrame | None = None, model: str = ""
) -> Figure:
    """D of one block (the last, if none is named) per epoch: tokens by colour, held-out solid, training pale.

    The last block has its curves: `fits`, from `epoch_fits` (None: fitted now).
    """
    fig, (ax,) = f.new_figure(height=2.8)
    blocks = table[table["point"] == "block"]
    rows = blocks[blocks["layer"] == (blocks["layer"].max() if layer is None else layer)]
    held_out = held_out_of(rows)
    for token in tokens_of(rows):
        style = f.token_style("class" if token == "class" else "image")
        for split in dict.fromkeys(rows["split"]):
            mine = rows[(rows["token"] == token) & (rows["split"] == split)].sort_values("epoch")
            pale = split != held_out
            line = f.line_per_block(
                ax, mine["epoch"], mine["fuzziness"], style=style, label="_" if pale else WORDS[token]
            )
            line.set(alpha=0.4 if pale else 1, linewidth=1.1 if pale else 1.6)
    if layer is None:
        token, fits = read_token(rows), epoch_fits(table) if fits is None else fits
        mine = rows[(rows["token"] == token) & (rows["split"] == held_out) & (rows["epoch"] > 0)]
        curves = fits[(fits["token"] == token) & (fits["split"] == held_out)]
        _curves(ax, mine["epoch"], mine["fuzziness"], curves, "epoch")
    f.log_axis(ax)
    f.whole_numbers(ax)
    name = "last block" if layer is None else f"block {layer}"
    f.label_axes(ax, x="epoch", y=f"{model and f.ellipsis(model) + ': '}{AXIS}, {name}")
    f.direct_labels(ax, least=0.1)
    return fig


def draw_accuracy(training: pd.DataFrame) -> Figure:
    """Accuracy per epoch of training and held-out images."""
    fig, (ax,) = f.new_figure(height=2.6)
    for column, words, style in (
        ("test_accuracy", "held-out images", f.LineStyle(f.BLUE)),
        ("train_accuracy", "training images", f.LineStyle(f.BLUE, "s", "--")),
    ):
        rows = training[["epoch", column]].dropna()
        f.line_per_block(ax, rows["epoch"], rows[column], style=style, label=words, markers=len(rows) <= 40)
    f.percent_axis(ax)
    f.whole_numbers(ax)
    f.label_axes(ax, x="epoch", y="images classified correctly (%)")
    f.direct_labels(ax)
    return fig


def describe(fit: Fit, unit: str) -> str:
    """A curve in words for a figure."""
    if fit.curve == "log_linear":
        return f"×{short(fit.rho)} per {unit}, r = {short(fit.r)}, R² = {short(fit.r2)} (of log D)"
    sign = "−" if fit.c < 0 else "+"
    return f"{short(fit.a)} exp(−{short(fit.b)} {unit}) {sign} {short(abs(fit.c))}, R² = {short(fit.r2)}"


def held_out_of(table: pd.DataFrame) -> str:
    """The split that the figures are about: 'test' where it was probed."""
    splits = list(dict.fromkeys(table["split"]))
    return "test" if "test" in splits else splits[0]


def common_limits(table: pd.DataFrame) -> tuple[float, float]:
    """An axis for all epochs of a training."""
    values = table["fuzziness"][table["fuzziness"] > 0]
    return float(values.min()) / 1.5, float(values.max()) * 1.6


def _curves(ax: Axes, x: pd.Series, d: pd.Series, fits: pd.DataFrame, unit: str) -> None:
    """A constant rate dotted, the published curve dashed, both in words at the top right."""
    known = {(fit["curve"], fit["errors"]): fit for fit in fits.to_dict("records")}
    if not known:
        return
    places = x[d.notna() & (d > 0)].to_numpy(float)
    line = np.linspace(places.min(), places.max(), 200)
    for row, (kind, (mark, dash)) in enumerate(_CURVES.items()):
        curve = Fit(**{field.name: known[kind][field.name] for field in fields(Fit)})
        ax.plot(line, curve(line), color=f.INK, linestyle=(0, dash), linewidth=1.1, zorder=4)
        ax.annotate(
            f"{describe(curve, unit)}  {mark}", (1, 1), xycoords="axes fraction", xytext=(0, 5 + 11 * row),
            textcoords="offset points", ha="right", va="bottom", fontsize=8, color=f.INK,
        )  # fmt: skip


def _lines(ax: Axes, table: pd.DataFrame, *, alpha: float = 1.0, named: bool = True) -> None:
    logits = table[table["point"] == "logits"]
    for token in tokens_of(table):
        style = f.token_style("class" if token == "class" else "image")
        rows = table[table["token"] == token].sort_values("layer").dropna(subset=["fuzziness"])
        line = f.line_per_block(ax, rows["layer"], rows["fuzziness"], style=style, label=WORDS[token] if named else "_")
        line.set_alpha(alpha)
    read = blocks_of(table, read_token(table))
    if len(logits) and len(read):  # the head reads this token: the last step of the same way
        x = [float(read["layer"].iloc[-1]), float(logits["layer"].iloc[0])]
        y = [float(read["fuzziness"].iloc[-1]), float(logits["fuzziness"].iloc[0])]
        ax.plot(x, y, color=f.MUTED, linestyle=":", linewidth=1.1, alpha=alpha)


def _ends(ax: Axes, table: pd.DataFrame, layers: int) -> None:
    """First and last point stand out, with their numbers."""
    for x, value in ((-1, value_at(table, "pixels")), (layers, value_at(table, "logits"))):
        if value == value:
            ax.plot([x], [value], marker="D", markersize=8, color=f.VERMILLION, markeredgecolor=f.INK, zorder=5)
            away = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
            ax.annotate(short(value), (x, value), fontsize=8, color=f.INK, zorder=6, **away)  # type: ignore[arg-type]


def _layer_axis(ax: Axes, layers: int) -> None:
    """pixels, embedding, 1 .. L, logits (the last layer)."""
    step = max(1, -(-(layers - 1) // 12))
    ticks: Sequence[int] = [-1, 0, *range(1, layers, step), layers]
    names = ["pixels", "embed", *(str(i) for i in range(1, layers, step)), "logits"]
    ax.set_xlim(-1.5, layers + 0.5)
    ax.set_xticks(ticks, names)
    ax.set_xlabel("block")
