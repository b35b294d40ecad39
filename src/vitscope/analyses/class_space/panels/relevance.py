"""Which relevance method is faithful, and which one finds the object?"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscope.analyses.class_space.panels.identifiability import variant_text
from vitscope.analyses.class_space.panels.parts import images_text, interval, largest, records, who
from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import protocol, stacked, tables_of, told

TABLE, CURVES = "relevance", "relevance_curves"
STYLES = {
    "class_gradients": f.LineStyle(f.BLUE, "o"),
    "class_gradients_code": f.LineStyle(f.SKY, "o", "--"),
    "chefer": f.LineStyle(f.VERMILLION, "s"),
    "rollout": f.LineStyle(f.GREEN, "^"),
    "attention": f.LineStyle(f.ORANGE, "D"),
    "gradient_x_input": f.LineStyle(f.PURPLE, "v"),
    "class_gradients_probability": f.LineStyle(f.INK, "o", "-."),
    "class_gradients_logit": f.LineStyle(f.INK, "o"),
    "random": f.LineStyle(f.MUTED, "", ":"),
}
NAMES = {
    "class_gradients": "class gradients",
    "class_gradients_code": "class gradients (code)",
    "chefer": "Chefer et al.",
    "rollout": "rollout",
    "attention": "attention",
    "gradient_x_input": "gradient x input",
    "class_gradients_probability": "class gradients (probability)",
    "class_gradients_logit": "class gradients (logit)",
    "random": "random",
}


@register_panel("class_space_relevance")
def relevance_panel(runs: Runs) -> Panel | None:
    """Perturbation curves and the table of methods."""
    tables, curves = tables_of(runs, TABLE), tables_of(runs, CURVES)
    if not tables:
        return None
    masked = any("pointing" in t.columns for t in tables.values())
    figures = {"class_space_relevance": draw_curves(curves)}
    captions = {
        "class_space_relevance": "Accuracy from the class token and a share of the image tokens. Left: the most "
        "relevant are kept (higher is better); right: the most relevant are removed first (lower is better). "
        f"Grey dots: random order. {images_text(tables)}."
    }
    alt = {"class_space_relevance": "Accuracy against the share of image tokens kept, per relevance method"}
    if masked:
        figures["class_space_localisation"] = draw_methods(tables)
        captions["class_space_localisation"] = (
            "Faithfulness against localisation: area under the negative curve, and average precision of object tokens "
            "ranked by relevance; bars: 95 % intervals over images. Dashed: the share of object tokens, which a random "
            "order scores."
        )
        alt["class_space_localisation"] = "Area under the negative perturbation curve against average precision"
    return Panel(
        key="class_space_relevance",
        lens="Class space",
        title="Which tokens did the answer come from?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "A faithful map keeps the accuracy up when only its best tokens are left, and lets it fall when they go "
            "first. Pointing at the object is another matter: a model may well answer from the context."
            + ("" if masked else " There are no masks, so localisation is left out.")
        ),
        tables={TABLE: stacked(tables), CURVES: stacked(curves)},
        protocol=protocol(runs, TABLE, variant_text(runs, "relevance") + unusual_text(runs)),
        findings=told({label: _findings(table) for label, table in tables.items()}, len(runs) > 1),
        order=28,
    )


def unusual_text(runs: Runs) -> str:
    """', maps of block 3, attention_head 1, target prediction'; '' where all is usual."""
    found = []
    for run in runs.values():
        options = (run.config.get("analyses") or {}).get("relevance") or {}
        usual = {"block": None, "attention_head": None, "target": "label"}
        chosen = [
            f"{key.replace('_', ' ')} {options[key]}"
            for key, value in usual.items()
            if options.get(key, value) != value
        ]
        found.append(", ".join(chosen))
    text = " / ".join(sorted(set(found) - {""}))
    return f", maps of {text}" if text else ""


def draw_curves(curves: Tables) -> Figure:
    """A row per model: negative and positive perturbation."""
    fig, axes = f.new_figure(height=0.9 + 2.1 * len(curves), rows=len(curves), columns=2)
    for i, (label, table) in enumerate(curves.items()):
        for j, (direction, title) in enumerate(
            (("negative", "most relevant kept"), ("positive", "most relevant gone"))
        ):
            ax = axes[2 * i + j]
            for method, style in STYLES.items():
                rows = table[(table["method"] == method) & (table["direction"] == direction)].sort_values("kept")
                f.line_per_block(ax, rows["share"], rows["accuracy"], style=style, label="_", markers=False)
            ax.set_xlim(0, 1)
            ax.set_ylim(bottom=0)
            f.percent_axis(ax, "x")
            x = "image tokens kept" if i == len(curves) - 1 else ""
            f.label_axes(ax, x=x, y=f"{who(f.ellipsis(label), len(curves) > 1)}accuracy (%), {title}")
    shown = [m for m in STYLES if any(m in set(t["method"]) for t in curves.values())]
    handles = [Line2D([], [], color=STYLES[m].colour, linestyle=STYLES[m].dash) for m in shown]  # type: ignore[arg-type]
    fig.legend(handles, [NAMES[m] for m in shown], loc="outside lower center", ncols=4)
    return fig


def draw_methods(tables: Tables) -> Figure:
    """One point per method, named beside it."""
    masked = {label: t for label, t in tables.items() if "pointing" in t.columns}
    fig, axes = f.new_figure(width=f.PAGE * 0.75, height=0.6 + 2.6 * len(masked), rows=len(masked))
    for ax, (label, table) in zip(axes, masked.items()):
        for row in table.to_dict("records"):
            style = STYLES[str(row["method"])]
            x, y = row["negative_area"], row["average_precision"]
            ax.hlines(y, row["negative_low"], row["negative_high"], color=style.colour, linewidth=1)
            ax.vlines(x, row["average_precision_low"], row["average_precision_high"], color=style.colour, linewidth=1)
            ax.plot([x], [y], marker=style.marker or "o", color=style.colour, linestyle="")
            ax.annotate(
                NAMES[str(row["method"])], (x, y), xytext=(5, 4), textcoords="offset points", fontsize=7.5, color=f.INK
            )
        f.null_line(ax, float(table["object_share"].iloc[0]), "object share")
        f.direct_labels(ax)
        f.label_axes(
            ax, x="area under the negative curve", y=f"{who(f.ellipsis(label), len(masked) > 1)}average precision"
        )
    return fig


def _findings(table: pd.DataFrame) -> list[Finding]:
    real, chance = table[table["method"] != "random"], records(table, "method")["random"]
    if not len(real):
        return []
    best = largest(real, "negative_area")
    text = (
        f"{NAMES[best['method']]} gives the most faithful maps: area "
        f"{short(float(best['negative_area']))} under the negative curve against "
        f"{short(float(chance['negative_area']))} for random order (gain {short(float(best['negative_gain']))}, "
        f"{interval(best, 'negative_gain_')})"
    )
    if "average_precision" in real.columns:
        finder = largest(real, "average_precision")
        text += (
            f"; {NAMES[finder['method']]} finds the object best (average precision "
            f"{short(float(finder['average_precision']))}, chance {short(float(finder['object_share']))})"
        )
    return [Finding(text + ".", 0.6)]
