"""The picture of `kpca.reconstruction` and `kpca.norms`: both squared norms, per block and per epoch of a training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.lens_drawing import over_heads
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import blocks_of, counts, protocol, stacked, tables_of, told

PROBE = "probe_kpca_reconstruction"
WORDS = {"phi": "‖φ(q)‖²", "h": "‖h‖²", "absolute_error": "|‖φ(q)‖² − ‖h‖²|"}
LEAST = 0.001  # shares below are not drawn: a shape should show where the tokens are
DASHES = {"phi": "-", "h": "-", "absolute_error": (0, (1.5, 1.5))}


@register_panel("kpca_reconstruction", draws=(PROBE,))
def reconstruction_panel(runs: Runs) -> Panel | None:
    """Violations per block, distributions per block, curves per epoch: whatever the tables allow."""
    tables, norms, curves = (
        tables_of(runs, name) for name in ("kpca_reconstruction", "kpca_norms_distribution", PROBE)
    )
    quantiles, ratios = (tables_of(runs, name) for name in ("kpca_norms", "kpca_norms_ratio"))
    if not (tables or norms or curves):
        return None
    figures: dict[str, Figure] = {}
    if tables:
        figures["kpca_violation"] = draw_violation(tables, list(runs))
    if norms:
        figures["kpca_norms"] = draw_norms(norms, quantiles, list(runs))
    if curves:
        figures["kpca_reconstruction_epochs"] = draw_epochs(curves, list(runs))
    first = "kpca_reconstruction" if tables else "kpca_norms_distribution" if norms else PROBE
    shown = {label: run for label, run in runs.items() if first in run.list_tables()}
    n = counts(tables or norms or curves)
    behind = {"kpca_reconstruction": tables, "kpca_norms": quantiles, "kpca_norms_ratio": ratios, PROBE: curves}
    return Panel(
        key="kpca_reconstruction",
        lens="Kernel PCA",
        title="Is a head's output shorter than the feature it is said to project?",
        figures=figures,
        alt={
            "kpca_violation": "Share of tokens per block whose output is longer than their query feature",
            "kpca_norms": "Distributions of both squared norms per block on a log axis",
            "kpca_reconstruction_epochs": "Both squared norms and the absolute projection error per epoch of training",
        },
        captions={
            "kpca_violation": f"Share of tokens with ‖h‖² > ‖φ(q)‖²: one dot per head, line: mean over heads and {n} "
            "images, band: its 95 % interval. Grey, where measured: the same architecture with random weights.",
            "kpca_norms": f"All heads, tokens and {n} images; ‖φ(q)‖² spreads to the left, ‖h‖² to the right, each to "
            "its own height. Dots: medians, bars: quartiles, hairlines: minimum to maximum.",
            "kpca_reconstruction_epochs": "Mean over tokens, heads, blocks and the probe's images; test images solid "
            "and dark, training images pale.",
        },
        reading=(
            "A projection is never longer than what it projects: ‖h‖² ≤ ‖φ(q)‖² for every token. Where outputs are "
            "longer, the projection error is negative, and what falls in training is the length of the outputs."
        ),
        tables={name: stacked(t) for name, t in behind.items() if t},
        protocol=protocol(shown, first, "all tokens, all heads"),
        findings=told({label: _curve_findings(t) for label, t in curves.items()}, len(runs) > 1),
        order=42,
    )  # fmt: skip


def draw_violation(tables: Tables, labels: list[str]) -> Figure:
    styles = f.model_styles(labels)
    fig, (ax,) = f.new_figure(height=2.6)
    blocks = blocks_of(tables)
    for label, table in tables.items():
        rows = table[table["metric"] == "violation"]
        own, twin = (rows[rows["weights"] == w] for w in ("own", "random"))
        if len(twin):
            mean = twin.groupby("block")["mean"].mean()
            ax.plot(mean.index, mean, color=f.MUTED, linestyle=(0, (4, 3)), linewidth=1, label="random weights")
        mean, half = over_heads(own)
        f.dots_per_block(ax, own["block"], own["mean"], style=styles[label])
        f.line_per_block(
            ax, mean.index, mean, low=mean - half, high=mean + half, style=styles[label],
            label=label if len(labels) > 1 else "_", markers=False,
        )  # fmt: skip
    f.null_line(ax, 0.0, "a projection")
    ax.set_ylim(-0.03, 1.03)
    f.percent_axis(ax)
    f.block_axis(ax, blocks)
    f.label_axes(ax, y="tokens whose output is longer than their query feature (%)")
    f.direct_labels(ax)
    return fig


def draw_norms(tables: Tables, quantiles: Tables, labels: list[str]) -> Figure:
    """One row per model. Per block, phi spreads to the left of the middle line and h to the right."""
    blocks = blocks_of(tables)
    fig, axes = f.new_figure(height=0.5 + 2.6 * len(tables), rows=len(tables))
    for ax, (label, table) in zip(axes, tables.items()):
        own = table[table["weights"] == "own"]
        for block, norm in own[["block", "norm"]].drop_duplicates().itertuples(index=False):
            rows = own[(own["block"] == block) & (own["norm"] == norm) & (own["share"] >= LEAST)]
            side, colour = (-1, f.PURPLE) if norm == "phi" else (1, f.ORANGE)
            _shape(ax, int(block), rows, side * 0.42, colour)
        if label in quantiles:
            _quartiles(ax, quantiles[label])
        f.log_axis(ax)
        f.block_axis(ax, blocks, "block" if ax is axes[-1] else "")
        ax.set_xlim(-0.6, blocks - 0.4)
        name = f"{f.ellipsis(label)}: " if len(labels) > 1 else ""
        f.label_axes(ax, y=f"{name}squared norm")
    for words, colour, place in (("‖φ(q)‖², to the left", f.PURPLE, 0.62), ("‖h‖², to the right", f.ORANGE, 0.85)):
        axes[0].annotate(
            words, (place, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points", fontsize=8,
            color=colour, va="bottom", fontweight="bold",
        )  # fmt: skip
    return fig


def _shape(ax: Axes, block: int, rows: pd.DataFrame, reach: float, colour: str) -> None:
    """A histogram that stands on the block's vertical line, `reach` wide where it is highest."""
    if not len(rows):
        return
    edges = np.append(rows["low"].to_numpy(), rows["high"].to_numpy()[-1])
    # bins that were left out between two others are empty: their edges stand twice
    gaps = np.flatnonzero(~np.isclose(rows["low"].to_numpy()[1:], rows["high"].to_numpy()[:-1]))
    heights = block + reach * (rows["share"] / rows["share"].max()).to_numpy()
    for gap in gaps[::-1]:
        edges = np.insert(edges, gap + 1, rows["high"].to_numpy()[gap])
        heights = np.insert(heights, gap + 1, block)
    ax.stairs(heights, edges, baseline=block, orientation="horizontal", fill=True, color=colour, alpha=0.6)


def _quartiles(ax: Axes, table: pd.DataFrame) -> None:
    own = table[table["weights"] == "own"]
    for norm, shift in (("phi", -0.07), ("h", 0.07)):
        rows = own[own["norm"] == norm]
        ax.vlines(rows["block"] + shift, rows["q25"], rows["q75"], color=f.INK, linewidth=1.4)
        if "min" in rows:  # runs of earlier versions have none
            ax.vlines(rows["block"] + shift, rows["min"], rows["max"], color=f.INK, linewidth=0.5)
        ax.plot(rows["block"] + shift, rows["median"], linestyle="", marker="o", markersize=3, color=f.INK)


def draw_epochs(tables: Tables, labels: list[str]) -> Figure:
    """Both norms and the absolute error per epoch, one axes per model."""
    colours = {"phi": f.PURPLE, "h": f.ORANGE, "absolute_error": f.INK}  # as in the distributions
    fig, axes = f.new_figure(height=2.9, columns=len(tables))
    for ax, (label, table) in zip(axes, tables.items()):
        own = table[table["weights"] == "own"]
        splits = list(dict.fromkeys(own["split"]))
        for metric in WORDS:
            for split in splits:
                mean = own[(own["metric"] == metric) & (own["split"] == split)].groupby("epoch")["mean"].mean()
                style: Any = {"color": colours[metric], "linestyle": DASHES[metric]}
                last = split == splits[-1]
                ax.plot(mean.index, mean, **style, alpha=1 if last else 0.45, linewidth=1.6 if last else 1.0,
                        label=WORDS[metric] if last else "_")  # fmt: skip
        f.log_axis(ax)
        f.whole_numbers(ax)
        what = f.ellipsis(label, 60 // len(tables)) if len(labels) > 1 else "mean over tokens, heads and blocks"
        f.label_axes(ax, x="epoch", y=what)
    f.direct_labels(axes[-1], least=0.09)  # the colours are those of all
    return fig


def _curve_findings(table: pd.DataFrame) -> list[Finding]:
    own = table[(table["weights"] == "own") & (table["split"] == table["split"].iloc[-1])]
    at = own.groupby(["metric", "epoch"])["mean"].mean()
    epochs = sorted(own["epoch"].unique().tolist())
    if len(epochs) < 2:
        return []
    ends = epochs[0], epochs[-1]
    (e0, e1), (h0, h1), (p0, p1) = ([float(at[m, e]) for e in ends] for m in ("absolute_error", "h", "phi"))
    text = (
        f"in training the absolute projection error went from {short(e0)} to {short(e1)}, ‖h‖² from {short(h0)} "
        f"to {short(h1)} and ‖φ(q)‖² from {short(p0)} to {short(p1)}."
    )
    return [Finding(text, 0.5)]
