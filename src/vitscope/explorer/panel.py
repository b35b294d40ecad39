"""The picture of a saved view: the answer before and after the changes, and block by block."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import stacked, tables_of, told


@register_panel("explored")
def explored_panel(runs: Runs) -> Panel | None:
    """What the explorer showed."""
    answers, blocks = tables_of(runs, "explored"), tables_of(runs, "explored_blocks")
    if not answers:
        return None
    views = {label: runs[label].config.get("view", {}) for label in answers}
    changes = list(dict.fromkeys(line for view in views.values() for line in view.get("changes", [])))
    done = list(dict.fromkeys(f"On the picture: {step}." for view in views.values() for step in view.get("done", [])))
    figures = {"explored_blocks": draw_blocks(blocks)} if blocks else {}
    return Panel(
        key="explored",
        lens="Explored",
        title="What did the change do to the answer?" if changes else "What does the model answer?",
        figures=figures,
        alt=dict.fromkeys(
            figures, "Probability of the chosen class read off every block, before and after the changes"
        ),
        captions=dict.fromkeys(figures, "The model's own head on every block's output. One input."),
        reading=" ".join(["One input, as it was saved from the explorer.", *done, *changes]),
        tables={"explored": stacked(answers), **({"explored_blocks": stacked(blocks)} if blocks else {})},
        protocol="script.py beside this page makes the same view again.",
        findings=told({label: [_finding(table)] for label, table in answers.items()}, len(answers) > 1),
        order=5,
        card=_card(answers, blocks, {label: view.get("class") for label, view in views.items()}),
    )


def _card(answers: Tables, blocks: Tables, chosen: Mapping[str, int | None]) -> Card:
    """How sure it is of the chosen class, now and block by block; else of its answer."""
    values, told, lines = {}, [], {}
    for label, table in answers.items():
        top: Any = table.sort_values("after").iloc[-1]
        mine = table[table["class"] == chosen[label]]
        row: Any = mine.iloc[0] if len(mine) else top
        text = f"sure of {row['class_name']}"
        text += f" ({100 * row['before']:.1f} % without the changes)" if _moved(row) else ""
        told.append(text + ("" if row["class"] == top["class"] else f"; it answers {top['class_name']}"))
        values[label] = Value(100 * row["after"])
        if len(mine) and label in blocks:
            lines[label] = blocks[label]["p_after"].tolist()
    return Card(
        question="What does it answer?",
        values=values,
        says=" and ".join(dict.fromkeys(told)),
        name="how sure it is",
        larger=None,
        lines=lines,
        across="blocks" if lines else "",
        order=5,
    )


def _moved(row: Any) -> bool:
    return bool(abs(row["after"] - row["before"]) >= 0.0005)


def _finding(table: pd.DataFrame) -> Finding:
    top: Any = max(table.to_dict("records"), key=itemgetter("after"))
    text = f"the answer is {top['class_name']} with {100 * top['after']:.1f} %"
    text += f" ({100 * top['before']:.1f} % without the changes)." if _moved(top) else "."
    return Finding(text, 0.9)


def draw_blocks(tables: Tables) -> Figure:
    """Probability of the chosen class against the block."""
    fig, (ax,) = f.new_figure(width=f.PAGE * 0.72, height=2.8)
    for table in tables.values():
        for column, colour in (("before", f.MUTED), ("after", f.BLUE)):
            f.line_per_block(ax, table["block"], 100 * table[f"p_{column}"], style=f.LineStyle(colour), label=column)
    f.label_axes(ax, x="block", y="probability of the chosen class (%)", title="")
    f.direct_labels(ax)
    return fig
