"""The pictures of `vocabulary.knockout`: which tokens and heads does foreseeing the next token rest on?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.vocabulary.panel import sizes
from vitscope.report import figures as f
from vitscope.report.lens_drawing import draw_heads
from vitscope.report.numbers import in_brackets, short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import name_models, protocol, stacked, tables_of, told

TOKENS, HEADS = "vocabulary_knockout_tokens", "vocabulary_knockout_heads"


@register_panel("vocabulary_knockout")
def knockout_panel(runs: Runs) -> Panel | None:
    """Bars for hidden tokens, a heat map of heads."""
    tokens, heads = tables_of(runs, TOKENS), tables_of(runs, HEADS)
    if not tokens:
        return None
    figures = {"vocabulary_hidden": draw_tokens(tokens, list(runs))}
    captions = {
        "vocabulary_hidden": "Change of the next token's log-probability when no token sees the first one, or the one "
        f"so many places before it, in any block. {sizes(tokens)}; bars: 95 % intervals over documents."
    }
    alt = {"vocabulary_hidden": "Change of the log-probability of the next token for each kind of hidden token"}
    if heads:
        figures["vocabulary_heads"] = draw_heads(heads, "change", "change (nats)", 3.0)
        captions["vocabulary_heads"] = (
            f"The same when one head writes nothing, head by head. {sizes(heads)}; intervals are in the table."
        )
        alt["vocabulary_heads"] = "Change of the log-probability of the next token for each silenced head"
    return Panel(
        key="vocabulary_knockout",
        lens="Next token",
        title="What does foreseeing the next token rest on?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "Below zero the model needed what was taken from it: the same tokens are foreseen worse without. One that "
            "is not missed leaves a change near zero."
        ),
        tables={TOKENS: stacked(tokens)} | ({HEADS: stacked(heads)} if heads else {}),
        protocol=protocol(runs, TOKENS, "hidden keys get no attention, a token always sees itself; paired differences"),
        findings=told({label: _findings(t, heads.get(label)) for label, t in tokens.items()}, len(runs) > 1),
        order=26,
    )


def draw_tokens(tables: Tables, labels: list[str]) -> Figure:
    """Models side by side, one group of bars per hidden token."""
    styles = f.model_styles(labels)
    fig, (ax,) = f.new_figure(height=2.6)
    names = list(dict.fromkeys(name for table in tables.values() for name in table["hidden"]))
    width = 0.7 / len(tables)
    for i, (label, table) in enumerate(tables.items()):
        x = np.array([names.index(name) for name in table["hidden"]]) + width * (i - (len(tables) - 1) / 2)
        ax.bar(x, table["change"], width=0.92 * width, color=styles[label].colour)
        ax.vlines(x, table["change_low"], table["change_high"], color=f.INK, linewidth=1)
    ax.axhline(0, color=f.MUTED, linewidth=0.8)
    ax.set_xticks(range(len(names)), names)
    f.label_axes(ax, x="what is hidden", y="change of log-probability (nats)")
    name_models(fig, labels, tables)
    return fig


def _findings(tokens: pd.DataFrame, heads: pd.DataFrame | None) -> list[Finding]:
    found = []
    for row in tokens[tokens["distance"] == 0].to_dict("records"):
        text = (
            f"without sight of the first token, the next one changes by {short(float(row['change']))} nats in "
            f"log-probability{in_brackets(row, 'change')}."
        )
        found.append(Finding(text, 0.5))
    if heads is not None:
        row = heads.sort_values("change").to_dict("records")[0]
        text = (
            f"the most needed head is head {row['head']} of block {row['block']}: silencing it changes the "
            f"log-probability of the next token by {short(float(row['change']))} nats{in_brackets(row, 'change')}."
        )
        found.append(Finding(text, 0.55))
    return found
