"""The pictures of `vocabulary.identifiability`: at which block is the next token known, and who makes it so?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report import lens_drawing as d
from vitscope.report.card import Card
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import blocks_of, name_models, protocol, stacked, tables_of, told

LEVEL, CHANGE, KNOWN = "vocabulary_identifiability", "vocabulary_change", "vocabulary_known"


@register_panel("vocabulary")
def vocabulary_panel(runs: Runs) -> Panel | None:
    """Log-probability and rank of the next token per block, what the branches add, and from when on it is known."""
    levels, changes, known = (tables_of(runs, name) for name in (LEVEL, CHANGE, KNOWN))
    if not levels or not changes or not known:
        return None
    n = sizes(levels)
    return Panel(
        key="vocabulary",
        lens="Next token",
        title="At which block is the next token known?",
        figures={
            "vocabulary_levels": draw_levels(levels, list(runs)),
            "vocabulary_branches": d.draw_branches(changes),
            "vocabulary_known": d.draw_known(known, list(runs), "tokens"),
        },
        alt={
            "vocabulary_levels": "Log-probability of the next token and share of tokens that know it, per block",
            "vocabulary_branches": "What attention and MLP of each block add to the log-probability of the next token",
            "vocabulary_known": "Share of tokens whose next one is the first guess from each block on to the last",
        },
        captions={
            "vocabulary_levels": "Left: mean log-probability of the next token; right: share of tokens whose first "
            f"guess is right. The embedding stands before block 0. {n}; bands: 95 % intervals over documents. Dashed: "
            "all words alike.",
            "vocabulary_branches": f"Mean change of the next token's log-probability, in nats: attention from the "
            f"block's input to the residual behind it, MLP from there to the block's output. {n}; bands as above.",
            "vocabulary_known": "Share of tokens whose next one becomes the first guess at this block and stays it up "
            f"to the last; 'never': it is not the first guess at the end. {n}; bars: 95 % intervals over documents.",
        },
        reading=(
            "After each block the model's own final norm and head read the residual stream, as if the network ended "
            "there. A steep piece of a curve says that the next token is worked out in these blocks."
        ),
        tables={LEVEL: stacked(levels), CHANGE: stacked(changes), KNOWN: stacked(known)},
        protocol=protocol(runs, LEVEL, "the model's own final norm and head; the true class is the next token"),
        findings=told({label: _findings(t, changes[label]) for label, t in known.items()}, len(runs) > 1),
        order=20,
        card=_card(levels),
    )


def _card(levels: Tables) -> Card | None:
    rows = {label: d.over_blocks(table, "resid_post") for label, table in levels.items()}
    return d.rates_card(
        rows,
        "When is the next token known?",
        says="of next tokens are the first guess after the last block",
        name="next tokens foreseen",
        across="blocks",
        order=20,
    )


def sizes(tables: Tables) -> str:
    """'2,313 tokens of 4 documents', of each model where they differ."""
    found = [
        f"{int(t['n_tokens'].max()):,} tokens of {int(t['n_documents'].max()):,} documents" for t in tables.values()
    ]
    return " and ".join(dict.fromkeys(found))


def draw_levels(tables: Tables, labels: list[str]) -> Figure:
    """Mean log p on the left, share known on the right; the embedding is at -1."""
    styles = f.model_styles(labels)
    fig, axes = f.new_figure(height=2.9, columns=2, share_y=False)
    for ax, value, title in zip(
        axes, ("log_probability", "rate"), ("log-probability of the next token (nats)", "next token is first guess (%)")
    ):
        for label, table in tables.items():
            d.banded(ax, d.from_embedding(table), value, styles[label])
        words = sorted({int(t["n_words"].iloc[0]) for t in tables.values()})
        for place, count in enumerate(words):
            level = -np.log(count) if value == "log_probability" else 100 / count
            f.null_line(ax, float(level), "chance" if place == 0 else "_")
        ax.set_ylim(top=max(0, ax.get_ylim()[1])) if value == "log_probability" else ax.set_ylim(bottom=0)
        d.blocks_with_embedding(ax, blocks_of(tables))
        f.label_axes(ax, y=title)
        f.direct_labels(ax)
    name_models(fig, labels, tables)
    return fig


def _findings(known: pd.DataFrame, changes: pd.DataFrame) -> list[Finding]:
    rows = known[known["tokens"] == "all"].to_dict("records")
    last, low, high = (100 - float(rows[-1][key]) for key in ("rate", "rate_high", "rate_low"))
    text = f"{short(last)} % of the next tokens are the first guess after the last block"
    text += f" (95 % interval {short(low)} to {short(high)} %)"
    if last > 0:
        half = next(row["known_from"] for row in rows if row["known"] >= last / 2)
        where = "in the embedding" if half == "embedding" else f"from block {half} of {len(rows) - 3} on"
        text += f"; half of these are known {where}"
    added = {point: float(d.over_blocks(changes, point)["change"].sum()) for point in d.BRANCHES}
    more = (
        f"over all blocks attention adds {short(added['attn_out'])} nats to the log-probability "
        f"of the next token, the MLPs {short(added['mlp_out'])}."
    )
    return [Finding(text + ".", 0.7), Finding(more, 0.5)]
