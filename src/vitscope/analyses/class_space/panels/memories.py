"""Do the weights hold class prototypes?"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.class_space.panels import parts as p
from vitscope.analyses.class_space.panels.identifiability import variant_text
from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import blocks_of, name_models, protocol, stacked, tables_of, told

TABLE, WEIGHTS = "class_space_memories", "class_space_value_agreement"
OUTCOME, BY_OUTCOME = "class_space_memories_right_wrong", "class_space_memories_by_outcome"
LAYERS = {"attn": "attention", "mlp": "MLP"}
NULL = f.LineStyle(f.MUTED, "", "--")


@register_panel("class_space_memories")
def memories_panel(runs: Runs) -> Panel | None:
    """Agreement of classes with the weights' value vectors, and how often tokens use the right ones."""
    tables, weights = tables_of(runs, TABLE), tables_of(runs, WEIGHTS)
    if not tables:
        return None
    directions = {label: _last_head(table) for label, table in weights.items()}
    more = {name: stacked(found) for name in (BY_OUTCOME, OUTCOME) if (found := tables_of(runs, name))}
    figures = {"class_space_memories": draw_memories(tables, directions, list(runs))}
    outcomes = tables_of(runs, OUTCOME)
    if outcomes:
        figures[OUTCOME] = draw_outcomes(outcomes, list(runs))
    return Panel(
        key="class_space_memories",
        lens="Class space",
        title="Do the weights hold class prototypes?",
        figures=figures,
        alt={
            "class_space_memories": "Class-value agreement, key-value agreement and compositionality per block",
            OUTCOME: "Key-value agreement of rightly minus wrongly classified images per block",
        },
        captions={
            OUTCOME: "Key-value agreement of the class token: share of the rightly classified images in which it "
            "agrees, minus that of the wrongly classified ones. Bars: 95 % intervals (Newcombe). Filled: p < 0.05, "
            "exact test that right images agree more, Holm-corrected over blocks.",
            "class_space_memories": "Left: mean over classes of the best cosine between class direction and a value "
            "vector (dotted: random weights). Middle: image tokens for which one of the 5 largest coefficients "
            "belongs to one of the 5 memories with the largest logit for the true class"
            + (" (grey: for another class, drawn at random)" if _have(tables, "agreement_null") else "")
            + ". Right: image tokens whose "
            f"layer output has the top class of one of its 5 largest memories. {p.images_text(tables)}; bands: 95 % "
            "intervals over images." + (" Dotted: random weights." if _have(tables, "agreement_control") else ""),
        },
        reading=(
            "A memory is a column of a layer's last weight matrix, and its coefficient says how strongly a token calls "
            "it. High on the left: classes are written in the weights; high in the middle: tokens call the right ones."
        ),
        tables={TABLE: stacked(tables), WEIGHTS: stacked(weights), **more},
        protocol=protocol(runs, TABLE, variant_text(runs, "class_space.memories")),
        findings=told({label: _findings(t, directions[label]) for label, t in tables.items()}, len(runs) > 1),
        order=24,
    )


def _last_head(weights: pd.DataFrame) -> pd.DataFrame:
    """Of a distilled model's heads the one that image tokens go through, which the table has last."""
    return weights[weights["head"] == weights["head"].iloc[-1]] if "head" in weights else weights


def _have(tables: Tables, column: str) -> bool:
    return any(column in t.columns for t in tables.values())


def draw_memories(tables: Tables, weights: Tables, labels: list[str]) -> Figure:
    """Rows: attention and MLP; columns: weights, key-value agreement, compositionality."""
    styles = f.model_styles(labels)
    fig, axes = f.new_figure(height=4.2, rows=2, columns=3, share_y=False)
    blocks = blocks_of(tables)
    tops = [0.0, 0.0, 0.0]
    for i, (layer, name) in enumerate(LAYERS.items()):
        columns = (("mean", "class-value cosine"), ("agreement", "key-value (%)"), ("composed", "composed (%)"))
        for j, (column, title) in enumerate(columns):
            ax = axes[3 * i + j]
            for label, table in tables.items():
                if j == 0:
                    rows = weights[label][weights[label]["layer"] == layer].sort_values("block")
                    f.line_per_block(ax, rows["block"], rows["mean"], style=styles[label], label="_")
                else:
                    kind = "image" if "image" in set(table["tokens"]) else "class"
                    rows = table[(table["layer"] == layer) & (table["tokens"] == kind)].sort_values("block")
                    p.banded(ax, rows, column, styles[label], f"{column}_")
                if j == 1 and "agreement_null" in rows:
                    f.line_per_block(ax, rows["block"], rows["agreement_null"], style=NULL, label="_", markers=False)
                p.control_line(ax, rows, column, j == 2 and label == next(iter(tables)))
            tops[j] = max(tops[j], ax.get_ylim()[1])
            f.block_axis(ax, blocks, "block" if i else "")
            p.few_ticks(ax)
            f.label_axes(ax, y=f"{name}: {title}")
    for j in range(3):  # the same scale for attention and MLP
        for i in range(2):
            axes[3 * i + j].set_ylim(0, tops[j])
            f.direct_labels(axes[3 * i + j])
    name_models(fig, labels, tables)
    return fig


def draw_outcomes(tables: Tables, labels: list[str]) -> Figure:
    """Agreement of right minus wrong images; a column for attention and one for the MLP."""
    styles = f.model_styles(labels)
    fig, axes = f.new_figure(height=2.6, columns=2)
    for ax, (layer, name) in zip(axes, LAYERS.items()):
        wanted = {label: table[table["layer"] == layer] for label, table in tables.items()}
        p.draw_differences(ax, wanted, styles, f"{name}: right minus wrong (points)")
    name_models(fig, labels, tables)
    return fig


def _findings(table: pd.DataFrame, weights: pd.DataFrame) -> list[Finding]:
    best = p.largest(weights, "mean")
    clear = int((weights["p_holm"] < 0.05).sum())
    text = (
        f"the best value vector of a class has a cosine of {short(float(best['mean']))} with it "
        f"in the {LAYERS[str(best['layer'])]} of block {int(best['block'])} (random weights: "
        f"{short(float(best['mean_control']))}); {clear} of {len(weights)} layers lie above random weights "
        f"(sign-flip test over {int(best['n_classes']):,} classes, corrected)."
    )
    found = [Finding(text, 0.4)]
    image = table[table["tokens"] == "image"]
    if len(image):
        top = p.largest(image, "agreement")
        text = (
            f"{short(float(top['agreement']))} % of the image tokens "
            f"({p.interval(top, 'agreement_', ' %')}) call a memory of the true class in the "
            f"{LAYERS[str(top['layer'])]} of block {int(top['block'])}."
        )
        found.append(Finding(text, 0.45))
    return found
