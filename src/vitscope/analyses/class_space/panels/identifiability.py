"""At which block do tokens know the class?"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscope.analyses.class_space.panels.learnt import (
    ALT,
    FIGURE,
    caption,
    draw_learnt,
    learnt_finding,
    with_lenses,
)
from vitscope.analyses.class_space.panels.parts import (
    POINT_NAMES,
    POINT_STYLES,
    banded,
    control_line,
    draw_differences,
    images_text,
    interval,
    kinds_of,
    largest,
    named,
    who,
)
from vitscope.analyses.class_space.ranks import chance
from vitscope.report import figures as f
from vitscope.report.card import Card
from vitscope.report.lens_drawing import over_blocks, rates_card
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import blocks_of, name_models, protocol, stacked, tables_of, told

TABLE = "class_space_identifiability"


@register_panel("class_space")
def identifiability_panel(runs: Runs) -> Panel | None:
    """Identifiability per block, layer by layer, and class-labelled against context tokens."""
    tables = tables_of(runs, TABLE)
    if not tables:
        return None
    changes = tables_of(runs, "class_space_change")
    compared = tables_of(runs, "class_space_class_vs_context")
    against = tables_of(runs, "class_space_against_random")
    n = images_text(tables)
    figures = {"class_space_identifiability": draw_levels(tables, list(runs))}
    captions = {
        "class_space_identifiability": f"Top: mean of r = 1 - rank/|C| of the true class after each block; bottom: "
        f"share of tokens whose top class is the true one (r = 1). {n}; bands: 95 % intervals over images (tokens of "
        "one image are not independent). Dashed: chance, (K + 1)/(2 K) for K classes." + _control_text(tables)
    }
    alt = {"class_space_identifiability": "Identifiability of the true class per block for each kind of token"}
    learnt = with_lenses(tables)
    if learnt:
        figures[FIGURE], captions[FIGURE], alt[FIGURE] = draw_learnt(learnt), caption(images_text(learnt)), ALT
    if changes:
        figures["class_space_layers"] = draw_layers(changes)
        captions["class_space_layers"] = (
            f"Share of tokens whose logit of the true class rises: from one block output to the next, and from the "
            f"block's input to the projected output of its attention and MLP layer. {n}; bands as above."
        )
        alt["class_space_layers"] = "Share of tokens whose true-class logit rises, for block, attention and MLP outputs"
    missing = [label for label in tables if label not in compared]
    if compared:
        figures["class_space_class_vs_context"] = draw_comparison(compared, list(runs))
        captions["class_space_class_vs_context"] = (
            f"Class-labelled minus context tokens, image by image ({images_text(compared)} that have both); bars: 95 % "
            "intervals over images. Filled: p < 0.05 in the sign-flip test over images, Holm-corrected over blocks."
        )
        alt["class_space_class_vs_context"] = "Difference between class-labelled and context tokens per block"
    note = (
        f" No masks: {', '.join(missing)} has no comparison of class-labelled with context tokens." if missing else ""
    )
    return Panel(
        key="class_space",
        lens="Class space",
        title="At which block do tokens know the class?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "Each token is read by the model's own final norm and head, as if the network ended there. 1 means that "
            f"the true class is on top, {_chance_text(tables)} that the token knows nothing of it.{note}"
        ),
        tables={
            TABLE: stacked(tables),
            **({"class_space_change": stacked(changes)} if changes else {}),
            **({"class_space_class_vs_context": stacked(compared)} if compared else {}),
            **({"class_space_against_random": stacked(against)} if against else {}),
        },
        protocol=protocol(runs, TABLE, variant_text(runs, "class_space.identifiability")),
        findings=[
            *told({label: _findings(table, compared.get(label)) for label, table in tables.items()}, len(runs) > 1),
            *told({label: [learnt_finding(rows)] for label, rows in learnt.items()}, len(runs) > 1),
        ],
        order=20,
        card=_card(tables),
    )


def _card(tables: Tables) -> Card | None:
    """How many patches know the class at the end, and how that grows from block to block."""
    rows = {label: over_blocks(table, "resid_post", "image") for label, table in tables.items()}
    return rates_card(
        rows,
        "Where does it know the class?",
        says="of image patches, read alone, name the true class at the end",
        name="image patches that name the class",
        across="blocks",
        chance=max((100 / float(table["n_classes"].iloc[-1]) for table in rows.values() if len(table)), default=None),
        order=20,
    )


def variant_text(runs: Runs, analysis: str) -> str:
    """'variant exact, final norm and head own', from the runs' configuration."""
    found = []
    for run in runs.values():
        options = (run.config.get("analyses") or {}).get(analysis) or {}
        found.append(f"variant {options.get('variant', 'exact')}, head {options.get('head', 'own')}")
    return " / ".join(sorted(set(found)))


def draw_levels(tables: Tables, labels: list[str]) -> Figure:
    """Mean r above, rate of r = 1 below; a column per kind of token, a line per model."""
    kinds, styles = kinds_of(tables), f.model_styles(labels)
    fig, axes = f.new_figure(height=4.4, rows=2, columns=len(kinds))
    blocks = blocks_of(tables)
    for i, (column, title) in enumerate((("mean", "identifiability r"), ("rate", "tokens with r = 1 (%)"))):
        for j, kind in enumerate(kinds):
            ax, last = axes[i * len(kinds) + j], j == len(kinds) - 1
            for label, table in tables.items():
                rows = table[(table["point"] == "resid_post") & (table["tokens"] == kind)].sort_values("block")
                if not len(rows):
                    continue
                banded(ax, rows, column, styles[label], "rate_" if column == "rate" else "")
                control_line(ax, rows, column, last and label == next(iter(tables)))
            if column == "mean":
                for place, level in enumerate(chance_levels(tables)):
                    f.null_line(ax, level, "chance" if last and place == 0 else "_")
                ax.set_ylim(min(0.4, ax.get_ylim()[0]), 1.02)
            else:
                ax.set_ylim(0, max(5, ax.get_ylim()[1]))
            f.block_axis(ax, blocks, "block" if i else "")
            f.label_axes(ax, y=f"{named(kind)}: {title}")
            f.direct_labels(ax)
    name_models(fig, labels, tables)
    return fig


def chance_levels(tables: Tables) -> list[float]:
    """Mean r of a random order, for each number of classes that a model has; none for tables that do not say."""
    counts = {int(k) for table in tables.values() if "n_classes" in table for k in table["n_classes"].unique()}
    return [chance(k) for k in sorted(counts)]


def _chance_text(tables: Tables) -> str:
    return " or ".join(short(level) for level in chance_levels(tables)) or "chance"


def draw_layers(tables: Tables) -> Figure:
    """Share of tokens whose logit rises; a row per model, a column per kind of token, a line per point."""
    kinds = kinds_of(tables, ("class", "image"))
    fig, axes = f.new_figure(height=0.8 + 1.8 * len(tables), rows=len(tables), columns=len(kinds))
    blocks = blocks_of(tables)
    for i, (label, table) in enumerate(tables.items()):
        for j, kind in enumerate(kinds):
            ax = axes[i * len(kinds) + j]
            for point, style in POINT_STYLES.items():
                rows = table[(table["point"] == point) & (table["tokens"] == kind)].sort_values("block")
                banded(ax, rows, "rate", style, "rate_")
            f.null_line(ax, 50, "_")
            ax.set_ylim(0, 102)
            f.block_axis(ax, blocks, "block" if i == len(tables) - 1 else "")
            f.label_axes(ax, y=f"{who(f.ellipsis(label), len(tables) > 1)}{named(kind)}: logit rises (%)")
    handles = [Line2D([], [], color=s.colour, marker=s.marker) for s in POINT_STYLES.values()]
    fig.legend(handles, list(POINT_NAMES.values()), loc="outside lower center", ncols=3)
    return fig


def draw_comparison(tables: Tables, labels: list[str]) -> Figure:
    """Class-labelled minus context tokens: identifiability of the block output, logit change of the attention layer."""
    styles = f.model_styles(labels)
    shown = (
        ("identifiability", "resid_post", "block output: difference in r"),
        ("logit change", "attn_out", "attention: difference in logit change"),
    )
    fig, axes = f.new_figure(height=2.9, columns=2, share_y=False)
    for ax, (measure, point, title) in zip(axes, shown):
        wanted = {k: t[(t["measure"] == measure) & (t["point"] == point)] for k, t in tables.items()}
        draw_differences(ax, wanted, styles, title)
    name_models(fig, labels, tables)
    return fig


def _control_text(tables: Tables) -> str:
    return (
        " Dotted: the same architecture with random weights."
        if any("mean_control" in t.columns for t in tables.values())
        else ""
    )


def _findings(table: pd.DataFrame, compared: pd.DataFrame | None) -> list[Finding]:
    found = []
    rows = table[table["point"] == "resid_post"]
    for kind in kinds_of({"": table}, ("class", "image")):
        part = rows[rows["tokens"] == kind].sort_values("block")
        last = part.iloc[-1]
        early = part[part["rate"] >= last["rate"] / 2]["block"]
        span = interval(last.to_dict(), "rate_", " %")
        text = (
            f"{short(float(last['rate']))} % of the {named(kind)} ({span}) carry the true "
            f"class on top after the last block"
        )
        if kind == "image":
            text += f", in {short(float(last['images_with']))} % of the images at least one does"
        if len(early) and float(last["rate"]) > 0:
            text += f"; half of that is reached at block {int(early.iloc[0])} of {len(part) - 1}"
        found.append(Finding(text + ".", 0.75 if kind == "image" else 0.5))
    if compared is not None:
        part = compared[(compared["measure"] == "identifiability") & (compared["point"] == "resid_post")]
        clear = part[(part["p_holm"] < 0.05) & (part["difference"] > 0)]
        top = largest(part, "difference")
        text = (
            f"tokens on the object identify the class better than context tokens in {len(clear)} "
            f"of {len(part)} blocks (sign-flip test over {int(top['n_images']):,} images, corrected); the difference "
            f"is largest in block {int(top['block'])}: {short(float(top['difference']))} ({interval(top)})."
        )
        found.append(Finding(text, 0.65))
    return found
