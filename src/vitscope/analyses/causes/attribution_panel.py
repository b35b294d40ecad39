"""Which parts make the answer? Heads as a map, blocks as a waterfall, and the heads that say most."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscope.analyses.causes.question_words import in_words
from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.numbers import in_brackets, short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import counts, name_models, protocol, stacked, tables_of, told
from vitscope.runs import Run

PARTS, BLOCKS, TOP = "causes_attribution", "causes_attribution_blocks", "causes_attribution_top"
COLOURS = {"embedding": f.MUTED, "attention": f.ORANGE, "mlp": f.SKY, "readout": f.PURPLE}
NAMES = {"embedding": "embedding", "attention": "attention", "mlp": "MLP", "readout": "biases of norm and head"}
LISTED = 10  # heads in the table on the page
HEADLINE = 5  # heads whose share is said
NEXT = " The true class of a token is the token that comes next."


@register_panel("causes_attribution")
def attribution_panel(runs: Runs) -> Panel | None:
    """Heads by block, blocks as a waterfall, the best heads together."""
    parts, blocks, top = (tables_of(runs, name) for name in (PARTS, BLOCKS, TOP))
    if not parts:
        return None
    heads = {label: best_heads(table) for label, table in parts.items()}
    what = {question(run) for label, run in runs.items() if label in parts}
    logit = what.pop() if len(what) == 1 else "the logit that was asked for"
    n = f"n = {counts(parts)} images"
    return Panel(
        key=PARTS,
        lens="Causes",
        title="Which parts of the model make its answer?",
        figures={
            "causes_attribution_heads": draw_heads(parts),
            "causes_attribution_blocks": draw_blocks(blocks),
            **({"causes_attribution_top": draw_top(top, list(runs))} if top else {}),
        },
        alt={
            "causes_attribution_heads": "Map of heads by block: how much each says for the class",
            "causes_attribution_blocks": "Waterfall: the logit grows from block to block, by attention and by MLP",
            "causes_attribution_top": "Share of the logit that the best heads carry together, beside random heads",
        },
        captions={
            "causes_attribution_heads": f"What each head adds to {logit}, beyond what it adds to a class drawn at "
            f"random: mean over images, in units of the logit. Orange speaks for the class, purple against it. {n}.",
            "causes_attribution_blocks": f"From the embedding to {logit}: each bar starts where the one before it "
            "ended, and is what attention or MLP of that block adds, biases included; whiskers: 95 % interval of the "
            f"bar over images. Grey bars behind: the same for a class drawn at random. {n}.",
            "causes_attribution_top": "Share of what all parts together say for the class beyond a random one that "
            "the best heads carry. Heads are chosen on one half of the images and measured on the other; band: 95 % "
            f"interval over images. Grey: as many heads drawn at random, and 95 % of such draws. {n}.",
        },
        reading=(
            f"The last stream is a sum of what every part wrote, and the head is linear: {logit} splits into one share "
            "per part, which add up to it. The final norm is held at the scale that it had. These are direct effects: "
            "what a part does by way of later ones counts as theirs." + (NEXT if several_answers(parts) else "")
        ),
        tables={
            "causes_attribution_heads": stacked({label: table.head(LISTED) for label, table in heads.items()}),
            PARTS: stacked(parts),
            BLOCKS: stacked(blocks),
            **({TOP: stacked(top)} if top else {}),
        },
        protocol=protocol(runs, PARTS, f"{logit}; final norm frozen; null: a random class per image"),
        findings=told({label: _findings(t, top.get(label), logit) for label, t in heads.items()}, len(runs) > 1),
        order=24,
        card=_card(top),
    )


def _card(top: Tables) -> Card | None:
    """What the few best heads carry."""
    chosen = {label: table[table["heads"] == HEADLINE] for label, table in top.items()}
    rows = {label: table.iloc[0] for label, table in chosen.items() if len(table)}
    if not rows:
        return None
    return Card(
        question="Who makes the answer?",
        values={label: Value(row["share"], row["share_low"], row["share_high"]) for label, row in rows.items()},
        says=f"of what speaks for the class comes from the {HEADLINE} best heads",
        name=f"what the {HEADLINE} best heads carry",
        larger=None,
        lines={label: top[label]["share"].tolist() for label in rows},
        across="more and more heads",
        order=25,
    )


def several_answers(tables: Tables) -> bool:
    """Has an image more than one? Then it is a text, whose tokens foresee the next one."""
    return any(bool((table["answers"] > table["n"]).any()) for table in tables.values())


def question(run: Run) -> str:
    """What was split, from the run's options: 'the logit of the true class'."""
    options: Any = (run.config.get("analyses") or {}).get("causes.attribution") or {}
    return in_words(options.get("target", "label"), options.get("minus", "none"))


def best_heads(table: pd.DataFrame) -> pd.DataFrame:
    """The heads, the one that says most for the class first."""
    rows = table[(table["kind"] == "head") & (table["images"] == "all")]
    columns = ["part", "specific", "specific_low", "specific_high", "share", "mean", "null", "size", "n"]
    return rows.sort_values("specific", ascending=False, kind="stable")[["block", "head", *columns]]


def draw_heads(tables: Tables) -> Figure:
    """Blocks from left to right, heads from top to bottom; a row per model, one scale for all."""
    rows = {label: t[(t["kind"] == "head") & (t["images"] == "all")] for label, t in tables.items()}
    most = max(float(part["specific"].abs().max()) for part in rows.values()) or 1.0
    heights = [max(0.9, 0.16 * (int(part["head"].max()) + 1)) for part in rows.values()]
    fig, axes = f.new_figure(height=0.8 + sum(heights) + 0.35 * len(rows), rows=len(rows), share_x=False)
    for ax, (label, part) in zip(axes, rows.items()):
        grid = part.pivot(index="head", columns="block", values="specific").to_numpy()
        f.heat_map(fig, ax, grid, low=-most, high=most, cmap=f"{f.DIVERGING}_r", label="added to the logit")
        f.block_axis(ax, grid.shape[1])
        ax.set_xlim(-0.5, grid.shape[1] - 0.5)
        f.label_axes(ax, y=f"{f.ellipsis(label)}: head" if len(rows) > 1 else "head")
    return fig


def draw_blocks(tables: Tables) -> Figure:
    """A waterfall per model."""
    fig, axes = f.new_figure(height=0.7 + 2.2 * len(tables), rows=len(tables), share_x=False)
    for ax, (label, table) in zip(axes, tables.items()):
        _waterfall(ax, table[table["images"] == "all"])
        f.label_axes(ax, y=f"{f.ellipsis(label)}: logit so far" if len(tables) > 1 else "logit so far")
    handles = [axes[0].bar([0], [0], color=colour)[0] for colour in COLOURS.values()]
    fig.legend(handles, list(NAMES.values()), loc="outside lower center", ncols=len(NAMES))
    return fig


def _waterfall(ax: Axes, rows: pd.DataFrame) -> None:
    places, ticks = [], {}
    for row in rows.to_dict("records"):
        place = {"embedding": 0.0, "attention": 1 + row["block"] - 0.2, "mlp": 1 + row["block"] + 0.2}.get(
            row["kind"], 1.0 + row["block"]
        )
        places.append(place)
        name = {"embedding": "emb.", "readout": "biases"}.get(row["kind"], str(row["block"]))
        ticks[round(place)] = name
        low, high = (row["so_far"] - row["mean"] + row[f"mean_{end}"] for end in ("low", "high"))
        before = row["so_far"] - row["mean"]
        ax.bar(place, row["null"], bottom=before, width=0.4, color=f.NULL, alpha=0.7)
        ax.bar(place, row["mean"], bottom=before, width=0.28, color=COLOURS[row["kind"]])
        if np.isfinite([low, high]).all():
            ax.vlines(place, low, high, color=f.INK, linewidth=0.9)
    for (left, right), level in zip(pairwise(places), rows["so_far"]):
        ax.plot([left, right], [level, level], color=f.MUTED, linewidth=0.6, zorder=0)
    step = max(1, -(-len(ticks) // 16))
    shown = {place: name for place, name in ticks.items() if not name.isdigit() or int(name) % step == 0}
    ax.set_xticks(list(shown), list(shown.values()))
    ax.set_xlim(-0.6, max(places) + 0.6)
    ax.set_xlabel("block")
    f.null_line(ax, 0, "_")


def draw_top(tables: Tables, labels: list[str]) -> Figure:
    """Share against the number of heads."""
    styles = f.model_styles(labels)
    fig, (ax,) = f.new_figure(height=2.6)
    for label, table in tables.items():
        x = table["heads"]
        f.null_band(ax, table["random_low"], table["random_high"], "random heads", x=x)
        low, high = table["share_low"], table["share_high"]
        f.line_per_block(ax, x, table["share"], style=styles[label], label="best heads", low=low, high=high)
    f.log_axis(ax, "x", (1, 2, 5))
    f.label_axes(ax, x="heads together", y="share of what speaks for the class (%)")
    f.null_line(ax, 100, "all parts")
    if len(labels) == 1:
        f.direct_labels(ax)
    name_models(fig, labels, tables)
    return fig


def _findings(heads: pd.DataFrame, top: pd.DataFrame | None, logit: str) -> list[Finding]:
    best = heads.to_dict("records")[0]
    text = f"head {int(best['head'])} of block {int(best['block'])} says most for the class: it adds "
    text += f"{short(float(best['specific']))} to {logit}, beyond a random class{in_brackets(best, 'specific')}."
    found = [Finding(text, 0.55)]
    if top is not None:
        count = HEADLINE if HEADLINE in set(top["heads"]) else int(top["heads"].min())
        row = top[top["heads"] == count].iloc[0]
        more = (
            f"{count} of {int(top['heads'].max())} heads carry {short(float(row['share']))} % of what speaks for "
            f"the class (95 % interval {short(float(row['share_low']))} to {short(float(row['share_high']))} %); "
            f"{count} random ones carry {short(float(row['random']))} %."
        )
        found.append(Finding(more, 0.65))
    return found
