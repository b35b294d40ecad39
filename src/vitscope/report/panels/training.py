"""Did the training go well? Loss and accuracy per epoch, from tables/training.csv."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from vitscope.report.html_table import breakable
from vitscope.report.numbers import hover, percent, short
from vitscope.report.panel import Finding, Panel, register_panel
from vitscope.report.slider import slider

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from vitscope.runs import Run

SLIDER_FRAMES = 120  # of the slider; a longer training shows every second, third, ... epoch
SHOWN = {
    "train_loss": ("training loss", "nats"),
    "test_loss": ("held-out loss", "nats"),
    "train_accuracy": ("training accuracy", "%"),
    "test_accuracy": ("held-out accuracy", "%"),
    "lr": ("learning rate", ""),
}


@register_panel("training")
def training_panel(runs: Mapping[str, Run]) -> Panel | None:
    """Columns: epoch, train_loss, train_accuracy, test_loss, test_accuracy, lr; accuracies are shares in [0, 1].

    An epoch without a held-out evaluation leaves those cells empty.
    """
    found = {label: run.table("training") for label, run in runs.items()}
    tables = {label: table for label, table in found.items() if table is not None and len(table)}
    if not tables:
        return None
    who = " and ".join(tables) if len(tables) <= 3 else f"{len(tables)} models"
    findings = [_finding(label, table, name_it=len(runs) > 1) for label, table in tables.items()]
    return Panel(
        key="training",
        title="Did it learn, and does that hold on images it has not seen?",
        figures={"training": draw_curves(tables, list(runs))},
        alt={"training": f"Loss and accuracy per epoch of {who}: held-out images solid, training images dashed"},
        captions={"training": "Solid with markers: held-out images. Dashed: training images. One value per epoch."},
        reading=(
            "Both curves should level off; a loss that still falls at the right edge says that more epochs would help. "
            "A held-out curve that turns away from its training curve is overfitting."
        ),
        tables={"training": combined(tables)},
        protocol=_protocol(runs, tables),
        findings=[finding for finding in findings if finding],
        html=epoch_slider(tables),
        order=10,
    )


def draw_curves(tables: Mapping[str, pd.DataFrame], labels: list[str]) -> Figure:
    """Loss beside accuracy; one colour per model, `labels` being all models of the page."""
    from vitscope.report import figures as f

    styles = f.model_styles(labels)
    fig, axes = f.new_figure(height=2.7, columns=2, share_y=False)
    for ax, quantity, unit in zip(axes, ("loss", "accuracy"), ("cross-entropy (nats)", "accuracy (%)")):
        for label, table in tables.items():
            style = styles[label]
            scale = 100 if quantity == "accuracy" else 1
            for split, dash in (("train", "--"), ("test", style.dash)):
                column = f"{split}_{quantity}"
                if column not in table:
                    continue
                points = table[["epoch", column]].dropna()
                named = label if split == "test" and len(labels) > 1 else ""
                line = f.line_per_block(
                    ax, points["epoch"], scale * points[column], style=f.LineStyle(style.colour, style.marker, dash),
                    label=named or "_", markers=split == "test" and len(points) <= 40,
                )  # fmt: skip
                if split == "train":
                    line.set(linewidth=1.1, alpha=0.75)
        f.whole_numbers(ax)
        f.label_axes(ax, x="epoch", y=unit)
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylim(top=min(100.0, axes[1].get_ylim()[1]))
    f.direct_labels(axes[1])
    return fig


def combined(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One table of all models, with the model in the first column where there are several."""
    import pandas as pd

    if len(tables) == 1:
        return next(iter(tables.values()))
    return pd.concat([table.assign(model=label) for label, table in tables.items()], ignore_index=True).pipe(
        lambda t: t[["model", *(c for c in t.columns if c != "model")]]
    )


def epoch_slider(tables: Mapping[str, pd.DataFrame]) -> str:
    """The numbers of one epoch, all models beside each other, under a slider over epochs."""
    epochs = sorted({int(e) for table in tables.values() for e in table["epoch"]})
    step = -(-len(epochs) // SLIDER_FRAMES)
    epochs = sorted({*epochs[::step], epochs[-1]})
    rows = {label: {int(r["epoch"]): r for r in table.to_dict("records")} for label, table in tables.items()}
    frames = [_frame({label: table[e] for label, table in rows.items() if e in table}) for e in epochs]
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


def _finding(label: str, table: pd.DataFrame, *, name_it: bool) -> Finding | None:
    if "test_accuracy" not in table:
        return None
    measured = table.dropna(subset=["test_accuracy"])
    if not len(measured):
        return None
    best = measured.iloc[int(measured["test_accuracy"].to_numpy().argmax())]
    last = measured.iloc[-1]
    who = f"{label}: " if name_it else ""
    text = f"{who}{percent(last['test_accuracy'])} of held-out images right after epoch {int(last['epoch'])}"
    if best["test_accuracy"] > last["test_accuracy"]:
        text += f" (best: {percent(best['test_accuracy'])} after epoch {int(best['epoch'])})"
    if "train_accuracy" in table and last["train_accuracy"] == last["train_accuracy"]:
        text += f", {percent(last['train_accuracy'])} of training images"
    return Finding(text + ".", interest=0.4)


def _protocol(runs: Mapping[str, Run], tables: Mapping[str, pd.DataFrame]) -> str:
    from vitscope.report.sources import owner_of
    from vitscope.runs.environment import find

    parts = []
    for label, table in tables.items():
        config = owner_of(runs[label], "training").config
        facts = [f"{short(len(table))} epochs"]
        facts += [f"{name} {value}" for key, name in _OPTIONS.items() if (value := find(config, key)) is not None]
        parts.append((f"{label}: " if len(tables) > 1 else "") + ", ".join(facts))
    return " · ".join(parts)


_OPTIONS = {"optimizer": "optimizer", "lr": "learning rate", "batch_size": "batch size", "seed": "seed"}
