"""Did the training go well? Loss and accuracy, mean IoU or perplexity, per epoch, from tables/training.csv."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.html_table import breakable
from vitscope.report.numbers import hover, percent, short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import stacked
from vitscope.report.slider import slider
from vitscope.report.sources import owner_of
from vitscope.runs import Run
from vitscope.runs.environment import find
from vitscope.tasks.words import Words

SLIDER_FRAMES = 120  # of the slider; a longer training shows every second, third, ... epoch
_WORDS = {
    "loss": ("loss", "nats"),
    "accuracy": ("accuracy", "%"),
    "mean_iou": ("mean IoU", "%"),
    "perplexity": ("perplexity", ""),
}
_SPLITS = (("train", "training"), ("test", "held-out"))
SHOWN = {
    **{f"{split}_{key}": (f"{of} {name}", unit) for key, (name, unit) in _WORDS.items() for split, of in _SPLITS},
    **{f"ema_test_{key}": (f"held-out {name}, averaged weights", unit) for key, (name, unit) in _WORDS.items()},
    "lr": ("learning rate", ""),
}
MEASURES = {"perplexity": "perplexity", "mean_iou": "mean IoU (%)", "accuracy": "accuracy (%)"}  # the first there is
SAYS = {
    "perplexity": "perplexity of held-out {}: it wavers between so many next tokens",
    "mean_iou": "mean overlap (IoU) on held-out {} at the end",
    "accuracy": "of held-out {} right at the end",
}
MANY = 4  # curves that can be told apart with their training curves beside them
_NO_SETTING = ("seed", "label", "workers", "device", "root")  # nor what begins with `track`


@dataclass(frozen=True)
class Curve:
    """One line of the figure: a training, or the trainings that differ in their seed alone."""

    name: str
    tables: tuple[pd.DataFrame, ...]

    def over_seeds(self, column: str) -> pd.DataFrame:
        """epoch, mean, low, high, n; epochs without a value of this column are left out."""
        tables = [t[["epoch", column]] for t in self.tables if column in t]
        if not tables:
            return pd.DataFrame({c: [] for c in ("epoch", "mean", "low", "high", "n")})
        values = pd.concat(tables).dropna().groupby("epoch")[column]
        return values.agg(mean="mean", low="min", high="max", n="count").reset_index()


@register_panel("training")
def training_panel(runs: Runs) -> Panel | None:
    """Columns: epoch, train_loss, train_accuracy, test_loss, test_accuracy, lr; accuracies are shares in [0, 1].

    An epoch without a held-out evaluation leaves those cells empty. Runs that differ in their seed alone share a line.
    """
    found = {label: run.table("training") for label, run in runs.items()}
    tables = {label: table for label, table in found.items() if table is not None and len(table)}
    if not tables:
        return None
    curves = curves_over_seeds(runs, tables)
    seeds = max(len(curve.tables) for curve in curves)
    who = " and ".join(curve.name for curve in curves) if len(curves) <= 3 else f"{len(curves)} models"
    measure, items = judged_by(tables.values()), _items(runs, tables)
    caption = f"Solid with markers: held-out {items}. Dashed: training {items}. One value per epoch."
    if len(curves) > MANY:
        caption = f"Held-out {items}. One value per epoch."
    if seeds > 1:
        caption += " Lines are means over seeds, bands reach from the smallest to the largest of them."
    labels = list(runs) if seeds == 1 else [curve.name for curve in curves]
    several, name = len(runs) > 1, MEASURES[measure].removesuffix(" (%)")
    told = [_finding(curve, measure, name_it=several) for curve in curves]
    return Panel(
        key="training",
        lens="Learning",
        title=f"Did it learn, and does that hold on {items} it has not seen?",
        figures={"training": draw_curves(curves, labels)},
        alt={"training": f"Loss and {name} per epoch of {who}: held-out {items} solid, training {items} dashed"},
        captions={"training": caption},
        reading=(
            "Both curves should level off; a loss that still falls at the right edge says that more epochs would help. "
            "A held-out curve that turns away from its training curve is overfitting."
        ),
        tables={"training": stacked(tables)},
        protocol=_protocol(runs, tables),
        findings=[finding for finding in told if finding],
        html=epoch_slider(curves),
        order=10,
        card=_card(curves, measure, items),
    )


def _card(curves: Sequence[Curve], measure: str, items: str) -> Card | None:
    """The held-out measure after the last epoch; over seeds from the smallest to the largest."""
    share = measure != "perplexity"
    columns = {curve.name: curve.over_seeds(f"test_{measure}") for curve in curves}
    columns = {name: rows for name, rows in columns.items() if len(rows)}
    if not columns:
        return None
    factor = 100.0 if share else 1.0
    return Card(
        question="Did it learn?",
        values={
            name: Value(factor * rows["mean"].iloc[-1], unit="%" if share else "") for name, rows in columns.items()
        },
        says=SAYS[measure].format(items),
        name=f"held-out {MEASURES[measure].removesuffix(' (%)')}",
        larger=share,
        lines={name: (factor * rows["mean"]).tolist() for name, rows in columns.items()},
        across="epochs",
        order=15,
    )


def judged_by(tables: Iterable[pd.DataFrame]) -> str:
    """Perplexity or mean IoU where all trainings have it, else accuracy."""
    tables = list(tables)
    return next((m for m in MEASURES if all(f"test_{m}" in table for table in tables)), "accuracy")


def _items(runs: Runs, tables: Tables) -> str:
    """What they learnt from, if all of them the same."""
    found = {Words.of_config(owner_of(runs[label], "training").config).items for label in tables}
    return found.pop() if len(found) == 1 else "items"


def curves_over_seeds(runs: Runs, tables: Tables) -> list[Curve]:
    """Trainings of the same configuration but for the seed, together; each named by its label, or by what differs."""
    groups: dict[str, list[str]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for label in tables:
        options = _settings(runs[label])
        key = json.dumps(options, sort_keys=True, default=str) if options else label
        groups.setdefault(key, []).append(label)
        settings[key] = options
    if len(groups) == len(tables):
        return [Curve(label, (table,)) for label, table in tables.items()]
    names = _names({key: runs[labels[0]].label for key, labels in groups.items()}, settings)
    return [Curve(names[key], tuple(tables[label] for label in labels)) for key, labels in groups.items()]


def _settings(run: Run) -> dict[str, Any]:
    """The options of a training that decide what it learns, without the seed."""
    options = owner_of(run, "training").config.get("options")
    return (
        {k: v for k, v in options.items() if k not in _NO_SETTING and not k.startswith("track")}
        if isinstance(options, dict)
        else {}
    )


def _names(labels: Mapping[str, str], settings: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Labels where they tell the groups apart, else the values of the options in which the groups differ."""
    if len(set(labels.values())) == len(labels):
        return dict(labels)
    options = list(settings.values())
    differing = [k for k in options[0] if any(o.get(k) != options[0].get(k) for o in options)]
    if not differing:
        return {key: f"{label} ({number})" for number, (key, label) in enumerate(labels.items(), 1)}
    return {
        key: ", ".join(_value(k, o.get(k), alone=len(differing) == 1) for k in differing) for key, o in settings.items()
    }


def _value(option: str, value: Any, *, alone: bool) -> str:
    text = str(value) if value not in ("", None) else "softmax" if option == "attention" else "none"
    return text if alone else f"{option}={text}"


def draw_curves(curves: Sequence[Curve], labels: list[str]) -> Figure:
    """Loss beside accuracy, or perplexity; one colour per model, `labels` being all models of the page."""
    styles = f.model_styles(labels)
    many = len(curves) > MANY
    columns = 2 if max(len(curve.name) for curve in curves) <= 36 else 1  # of the legend, where curves are many
    fig, axes = f.new_figure(height=2.7 + (0.18 * -(-len(curves) // columns) if many else 0), columns=2, share_y=False)
    measure = judged_by([table for curve in curves for table in curve.tables])
    share = measure != "perplexity"
    units = ("cross-entropy (nats)", MEASURES[measure])
    for ax, quantity, unit in zip(axes, ("loss", measure), units):
        for curve in curves:
            style = styles[curve.name]
            scale = 100 if share and quantity == measure else 1
            for split, dash in (("train", "--"), ("test", style.dash)):
                points = curve.over_seeds(f"{split}_{quantity}")
                if not len(points) or (many and split == "train"):
                    continue
                named = curve.name if split == "test" and len(labels) > 1 else ""
                band = split == "test" and len(curve.tables) > 1
                line = f.line_per_block(
                    ax, points["epoch"], scale * points["mean"], style=f.LineStyle(style.colour, style.marker, dash),
                    label=named or "_", markers=split == "test" and len(points) <= 40,
                    low=scale * points["low"] if band else None, high=scale * points["high"] if band else None,
                )  # fmt: skip
                if split == "train":
                    line.set(linewidth=1.1, alpha=0.75)
        f.whole_numbers(ax)
        f.label_axes(ax, x="epoch", y=unit)
    axes[0].set_ylim(bottom=0 if not many else None)
    if share:
        axes[1].set_ylim(top=min(100.0, axes[1].get_ylim()[1]))
    else:
        f.log_axis(axes[1], steps=(1, 2, 5))
    if many:  # names of settings are long: under the figure there is room for them
        fig.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    else:
        f.direct_labels(axes[1])
    return fig


def epoch_slider(curves: Sequence[Curve]) -> str:
    """The numbers of one epoch (means over seeds), all models beside each other, under a slider over epochs."""
    epochs = sorted({int(e) for curve in curves for table in curve.tables for e in table["epoch"]})
    step = -(-len(epochs) // SLIDER_FRAMES)
    epochs = sorted({*epochs[::step], epochs[-1]})
    means = {c.name: pd.concat(c.tables).groupby("epoch").mean(numeric_only=True) for c in curves}
    rows = {name: {int(str(e)): row for e, row in table.iterrows()} for name, table in means.items()}
    frames = [_frame({name: at[e].to_dict() for name, at in rows.items() if e in at}) for e in epochs]
    return slider("training", "epoch", epochs, frames)


def _frame(at: Mapping[str, Mapping[Any, Any]]) -> Markup:
    heads = Markup("").join(Markup('<th scope="col" class="n">{}</th>').format(breakable(label)) for label in at)
    lines = []
    for column, (name, unit) in SHOWN.items():
        if any(column in row for row in at.values()):
            scale = 100 if unit == "%" else 1
            cells = Markup("").join(
                Markup('<td class="n">{}</td>').format(hover(scale * float(row.get(column, float("nan"))), unit))
                for row in at.values()
            )
            lines.append(Markup('<tr><th scope="row">{}</th>{}</tr>').format(name, cells))
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="numbers of this epoch"><table class="plain">'
        "<thead><tr><td></td>{}</tr></thead><tbody>{}</tbody></table></div>"
    ).format(heads, Markup("").join(lines))


def _finding(curve: Curve, measure: str, *, name_it: bool) -> Finding | None:
    """What it reached on held-out data, over seeds from the smallest to the largest, and in training."""
    measured = curve.over_seeds(f"test_{measure}")
    if not len(measured):
        return None
    lower = measure == "perplexity"
    said = short if lower else percent
    means, last = measured["mean"], measured.iloc[-1]
    best = measured.iloc[int(means.to_numpy().argmin() if lower else means.to_numpy().argmax())]
    told = {
        "perplexity": f"held-out perplexity {said(last['mean'])}",
        "mean_iou": f"mean IoU {said(last['mean'])} on held-out images",
        "accuracy": f"{said(last['mean'])} of held-out images right",
    }
    text = f"{curve.name}: " if name_it else ""
    text += f"{told[measure]} after epoch {int(last['epoch'])}"
    if last["n"] > 1:
        text += f" ({int(last['n'])} seeds, {said(last['low'])} to {said(last['high'])})"
    elif best["mean"] != last["mean"]:
        text += f" (best: {said(best['mean'])} after epoch {int(best['epoch'])})"
    train = curve.over_seeds(f"train_{measure}")
    if len(train) and train["epoch"].iloc[-1] == last["epoch"]:
        where = {"perplexity": "in training", "mean_iou": "on training images", "accuracy": "of training images"}
        text += f", {said(train['mean'].iloc[-1])} {where[measure]}"
    return Finding(text + ".", interest=0.4)


def _protocol(runs: Runs, tables: Tables) -> str:
    parts = []
    for label, table in tables.items():
        config = owner_of(runs[label], "training").config
        facts = [f"{short(len(table))} epochs"]
        facts += [f"{name} {value}" for key, name in _OPTIONS.items() if (value := find(config, key)) is not None]
        parts.append((f"{label}: " if len(tables) > 1 else "") + ", ".join(facts))
    return " · ".join(parts)


_OPTIONS = {"optimizer": "optimizer", "lr": "learning rate", "batch_size": "batch size", "seed": "seed"}
