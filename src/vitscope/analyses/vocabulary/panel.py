"""The pictures of `vocabulary.identifiability`: at which block is the next token known, and who makes it so?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, register_panel
from vitscope.report.panel_parts import name_models, protocol, stacked, tables_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vitscope.runs import Run

LEVEL, CHANGE, KNOWN = "vocabulary_identifiability", "vocabulary_change", "vocabulary_known"
BRANCHES = {"attn_out": ("attention", f.LineStyle(f.ORANGE, "s")), "mlp_out": ("MLP", f.LineStyle(f.SKY, "^"))}


@register_panel("vocabulary")
def vocabulary_panel(runs: Mapping[str, Run]) -> Panel | None:
    """Log-probability and rank of the next token per block, what the branches add, and from when on it is known."""
    levels, changes, known = (tables_of(runs, name) for name in (LEVEL, CHANGE, KNOWN))
    if not levels or not changes or not known:
        return None
    n = sizes(levels)
    return Panel(
        key="vocabulary",
        title="At which block is the next token known?",
        figures={
            "vocabulary_levels": draw_levels(levels, list(runs)),
            "vocabulary_branches": draw_branches(changes),
            "vocabulary_known": draw_known(known, list(runs)),
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
        findings=[x for label in known for x in _findings(label, known[label], changes[label], len(runs) > 1)],
        order=20,
    )


def sizes(tables: Mapping[str, pd.DataFrame]) -> str:
    """'2,313 tokens of 4 documents', of each model where they differ."""
    found = [
        f"{int(t['n_tokens'].max()):,} tokens of {int(t['n_documents'].max()):,} documents" for t in tables.values()
    ]
    return " and ".join(dict.fromkeys(found))


def over_blocks(table: pd.DataFrame, point: str) -> pd.DataFrame:
    """All tokens at one point, by block."""
    return table[(table["point"] == point) & (table["tokens"] == "all")].sort_values("block")


def draw_levels(tables: Mapping[str, pd.DataFrame], labels: list[str]) -> Figure:
    """Mean log p on the left, share known on the right; the embedding is at -1."""
    import pandas as pd

    styles = f.model_styles(labels)
    fig, axes = f.new_figure(height=2.9, columns=2, share_y=False)
    for ax, value, title in zip(
        axes, ("log_probability", "rate"), ("log-probability of the next token (nats)", "next token is first guess (%)")
    ):
        for label, table in tables.items():
            rows = pd.concat([over_blocks(table, "resid_pre").assign(block=-1), over_blocks(table, "resid_post")])
            _banded(ax, rows, value, styles[label])
        words = sorted({int(t["n_words"].iloc[0]) for t in tables.values()})
        for place, count in enumerate(words):
            level = -np.log(count) if value == "log_probability" else 100 / count
            f.null_line(ax, float(level), "chance" if place == 0 else "_")
        ax.set_ylim(top=max(0, ax.get_ylim()[1])) if value == "log_probability" else ax.set_ylim(bottom=0)
        _blocks_with_embedding(ax, max(int(t["block"].max()) for t in tables.values()) + 1)
        f.label_axes(ax, y=title)
        f.direct_labels(ax)
    name_models(fig, labels, tables)
    return fig


def _banded(ax: Axes, rows: pd.DataFrame, value: str, style: f.LineStyle) -> None:
    low, high = rows[f"{value}_low"], rows[f"{value}_high"]
    f.line_per_block(ax, rows["block"], rows[value], style=style, label="_", low=low, high=high)


def _blocks_with_embedding(ax: Axes, blocks: int) -> None:
    f.block_axis(ax, blocks)
    ax.set_xlim(-1.3, blocks - 0.7)
    step = max(1, -(-blocks // 10))
    ticks = [-1, *range(0, blocks, step)]
    ax.set_xticks(ticks, ["emb.", *map(str, ticks[1:])])


def draw_branches(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """A column per model: what attention and MLP of each block add."""
    from matplotlib.lines import Line2D

    fig, axes = f.new_figure(height=2.9, columns=len(tables))
    for ax, (label, table) in zip(axes, tables.items()):
        for point, (_, style) in BRANCHES.items():
            _banded(ax, over_blocks(table, point), "change", style)
        f.null_line(ax, 0, "_")
        f.block_axis(ax, int(table["block"].max()) + 1)
        f.label_axes(ax, y=f"{_who(f.ellipsis(label), len(tables) > 1)}log-probability added (nats)")
    handles = [Line2D([], [], color=style.colour, marker=style.marker) for _, style in BRANCHES.values()]
    fig.legend(handles, [name for name, _ in BRANCHES.values()], loc="outside lower center", ncols=2)
    return fig


def draw_known(tables: Mapping[str, pd.DataFrame], labels: list[str]) -> Figure:
    """Bars over embedding, blocks and 'never'; models side by side."""
    styles = f.model_styles(labels)
    fig, (ax,) = f.new_figure(height=2.7)
    blocks = max(len(table[table["tokens"] == "all"]) for table in tables.values()) - 2
    width = 0.8 / len(tables)
    for i, (label, table) in enumerate(tables.items()):
        rows = table[table["tokens"] == "all"]
        place = {"embedding": -1, "never": blocks}
        x = np.array([place.get(name, name) for name in rows["known_from"]], dtype=float) + width * (
            i - (len(tables) - 1) / 2
        )
        ax.bar(x, rows["rate"], width=0.92 * width, color=styles[label].colour)
        some = (rows["rate"] > 0).to_numpy()  # of none, a bar without a block would say little and show much
        ax.vlines(x[some], rows["rate_low"][some], rows["rate_high"][some], color=f.INK, linewidth=1)
    _blocks_with_embedding(ax, blocks)
    ax.set_xticks([*ax.get_xticks(), blocks], [*(t.get_text() for t in ax.get_xticklabels()), "never"])
    ax.set_xlim(-1.6, blocks + 0.6)
    ax.set_ylim(0, 100)
    f.label_axes(ax, x="known from this block on", y="tokens (%)")
    name_models(fig, labels, tables)
    return fig


def _findings(label: str, known: pd.DataFrame, changes: pd.DataFrame, several: bool) -> list[Finding]:
    rows = known[known["tokens"] == "all"].to_dict("records")
    last, low, high = (100 - float(rows[-1][key]) for key in ("rate", "rate_high", "rate_low"))
    text = f"{_who(label, several)}{short(last)} % of the next tokens are the first guess after the last block"
    text += f" (95 % interval {short(low)} to {short(high)} %)"
    if last > 0:
        half = next(row["known_from"] for row in rows if row["known"] >= last / 2)
        where = "in the embedding" if half == "embedding" else f"from block {half} of {len(rows) - 3} on"
        text += f"; half of these are known {where}"
    added = {point: float(over_blocks(changes, point)["change"].sum()) for point in BRANCHES}
    more = (
        f"{_who(label, several)}over all blocks attention adds {short(added['attn_out'])} nats to the log-probability "
        f"of the next token, the MLPs {short(added['mlp_out'])}."
    )
    return [Finding(text + ".", 0.7), Finding(more, 0.5)]


def _who(label: str, several: bool) -> str:
    return f"{label}: " if several else ""
