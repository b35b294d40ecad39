"""What does a token's knowledge rest on?"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscope.analyses.class_space.conventions import REMOVALS
from vitscope.analyses.class_space.panels.identifiability import variant_text
from vitscope.analyses.class_space.panels.parts import images_text, interval, named, records, who
from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import protocol, stacked, tables_of, told

TABLE, ACCURACY = "perturbation", "perturbation_accuracy"
NAMES = {
    "self_only": "image tokens see only themselves",
    "no_cls": "image tokens do not see the class token",
    "no_cls_bare": "the same, rows not renormalised",
    "without_context": "context tokens removed",
    "without_class": "class-labelled tokens removed",
}


@register_panel("class_space_perturbation")
def perturbation_panel(runs: Runs) -> Panel | None:
    """Before and after, the same tokens on both sides."""
    tables, accuracies = tables_of(runs, TABLE), tables_of(runs, ACCURACY)
    if not tables:
        return None
    return Panel(
        key="class_space_perturbation",
        lens="Class space",
        title="What does a token's knowledge rest on?",
        figures={"class_space_perturbation": draw_pairs(tables, accuracies)},
        alt={"class_space_perturbation": "Identifiable tokens and accuracy before and after each perturbation"},
        captions={
            "class_space_perturbation": "Open: unperturbed, filled: perturbed; the same tokens of the same images. "
            "Left: tokens with r = 1 after the last block; bars: 95 % intervals of the change, over images. Right: "
            f"accuracy, with 95 % Wilson intervals. {images_text(accuracies)}."
        },
        reading=(
            "A long line means that the tokens needed what was taken from them. Perturbations of attention hold in the "
            "blocks that the protocol names; removals take tokens away after the position embedding."
            + _missing_text(runs, accuracies)
        ),
        tables={TABLE: stacked(tables), ACCURACY: stacked(accuracies)},
        protocol=protocol(runs, TABLE, f"{variant_text(runs, 'perturbation')}, {edited_text(runs)}"),
        findings=told({label: _findings(table) for label, table in tables.items()}, len(runs) > 1),
        order=26,
    )


def edited_text(runs: Runs) -> str:
    """'attention edited in all blocks', or in which."""
    found = []
    for run in runs.values():
        blocks = ((run.config.get("analyses") or {}).get("perturbation") or {}).get("blocks")
        found.append("all blocks" if blocks is None else f"block(s) {', '.join(map(str, blocks))}")
    return f"attention edited in {' / '.join(sorted(set(found)))}"


def _missing_text(runs: Runs, accuracies: Tables) -> str:
    """Which models have no removals although they were asked for, as they are unless `kinds` says otherwise."""
    missing = []
    for label, table in accuracies.items():
        kinds = ((runs[label].config.get("analyses") or {}).get("perturbation") or {}).get("kinds")
        if any(k not in set(table["perturbation"]) for k in REMOVALS if kinds is None or k in kinds):
            missing.append(label)
    return f" No masks: {', '.join(missing)} has no removal of context or class-labelled tokens." if missing else ""


def last_rows(table: pd.DataFrame) -> pd.DataFrame:
    """One row per perturbation: the last block, the tokens it is about."""
    about = table["tokens"].isin(["image", "object", "context"])
    return table[about & (table["block"] == table["block"].max())]


def draw_pairs(tables: Tables, accuracies: Tables) -> Figure:
    """A row per model; rates on the left, accuracy on the right."""
    kinds = [k for k in NAMES if any(k in set(t["perturbation"]) for t in accuracies.values())]
    fig, axes = f.new_figure(
        height=0.8 + (0.4 * len(kinds) + 0.35) * len(tables), rows=len(tables), columns=2, share_x=False
    )
    for i, (label, table) in enumerate(tables.items()):
        left, right = axes[2 * i], axes[2 * i + 1]
        last, accuracy = records(last_rows(table), "perturbation"), records(accuracies[label], "perturbation")
        for place, kind in enumerate(kinds):
            if kind in last:
                row = last[kind]
                low, high = (row["rate_before"] + row[f"rate_change_{end}"] for end in ("low", "high"))
                left.hlines(place, low, high, color=f.BLUE, alpha=0.35, lw=5)
                _pair(left, place, row["rate_before"], row["rate_after"])
            if kind in accuracy:
                row = accuracy[kind]
                right.hlines(
                    place, row["accuracy_after_low"], row["accuracy_after_high"], color=f.BLUE, alpha=0.35, lw=5
                )
                _pair(right, place, row["accuracy_before"], row["accuracy_after"])
        names = [f"{NAMES[k]}:\n{named(last[k]['tokens'])}" if k in last else NAMES[k] for k in kinds]
        left.set_yticks(range(len(kinds)), names)
        left.set_ylim(len(kinds) - 0.5, -0.5)
        largest = max(max(row["rate_before"], row["rate_after"]) for row in last.values())
        for ax, title, end in ((left, "tokens with r = 1 (%)", max(5, 1.15 * largest)), (right, "accuracy (%)", 100)):
            ax.set_xlim(0, end)
            ax.grid(visible=True, axis="x")
            ax.grid(visible=False, axis="y")
            f.label_axes(ax, y=f"{who(f.ellipsis(label), len(tables) > 1)}{title}")
    return fig


def _pair(ax: Axes, place: int, before: float, after: float) -> None:
    ax.plot([before, after], [place, place], color=f.MUTED, linewidth=1, zorder=1)
    ax.plot([before], [place], marker="o", markerfacecolor=f.PAPER, markeredgecolor=f.BLUE, linestyle="", clip_on=False)
    ax.plot([after], [place], marker="o", color=f.BLUE, linestyle="", clip_on=False)


def _findings(table: pd.DataFrame) -> list[Finding]:
    last = records(last_rows(table), "perturbation")
    found = []
    for kind, interest in (("self_only", 0.6), ("no_cls", 0.5), ("without_context", 0.55)):
        if kind in last:
            row = last[kind]
            before, after, change = (short(float(row[f"rate_{part}"])) for part in ("before", "after", "change"))
            text = (
                f"{NAMES[kind]}: {after} % of the {named(row['tokens'])} identify the class "
                f"instead of {before} % (change {change} points, {interval(row, 'rate_change_')})."
            )
            found.append(Finding(text, interest))
    return found
