"""The picture of swapped words and typos: perplexity of every condition, and how many times that of clean texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import name_models, protocol, stacked, tables_of, told
from vitscope.robustness.text.names import ALL, CLEAN

NAMES = {"swap": "swapped words", "typos": "typos"}


@register_panel("swapped")
def swapped_panel(runs: Runs) -> Panel | None:
    """Table `perplexity`, where it has conditions."""
    tables = {label: t for label, t in tables_of(runs, "perplexity").items() if "condition" in t.columns}
    rows = {label: t[t["metric"] == "perplexity"] for label, t in tables.items()}
    if not any((table["condition"] != CLEAN).any() for table in rows.values()):
        return None
    first = next(iter(rows.values())).iloc[0]
    return Panel(
        key="swapped",
        lens="Changed words",
        title="How much worse is a text foreseen that has swapped words or typos?",
        figures={"swapped": draw_swapped(rows, list(runs))},
        alt={"swapped": "Perplexity of clean and of changed texts, and the paired ratio of the two"},
        captions={
            "swapped": "Left: perplexity over all targets, and over those of words that were left as they are; the "
            "dash is the clean texts over the same words. Right: how many times the clean perplexity, paired by "
            f"document. Lines: 95 % intervals over {int(first['n']):,} documents; {int(first['targets']):,} clean "
            "targets."
        },
        reading=(
            "Over all targets a changed word counts as something to foresee, which nobody can. Unswapped targets say "
            "what it does to the words around it: at 1, on the right, is a model that does not mind."
        ),
        tables={"perplexity": stacked(tables)},
        protocol=protocol(runs, "perplexity", "every text clean and changed; the changed one is context and target"),
        findings=told({label: _findings(table) for label, table in rows.items()}, len(runs) > 1),
        order=25,
        card=_card(rows),
    )


def _card(tables: Tables) -> Card | None:
    """What the first change costs at the words that were left as they are."""
    conditions = [c for t in tables.values() for c in t["condition"] if c != CLEAN]
    chosen = {}
    for label, table in tables.items():
        rows = table[(table["condition"] == conditions[0]) & (table["over"] != ALL)]
        if len(rows):
            chosen[label] = rows.iloc[0]
    if not chosen:
        return None
    name = NAMES.get(conditions[0], conditions[0])
    return Card(
        question="Does it stand changed words?",
        values={
            label: Value(row["change"], row["change_low"], row["change_high"], "times") for label, row in chosen.items()
        },
        says=f"the perplexity on clean text, at words beside {name}",
        name=f"perplexity beside {name}, against clean",
        larger=False,
        order=30,
    )


def name_of(row: Mapping[Any, Any]) -> str:
    """'swapped words,\\nunswapped targets'"""
    if row["condition"] == CLEAN:
        return CLEAN
    return f"{NAMES.get(row['condition'], row['condition'])},\n{row['over']} targets"


def draw_swapped(tables: Tables, labels: list[str]) -> Figure:
    """Bars on the left, ratios to clean on the right; one row per condition and set of targets."""
    names = list(dict.fromkeys(name_of(row) for t in tables.values() for row in t.to_dict("records")))
    styles = {label: style for label, style in f.model_styles(labels).items() if label in tables}
    thick = 0.7 / len(styles)
    height = 0.9 + 0.42 * len(names) * max(1, len(styles) ** 0.5)
    fig, (left, right) = f.new_figure(height=height, columns=2, share_x=False)
    for i, (label, style) in enumerate(styles.items()):
        for row in tables[label].to_dict("records"):
            y = names.index(name_of(row)) + thick * (i - (len(styles) - 1) / 2)
            left.barh(y, row["value"], 0.9 * thick, color=style.colour, alpha=0.75 if row["over"] == ALL else 0.4)
            left.hlines(y, row["low"], row["high"], color=f.INK, linewidth=1.2)
            if row["condition"] == CLEAN:
                continue
            left.vlines(row["clean"], y - 0.45 * thick, y + 0.45 * thick, color=f.INK, linewidth=1.6)
            right.hlines(y, row["change_low"], row["change_high"], color=style.colour, linewidth=2.2, alpha=0.45)
            right.plot(row["change"], y, marker=style.marker, color=style.colour)
    right.axvline(1, color=f.MUTED, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    left.set_yticks(np.arange(len(names)), names)
    for ax, title in ((left, "perplexity"), (right, "times the clean perplexity")):
        ax.grid(True, axis="x")
        ax.grid(False, axis="y")
        f.label_axes(ax, x=title)
    left.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, None))
    name_models(fig, labels, tables)
    return fig


def _findings(table: pd.DataFrame) -> list[Finding]:
    """One sentence per condition."""
    found = []
    for row in table[table["condition"] != CLEAN].to_dict("records"):
        text = (
            f"{NAMES.get(row['condition'], row['condition'])} make the perplexity "
            f"over {row['over']} targets {short(row['change'])} times the clean {short(row['clean'])}"
        )
        if row["change_low"] == row["change_low"]:
            text += f" (95 % interval {short(row['change_low'])} to {short(row['change_high'])}, paired by document)"
        found.append(Finding(text + ".", 0.6 if row["over"] == ALL else 0.7))
    return found
