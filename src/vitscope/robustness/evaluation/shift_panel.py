"""The picture of out-of-distribution sets: accuracy beside clean images of the same classes, and what is noticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import name_models, protocol, stacked, tables_of, told

NAMES = {"A": "ImageNet-A", "R": "ImageNet-R", "O": "ImageNet-O", "V2": "ImageNetV2", "SKETCH": "ImageNet-Sketch"}


@register_panel("shifts")
def shift_panel(runs: Runs) -> Panel | None:
    """Tables `evaluation` (rows without a corruption) and `ood_detection`."""
    every = tables_of(runs, "evaluation").items()  # of which published sets as a whole are shown
    rows = {label: t[(t["set"] != "clean") & (t["corruption"] == "none")] for label, t in every}
    rows = {label: table for label, table in rows.items() if len(table)}
    noticed = tables_of(runs, "ood_detection")
    if not rows and not noticed:
        return None
    figures, alt, captions = {}, {}, {}
    if rows:
        figures["shifts"] = draw_shifts(rows, list(runs))
        alt["shifts"] = "Top-1 accuracy on each set, beside that on clean images of the same classes"
        captions["shifts"] = (
            "Filled: the set, with its 95 % Wilson interval. Hollow: clean images of the same classes, judged by the "
            "same logits. 'of 200 classes': only the logits of the set's own classes compete, as published."
        )
    if noticed:
        figures["detection"] = draw_detection(noticed, list(runs))
        alt["detection"] = "AUPR, AUROC and FPR at 95 % recall of the anomaly score, with intervals and chance"
        captions["detection"] = (
            "Score -max softmax, anomalous images are the positives; bars: 95 % bootstrap interval; dashed: chance."
        )
    tables = {"ood_detection": stacked(noticed)} if noticed else {}
    owner = "ood_detection" if noticed else "evaluation"
    return Panel(
        key="shifts",
        lens="Other pictures",
        title="Does it hold on other pictures of the same classes, and does it notice what it has never seen?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "The distance from hollow to filled is what the shift costs. A score that finds nothing lies on the dashed "
            "lines; above them (FPR: below) the model's doubt is of use."
        ),
        tables=tables if not rows else {**tables, "evaluation": stacked(rows)},
        protocol=protocol(runs, owner, "classes of a set read off its folders; ECE over 15 bins, RMS over 100s"),
        findings=[
            *told({label: _accuracies(table) for label, table in rows.items()}, len(runs) > 1),
            *told({label: _noticed(table) for label, table in noticed.items()}, len(runs) > 1),
        ],
        order=25,
        card=_card(rows),
    )


def _card(tables: Tables) -> Card | None:
    """The first set that all models were asked about."""
    readings = [[name_of(row) for row in table.to_dict("records")] for table in tables.values()]
    common = [name for name in (readings[-1] if readings else []) if all(name in names for names in readings)]
    if not common:
        return None
    values = {}
    for (label, table), names in zip(tables.items(), readings):
        values[label] = Value.of(table.iloc[names.index(common[-1])], "top1")
    return Card(
        question="Does it stand other pictures?",
        values=values,
        says=f"right on {common[-1]}",
        name=f"right on {common[-1]}",
        order=33,
    )


def name_of(row: Mapping[Any, Any]) -> str:
    """'ImageNet-A, of 200 classes' where only their logits compete."""
    name = NAMES.get(str(row["set"]), str(row["set"]))
    classes = str(row["classes"])
    return f"{name}, {classes} classes" if classes.startswith("all") else f"{name}, of {classes.split()[0]} classes"


def draw_shifts(tables: Tables, labels: list[str]) -> Figure:
    """One line of dots per set and reading: filled on the set, hollow on clean images of the same classes."""
    names = list(dict.fromkeys(name_of(r) for t in tables.values() for r in t.to_dict("records")))
    styles = {label: style for label, style in f.model_styles(labels).items() if label in tables}
    fig, (ax,) = f.new_figure(height=0.7 + 0.28 * len(names) * max(1, len(tables) ** 0.5))
    for i, (label, style) in enumerate(styles.items()):
        for row in tables[label].to_dict("records"):
            y = names.index(name_of(row)) + 0.6 * ((i + 1) / (len(styles) + 1) - 0.5)
            if row["clean"] == row["clean"]:
                ax.plot([row["top1"], row["clean"]], [y, y], color=style.colour, linewidth=0.8, alpha=0.5, zorder=1)
                ax.plot(row["clean"], y, marker=style.marker, color=style.colour, markerfacecolor="none")
            ax.hlines(y, row["top1_low"], row["top1_high"], color=style.colour, linewidth=2.2, alpha=0.45)
            ax.plot(row["top1"], y, marker=style.marker, color=style.colour)
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(len(names) - 0.5, -0.5), xlim=(-1, 101))
    ax.grid(True, axis="x")
    f.label_axes(ax, x="top-1 accuracy (%)")
    name_models(fig, labels, tables)
    return fig


def draw_detection(tables: Tables, labels: list[str]) -> Figure:
    """AUPR, AUROC and FPR95 beside each other, one dot per model and reading."""
    readings = list(dict.fromkeys(name_of(r) for t in tables.values() for r in t.to_dict("records")))
    styles = {label: style for label, style in f.model_styles(labels).items() if label in tables}
    fig, axes = f.new_figure(height=0.8 + 0.3 * len(readings) * max(1, len(tables) ** 0.5), columns=3)
    titles = {"aupr": "AUPR (%)", "auroc": "AUROC (%)", "fpr95": "FPR at 95 % recall (%)"}
    chance = {"auroc": 50.0, "fpr95": 95.0, "aupr": float(next(iter(tables.values()))["aupr_chance"].iloc[0])}
    for ax, (metric, title) in zip(axes, titles.items()):
        for i, (label, style) in enumerate(styles.items()):
            for row in tables[label].to_dict("records"):
                y = readings.index(name_of(row)) + 0.6 * ((i + 1) / (len(styles) + 1) - 0.5)
                ax.hlines(y, row[f"{metric}_low"], row[f"{metric}_high"], color=style.colour, linewidth=2, alpha=0.5)
                ax.plot(row[metric], y, marker=style.marker, color=style.colour)
        ax.axvline(chance[metric], color=f.MUTED, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
        ax.set(ylim=(len(readings) - 0.5, -0.5), xlim=(-2, 102))
        ax.grid(True, axis="x")
        f.label_axes(ax, x=title)
    axes[0].set_yticks(range(len(readings)), [r.replace(", ", ",\n") for r in readings])
    name_models(fig, labels, tables)
    return fig


def _accuracies(table: pd.DataFrame) -> list[Finding]:
    """One sentence per set, of its own classes where it has some."""
    found = []
    rows = {str(r["set"]): r for r in table.to_dict("records")}  # that of its own classes comes last and stays
    for row in rows.values():
        text = (
            f"{short(row['top1'])} % right on {name_of(row)} "
            f"(95 % interval {short(row['top1_low'])} to {short(row['top1_high'])} %, {short(int(row['n']))} images)"
        )
        if row["clean"] == row["clean"]:
            text += f", {short(row['clean'])} % on clean images of the same classes"
        found.append(Finding(text + ".", 0.6))
    return found


def _noticed(table: pd.DataFrame) -> list[Finding]:
    row = table.to_dict("records")[0]
    text = (
        f"its confidence tells {NAMES.get(row['set'], row['set'])} from clean images "
        f"with AUPR {short(row['aupr'])} % (95 % interval {short(row['aupr_low'])} to {short(row['aupr_high'])} %, "
        f"chance {short(row['aupr_chance'])} %) and AUROC {short(row['auroc'])} %."
    )
    return [Finding(text, 0.6)]
