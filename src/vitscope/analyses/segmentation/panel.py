"""The picture of a segmentation: what is there and what is answered, IoU of every class, what is taken for what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from vitscope.analyses.segmentation.pictures import TABLE as GALLERY
from vitscope.analyses.segmentation.pictures import map_names, read_map
from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.class_colours import NONE, class_colours, coloured
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import counts, name_models, protocol, stacked, tables_of, told
from vitscope.report.sources import owner_of

MOST_ROWS, MOST_CLASSES, MOST_CONFUSED = 4, 30, 16  # more nobody reads
RIGHT, WRONG = "#e4ebe6", "#c54028"  # of the picture of errors


@register_panel("segmentation")
def segmentation_panel(runs: Runs) -> Panel | None:
    """Tables `segmentation`, `segmentation_classes`, `segmentation_confusions` and the maps of the gallery."""
    overall = {label: t[t["severity"] == 0] for label, t in tables_of(runs, "segmentation").items()}
    if not overall:
        return None
    found = tables_of(runs, "segmentation_classes").items()
    classes = {label: t[t["severity"] == 0].reset_index(drop=True) for label, t in found}
    confused = tables_of(runs, "segmentation_confusions")
    n = counts(overall)
    figures, alt, captions = {}, {}, {}
    if (drawn := draw_gallery(runs, classes)) is not None:
        figures["segmentation_gallery"], label = drawn
        alt["segmentation_gallery"] = "Pictures, their true classes, the answers, and where both differ"
        captions["segmentation_gallery"] = (
            "From left to right: what the model sees, the true class of each pixel, the answers"
            f"{f' of {label}' if len(runs) > 1 else ''}, and the errors in red; above them, how many pixels are right."
        )
    figures["segmentation_classes"] = draw_classes(classes, list(runs))
    alt["segmentation_classes"] = "IoU of each class with its interval, best first"
    captions["segmentation_classes"] = (
        f"IoU of each class over all pixels of n = {n} images, at most {MOST_CLASSES} classes, best first; lines: 95 % "
        "interval over images (bootstrap). Behind a name: its share of all pixels."
    )
    label, table = next(iter(confused.items()))
    if _errors(table)["pixels"].sum():
        figures["segmentation_confusions"] = draw_confusions(table)
        alt["segmentation_confusions"] = "What the pixels of each class are taken for"
        who = f" by {label}" if len(runs) > 1 else ""
        captions["segmentation_confusions"] = (
            f"Each row: what the pixels of a class are taken for{who}, in %; at most {MOST_CONFUSED} classes, those "
            "with the most wrong pixels."
        )
    return Panel(
        key="segmentation",
        lens="Segmentation",
        title="Which pixels are told right, and what is taken for what?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "IoU is the overlap of what is there and what is answered, as a share of both together: thin and rare "
            "classes have a small one even where hardly a pixel is wrong. Mean IoU weighs all classes alike, pixel "
            "accuracy weighs all pixels alike: a background that is large hides the rest in the second one."
        ),
        tables={"segmentation": stacked(overall), "segmentation_classes": stacked(classes)}
        | {"segmentation_confusions": stacked(confused)},
        protocol=protocol(runs, "segmentation", "sums over all pixels; classes that are there or answered"),
        findings=told(
            {label: _findings(t, classes[label], confused.get(label)) for label, t in overall.items()}, len(runs) > 1
        ),
        order=20,
        card=_card(overall),
    )


def _card(overall: Tables) -> Card | None:
    rows = {label: t[t["metric"] == "mean_iou"] for label, t in overall.items()}
    rows = {label: t for label, t in rows.items() if len(t)}
    if not rows:
        return None
    first = {label: t.iloc[0] for label, t in rows.items()}
    return Card(
        question="Are the pixels right?",
        values={label: Value(row["value"], row["low"], row["high"]) for label, row in first.items()},
        says="mean overlap (IoU) of what is there and what is answered, over classes",
        name="mean IoU",
        order=10,
    )


def _names(classes: pd.DataFrame) -> dict[int, str]:
    return dict(zip(classes["label"].astype(int), classes["class_name"].astype(str)))


def draw_gallery(runs: Runs, classes: Tables) -> tuple[Figure, str] | None:
    """Rows: pictures. Columns: as it is, truth, answer, errors. Of the first model that has maps, and which it is."""
    for label, table in tables_of(runs, GALLERY).items():
        run = owner_of(runs[label], GALLERY)
        files = {int(i): (f"{i}.png", *map_names(int(i))) for i in table["image"]}
        shown = [i for i, names in files.items() if all((run.images_dir / name).exists() for name in names)]
        conditions = table["condition"] if "condition" in table else [""] * len(table)
        told = {int(i): text if isinstance(text, str) else "" for i, text in zip(table["image"], conditions)}
        clean = [i for i in shown if not told[i]]
        changed = [i for i in shown if told[i]][: MOST_ROWS // 2]
        shown = clean[: MOST_ROWS - len(changed)] + changed
        if shown:
            break
    else:
        return None
    accuracy = dict(zip(table["image"].astype(int), table["accuracy"]))
    maps = {i: tuple(read_map(run.images_dir / name) for name in files[i][1:]) for i in shown}
    there = sorted({int(c) for pair in maps.values() for m in pair for c in np.unique(m) if c >= 0})
    names = _names(classes[label])
    most = max(max(there, default=0), max(names, default=0)) + 1
    colours = class_colours(most)
    heights = [maps[i][0].shape[0] / maps[i][0].shape[1] for i in shown]
    side = f.PAGE / 4
    entries = -(-len(there) // 6)
    fig = Figure(figsize=(f.PAGE, sum(side * h for h in heights) + 0.35 + 0.2 * entries))
    axes = fig.subplots(len(shown), 4, squeeze=False, height_ratios=heights)
    for line, i in zip(axes, shown):
        truth, answer = maps[i]
        picture = np.asarray(Image.open(run.images_dir / files[i][0]).convert("RGB"))
        drawn = (picture, coloured(truth, colours), coloured(answer, colours), errors(truth, answer))
        for ax, pixels in zip(line, drawn):
            ax.imshow(pixels, interpolation="nearest" if pixels is not picture else "antialiased")
            ax.set_axis_off()
        line[0].set_title(told[i], fontsize=7, fontweight="normal", pad=2)
        line[3].set_title(f"{short(float(accuracy[i]))} % right", fontsize=7, fontweight="normal", pad=2)
    for ax, title in zip(axes[0], ("picture", "truth", "answer")):
        ax.set_title(title, fontsize=7, fontweight="normal", pad=2)
    patches = [Patch(color=colours[c], label=f.ellipsis(names.get(c, str(c)), 18)) for c in there]
    if any((truth < 0).any() for truth, _ in maps.values()):
        patches.append(Patch(color=NONE, label="not judged"))
    fig.legend(handles=patches, loc="outside lower center", ncols=6, fontsize=7, frameon=False)
    return fig, label


def errors(truth: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Red where they differ, pale where they agree, grey where there is no truth: (H, W, 3) uint8"""
    return coloured(np.where(truth < 0, -1, truth != answer), [RIGHT, WRONG])


def draw_classes(tables: Tables, labels: list[str]) -> Figure:
    """IoU per class with its interval, the best on average first."""
    means = pd.concat([t.set_index("label")["iou"] for t in tables.values()]).groupby(level=0).mean()
    order = [int(c) for c in means.sort_values(ascending=False, kind="stable").index[:MOST_CLASSES]]
    first = next(iter(tables.values())).set_index("label")
    names = {c: n for t in tables.values() for c, n in _names(t).items()}
    fig, (ax,) = f.new_figure(height=0.55 + 0.17 * len(order) * max(1, len(tables) ** 0.5))
    styles = {label: style for label, style in f.model_styles(labels).items() if label in tables}
    for i, (label, style) in enumerate(styles.items()):
        t = tables[label].set_index("label")
        t = t.loc[[c for c in order if c in t.index]]
        y = [order.index(int(c)) + 0.5 * ((i + 1) / (len(styles) + 1) - 0.5) for c in t.index]
        ax.hlines(y, t["iou_low"], t["iou_high"], color=style.colour, linewidth=1, alpha=0.7)
        ax.plot(t["iou"], y, linestyle="", marker=style.marker, color=style.colour)
    shares = [f" ({short(float(first['share'].get(c, 0.0)))} %)" for c in order]
    ax.set_yticks(range(len(order)), [f.ellipsis(names[c], 22) + share for c, share in zip(order, shares)])
    ax.set(ylim=(len(order) - 0.5, -0.5), xlim=(0, 101))
    ax.grid(True, axis="x")
    f.label_axes(ax, x="IoU (%)")
    name_models(fig, labels, tables)
    return fig


def _errors(confusions: pd.DataFrame) -> pd.DataFrame:
    return confusions[confusions["label"] != confusions["answer"]]


def draw_confusions(table: pd.DataFrame) -> Figure:
    """True classes x answers in % of a row, of the classes with the most wrong pixels."""
    wrong = _errors(table)
    lost = wrong.groupby("label")["pixels"].sum().add(wrong.groupby("answer")["pixels"].sum(), fill_value=0)
    chosen = sorted(int(c) for c in lost.sort_values(ascending=False, kind="stable").index[:MOST_CONFUSED])
    names = dict(zip(table["label"], table["class_name"])) | dict(zip(table["answer"], table["answer_name"]))
    cells = {(int(r["label"]), int(r["answer"])): float(r["share"]) for r in table.to_dict("records")}
    there = {a for a, _ in cells}
    grid = np.array([[cells.get((a, b), 0.0 if a in there else np.nan) for b in chosen] for a in chosen])
    fig, (ax,) = f.new_figure(width=f.PAGE * 0.9, height=0.9 + 0.24 * len(chosen))
    f.heat_map(fig, ax, grid, low=0, high=100, label="of the class's pixels (%)")
    for (row, column), value in np.ndenumerate(grid):
        if np.isfinite(value) and value >= 0.5:
            ink = "#fefefe" if value < 55 else "#101010"
            ax.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=6, color=ink)
    words = [f.ellipsis(str(names[c]), 16) for c in chosen]
    ax.set_xticks(range(len(chosen)), words, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(chosen)), words)
    ax.tick_params(length=0)
    f.label_axes(ax, x="answer", y="true class")
    return fig


def _findings(overall: pd.DataFrame, classes: pd.DataFrame, confused: pd.DataFrame | None) -> list[Finding]:
    row: dict[str, Any] = {str(r["metric"]): r for r in overall.to_dict("records")}
    iou, accuracy, pixels = (row[name] for name in ("mean_iou", "mean_accuracy", "accuracy"))
    sure = iou["low"] == iou["low"]
    between = f" (95 % interval {short(iou['low'])} to {short(iou['high'])} %)" if sure else ""
    text = (
        f"mean IoU {short(iou['value'])} %{between} over {int(iou['classes'])} classes of {short(int(iou['n']))} "
        f"images; mean accuracy {short(accuracy['value'])} %, {short(pixels['value'])} % of the pixels right."
    )
    found = [Finding(text, 0.75)]
    known = classes[classes["pixels"] > 0].sort_values("iou", kind="stable")
    if len(known) > 2:
        worst, best = known.iloc[0], known.iloc[-1]
        text = (
            f"hardest class: {worst['class_name']} (IoU {short(float(worst['iou']))} %), easiest: "
            f"{best['class_name']} ({short(float(best['iou']))} %)"
        )
        wrong = None if confused is None else _errors(confused)
        if wrong is not None and len(wrong):
            most = wrong.sort_values("pixels", kind="stable").iloc[-1]
            text += (
                f"; most pixels are lost where {most['class_name']} is taken for {most['answer_name']} "
                f"({short(float(most['share']))} % of it)"
            )
        found.append(Finding(text + ".", 0.55))
    return found
