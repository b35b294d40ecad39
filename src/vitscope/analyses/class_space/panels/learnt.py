"""Learnt lenses beside the plain projection: a figure and a sentence of the identifiability panel."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscope.analyses.class_space.panels.parts import banded, interval, who
from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Tables
from vitscope.report.panel_parts import blocks_of

FIGURE = "class_space_learnt"
LENSES = ("linear", "refined")
ALT = "Identifiability of the true class in whole images per block, by the plain projection and by learnt lenses"
_NAMES = {"resid_post": "plain projection", "linear": "linear lens", "refined": "refined heads"}
_STYLES = {
    "resid_post": f.LineStyle(f.INK, "o"),
    "linear": f.LineStyle(f.ORANGE, "s"),
    "refined": f.LineStyle(f.SKY, "^"),
}


def with_lenses(tables: Tables) -> dict[str, pd.DataFrame]:
    """The rows of whole images, of the models that have a learnt lens."""
    found = {label: table[table["tokens"] == "whole"] for label, table in tables.items()}
    return {label: rows for label, rows in found.items() if len(rows)}


def caption(images: str) -> str:
    return (
        "What each block says of the image, read in three ways: by the plain projection (the class token, or the mean "
        "of the image tokens where the model pools them), by affine maps that were trained to foretell the last block "
        "(linear), and by heads that convolve the patches (refined). These heads were trained, the model was not. "
        f"Left: mean r; right: share of images whose top class is the true one. {images}; bands: 95 % intervals. "
        "At the last block all of them are the model's own answer."
    )


def draw_learnt(tables: Tables) -> Figure:
    """Mean r at the left, rate of r = 1 at the right; a row per model, a line per reading."""
    fig, axes = f.new_figure(height=0.9 + 2.0 * len(tables), rows=len(tables), columns=2, share_y=False)
    for i, (label, table) in enumerate(tables.items()):
        for j, (column, title) in enumerate((("mean", "identifiability r"), ("rate", "images with r = 1 (%)"))):
            ax = axes[2 * i + j]
            for point, style in _STYLES.items():
                rows = table[table["point"] == point].sort_values("block")
                if len(rows):
                    banded(ax, rows, column, style, "rate_" if column == "rate" else "")
            ax.set_ylim(*((min(0.4, ax.get_ylim()[0]), 1.02) if column == "mean" else (0, max(5, ax.get_ylim()[1]))))
            f.block_axis(ax, blocks_of(tables), "block" if i == len(tables) - 1 else "")
            f.label_axes(ax, y=f"{who(f.ellipsis(label), len(tables) > 1)}{title}")
    there = [point for point in _STYLES if any((table["point"] == point).any() for table in tables.values())]
    handles = [Line2D([], [], color=_STYLES[p].colour, marker=_STYLES[p].marker) for p in there]
    fig.legend(handles, [_NAMES[p] for p in there], loc="outside lower center", ncols=3)
    return fig


def learnt_finding(rows: pd.DataFrame) -> Finding:
    """Where a learnt lens sees most more than the plain projection."""
    plain = rows[rows["point"] == "resid_post"].set_index("block")
    learnt = rows[rows["point"].isin(LENSES)]
    gain = learnt["rate"].to_numpy() - plain.loc[learnt["block"], "rate"].to_numpy()
    best = learnt.iloc[int(gain.argmax())].to_dict()
    before = plain.loc[best["block"]].to_dict()
    lens = f"the {_NAMES[best['point']]} {'puts' if best['point'] == 'linear' else 'put'}"
    text = (
        f"after block {int(best['block'])} {lens} the true class on top in "
        f"{short(float(best['rate']))} % of the images ({interval(best, 'rate_', ' %')}), the plain projection in "
        f"{short(float(before['rate']))} % ({interval(before, 'rate_', ' %')})."
    )
    return Finding(text, 0.6)
