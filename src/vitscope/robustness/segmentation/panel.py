"""The pictures of a segmentation that is corrupted or attacked: mean IoU per corruption, severity and budget."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import counts, name_models, protocol, stacked, tables_of, told
from vitscope.robustness.attack_panel import attack_style
from vitscope.robustness.evaluation.corruption_panel import corruption_card, draw_maps, draw_severity

NAME = "mean IoU (%)"
ATTACKED = "segmentation_attack"


@register_panel("segmentation_corruptions")
def corruption_panel(runs: Runs) -> Panel | None:
    """Table `segmentation`, where it has conditions."""
    found = tables_of(runs, "segmentation")
    tables = {label: t[t["metric"] == "mean_iou"] for label, t in found.items() if (t["severity"] > 0).any()}
    if not tables:
        return None
    labels = list(runs)
    n = counts(tables)
    figures = {"segmentation_corruptions": draw_maps(tables, labels, "value", NAME)}
    alt = {"segmentation_corruptions": "Mean IoU of each corruption at each severity, one map per model"}
    captions = {
        "segmentation_corruptions": f"Mean IoU (%), corrupted at the size that goes into the model, {n} images per "
        "cell. First column: clean images."
    }
    if any(t["severity"].nunique() > 2 for t in tables.values()):
        figures["segmentation_severity"] = draw_severity(tables, labels, "value", NAME)
        alt["segmentation_severity"] = "Mean IoU against severity for each family of corruptions"
        captions["segmentation_severity"] = f"Mean over the corruptions of a family. n = {n} images."
    moving = any((t["corruption"] == "elastic_transform").any() for t in tables.values())
    return Panel(
        key="segmentation_corruptions",
        lens="Corruptions",
        title="Which corruptions break the segmentation, and how soon?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "Read a row from left to right: a mean IoU that stays is robustness. "
            + ("elastic_transform moves things, and label maps were moved along; all other " if moving else "")
            + f"{'c' if moving else 'C'}orruptions blur, veil or recolour things where they are."
        ),
        tables={"segmentation": stacked(tables)},
        protocol=protocol(runs, "segmentation", "differences to clean are paired by image"),
        findings=told({label: [_corrupted(table)] for label, table in tables.items()}, len(runs) > 1),
        order=24,
        card=corruption_card(tables, "value", "mean IoU"),
    )


def _corrupted(table: pd.DataFrame) -> Finding:
    rows = table[table["severity"] > 0]
    by_name = rows.groupby("corruption")["value"].mean().sort_values(kind="stable")
    worst, best = str(by_name.index[0]).replace("_", " "), str(by_name.index[-1]).replace("_", " ")
    text = (
        f"mean IoU {short(float(rows['value'].mean()))} % under {rows['corruption'].nunique()} corruptions, "
        f"{short(float(rows['clean'].iloc[0]))} % on clean images"
    )
    if len(by_name) > 1:
        low, high = (short(float(by_name.iloc[i])) for i in (0, -1))
        text += f"; hardest: {worst} ({low} %), mildest: {best} ({high} %)"
    return Finding(text + ".", 0.7)


@register_panel("segmentation_attack")
def attack_panel(runs: Runs) -> Panel | None:
    """Table `segmentation_attack`: mean IoU against budget per model and attack."""
    tables = {label: t[t["metric"] == "mean_iou"] for label, t in tables_of(runs, ATTACKED).items()}
    if not tables:
        return None
    n = counts(tables)
    return Panel(
        key=ATTACKED,
        lens="Attacks",
        title="How easily does the segmentation break?",
        figures={ATTACKED: draw_budgets(tables, list(runs))},
        alt={ATTACKED: "Mean IoU against the attacker's budget, per model and attack"},
        captions={
            ATTACKED: f"Mean IoU under attack; bands: 95 % intervals over images (bootstrap); leftmost: no attack. "
            f"n = {n} images."
        },
        reading=(
            "An attack raises the loss summed over all pixels of a picture; noise of the same size is what chance can "
            "do. The strongest curve is an upper bound: no attack proves that there is no stronger one."
        ),
        tables={ATTACKED: stacked(tables_of(runs, ATTACKED))},
        protocol=protocol(runs, ATTACKED, str(next(iter(tables.values()))["protocol"].iloc[0])),
        findings=told({label: [_attacked(table)] for label, table in tables.items()}, len(runs) > 1),
        order=40,
        card=_attack_card(tables),
    )


def _attack_card(tables: Tables) -> Card | None:
    """What the strongest attack that all were given leaves, at the smallest budget that all have."""
    common = set.intersection(*({*zip(t["attack"], t["epsilon"], t["eps"])} for t in tables.values()))
    given = sorted(each for each in common if each[1] > 0)
    if not given:
        return None
    least = min(epsilon for _, epsilon, _ in given)

    def rows(attack: str) -> dict[str, Any]:
        chosen = {label: t[(t["attack"] == attack) & (t["epsilon"] == least)] for label, t in tables.items()}
        return {label: t.iloc[0] for label, t in chosen.items()}

    smallest = [each for each in given if each[1] == least]
    name, _, budget = min(smallest, key=lambda each: sum(row["value"] for row in rows(each[0]).values()))
    curves = {label: t[t["attack"] == name].sort_values("epsilon") for label, t in tables.items()}
    return Card(
        question="How easily does it break?",
        values={label: Value(row["value"], row["low"], row["high"]) for label, row in rows(name).items()},
        says=f"mean overlap (IoU) when the attack {name} moves pixels by {budget}",
        name=f"mean IoU under {name} of {budget}",
        lines={label: [float(t["clean"].iloc[0]), *t["value"].tolist()] for label, t in curves.items()},
        across="budget, from none on",
        order=30,
    )


def draw_budgets(tables: Tables, labels: list[str]) -> Figure:
    """One picture per attack where there are several models, else all attacks in one."""
    attacks = list(dict.fromkeys(a for t in tables.values() for a in t["attack"]))
    alone = len(tables) == 1
    columns = 1 if alone else len(attacks)
    fig, axes = f.new_figure(width=f.PAGE * (0.72 if alone else 1), height=2.9, columns=columns)
    styles = f.model_styles(labels)
    for label, table in tables.items():
        for i, attack in enumerate(attacks):
            rows: Any = table[table["attack"] == attack]
            if not len(rows):
                continue
            clean = float(rows["clean"].iloc[0])
            x, y = [0.0, *(255 * rows["epsilon"])], [clean, *rows["value"]]
            low, high = ([clean, *rows[end]] for end in ("low", "high"))
            style = attack_style(attack, i) if alone else styles[label]
            f.line_per_block(
                axes[0 if alone else i], x, y, style=style, label=attack if alone else "_", low=low, high=high
            )
    norm = str(next(iter(tables.values()))["norm"].iloc[0])
    for i, ax in enumerate(axes):
        ax.set_ylim(bottom=0)
        ax.set_xlim(left=0)
        f.label_axes(ax, x=f"{norm} budget (1/255)", y=NAME, title="" if alone else attacks[i])
    if alone:
        f.direct_labels(axes[0])
    name_models(fig, labels, tables)
    return fig


def _attacked(table: pd.DataFrame) -> Finding:
    worst = table.sort_values(["value", "epsilon"], kind="stable").iloc[0]
    text = (
        f"the attack {worst['attack']} with a budget of {worst['eps']} ({worst['norm']}) leaves a mean IoU of "
        f"{short(float(worst['value']))} % of {short(float(worst['clean']))} %"
    )
    if worst["change_low"] == worst["change_low"]:
        low, high = short(float(worst["change_low"])), short(float(worst["change_high"]))
        text += f" (change, paired by image: 95 % interval {low} to {high} points)"
    return Finding(text + ".", 0.75)
