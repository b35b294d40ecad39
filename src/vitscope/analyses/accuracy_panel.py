"""The picture of `accuracy`: how often right, whether confidence can be believed, and which classes are hard."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.conventions import BINS
from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import counts, name_models, protocol, stacked, tables_of, told

LEAST_PER_CLASS, MOST_CLASSES = 5, 24  # an accuracy of fewer images says nothing; more rows nobody reads


@register_panel("accuracy")
def accuracy_panel(runs: Runs) -> Panel | None:
    """How often right, whether confidence can be believed, and which classes are hard."""
    overall, bins = tables_of(runs, "accuracy"), tables_of(runs, "calibration")
    if not overall or not bins:
        return None
    n = counts(overall)
    figures = {"calibration": draw_calibration(bins, list(runs))}
    alt = {"calibration": "Share of right answers against the model's confidence, beside the diagonal of honest models"}
    captions = {
        "calibration": f"Dots: images binned by confidence, the size grows with their number; bars: 95 % Wilson "
        f"interval of the share right; dashed: confidence that can be taken at its word. n = {n} images."
    }
    classes = tables_of(runs, "accuracy_per_class")
    if any(len(worth_drawing(table)) >= 2 for table in classes.values()):
        figures["accuracy_per_class"] = draw_classes(classes, list(runs))
        alt["accuracy_per_class"] = "Top-1 accuracy of each class with its interval, hardest class first"
        captions["accuracy_per_class"] = (
            f"Classes with at least {LEAST_PER_CLASS} images, at most {MOST_CLASSES}, hardest first; "
            "bars: 95 % Wilson interval."
        )
    return Panel(
        key="accuracy",
        lens="Accuracy",
        title="How often is the model right, and does it know when it is?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "On the dashed diagonal, of all answers given with 80 % confidence, 80 % are right. "
            "Below it the model promises more than it keeps, above it less."
        ),
        tables={"accuracy": stacked(overall), "accuracy_per_class": stacked(classes)},
        protocol=protocol(runs, "accuracy", f"all classes, top-5 of the head, ECE over {BINS} equal-width bins"),
        findings=told({label: _findings(t, bins[label]) for label, t in overall.items()}, len(runs) > 1),
        order=20,
        card=_card(overall),
    )


def _card(overall: Tables) -> Card:
    top1 = {label: table[table["metric"] == "top1"].iloc[0] for label, table in overall.items()}
    sizes = sorted({int(row["n"]) for row in top1.values()})
    return Card(
        question="Is it right?",
        values={label: Value(row["value"], row["low"], row["high"]) for label, row in top1.items()},
        says=f"of {' or '.join(map(short, sizes))} images recognised",
        name="images recognised",
        order=10,
    )


def worth_drawing(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["n"] >= LEAST_PER_CLASS]


def by_name(table: pd.DataFrame) -> pd.DataFrame:
    """Indexed by the classes' names; classes that share one are told apart by their numbers."""
    doubled = table["class_name"].duplicated(keep=False)
    if not doubled.any():
        return table.set_index("class_name")
    numbered = table["class_name"] + " (" + table["label"].astype(str) + ")"
    return table.set_index(table["class_name"].where(~doubled, numbered))


def draw_calibration(tables: Tables, labels: list[str]) -> Figure:
    """Accuracy against confidence, one colour per model."""
    fig, (ax,) = f.new_figure(width=f.PAGE * 0.72, height=3.1 + 0.2 * (len(tables) > 1))
    ax.plot([0, 1], [0, 1], color=f.MUTED, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    for label, style in f.model_styles(labels).items():
        if label not in tables:
            continue
        t = tables[label]
        x, y = t["confidence"].to_numpy(), t["accuracy"].to_numpy()
        ax.vlines(x, t["accuracy_low"], t["accuracy_high"], color=style.colour, linewidth=1, alpha=0.7)
        ax.scatter(x, y, s=8 + 90 * t["n"] / t["n"].sum(), color=style.colour, marker=style.marker, zorder=3)
        ax.plot(x, y, color=style.colour, linestyle=style.dash, linewidth=1.2)
    ax.set(xlim=(0, 1.01), ylim=(0, 1.01))
    for axis in ("x", "y"):
        f.percent_axis(ax, axis)
    f.label_axes(ax, x="confidence of the answer", y="answers that are right")
    name_models(fig, labels, tables)
    return fig


def draw_classes(tables: Tables, labels: list[str]) -> Figure:
    """Top-1 per class, the hardest on average first."""
    drawn = {label: by_name(worth_drawing(table)) for label, table in tables.items()}
    means = pd.concat([t["top1"] for t in drawn.values()]).groupby(level=0).mean().sort_values(kind="stable")
    names = list(means.index[:MOST_CLASSES])
    fig, (ax,) = f.new_figure(height=0.55 + 0.17 * len(names) * max(1, len(drawn) ** 0.5))
    styles = {label: style for label, style in f.model_styles(labels).items() if label in drawn}
    for i, (label, style) in enumerate(styles.items()):
        t = drawn[label].reindex([name for name in names if name in drawn[label].index])
        y = [names.index(name) + 0.5 * ((i + 1) / (len(styles) + 1) - 0.5) for name in t.index]
        ax.hlines(y, t["top1_low"], t["top1_high"], color=style.colour, linewidth=1, alpha=0.7)
        ax.plot(t["top1"], y, linestyle="", marker=style.marker, color=style.colour)
    ax.set_yticks(range(len(names)), [f.ellipsis(str(name)) for name in names])
    ax.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, 101))
    ax.grid(True, axis="x")
    f.label_axes(ax, x="top-1 accuracy (%)")
    name_models(fig, labels, drawn)
    return fig


def _findings(overall: pd.DataFrame, bins: pd.DataFrame) -> list[Finding]:
    row = {r["metric"]: r for r in overall.to_dict("records")}
    top1, top5, ece = row["top1"], row["top5"], row["ece"]
    right = (
        f"{short(top1['value'])} % of {short(int(top1['n']))} images are recognised (95 % interval "
        f"{short(top1['low'])} to {short(top1['high'])} %), {short(top5['value'])} % within the first five."
    )
    confidence = 100 * float((bins["confidence"] * bins["n"]).sum() / bins["n"].sum())
    gap = confidence - top1["value"]
    manner = "more" if gap > 0 else "less"
    honest = (
        f"it is {short(abs(gap))} points {manner} confident than right (mean confidence {short(confidence)} %); "
        f"calibration error {short(ece['value'])} % (95 % interval {short(ece['low'])} to {short(ece['high'])} %)."
    )
    return [Finding(right, 0.7), Finding(honest, min(0.65, 0.3 + abs(gap) / 50))]
