"""How easily does it break? Accuracy against budget, and what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import counts, name_models, protocol, stacked, tables_of, told
from vitscope.report.sources import owner_of
from vitscope.robustness.attack_gallery import TABLE as GALLERY
from vitscope.robustness.attack_gallery import picture_names
from vitscope.runs import Run

TABLE, IMAGES = "attack", "attack_images"
NORMS = {"linf": "largest change of a pixel", "l2": "length (L2) of the change", "l1": "sum (L1) of the changes"}
STYLES = {
    "pgd": f.LineStyle(f.VERMILLION, "s"),
    "fgsm": f.LineStyle(f.BLUE, "o"),
    "noise": f.LineStyle(f.MUTED, "", ":"),
    "spsa": f.LineStyle(f.GREEN, "^"),
    "sparse-l1": f.LineStyle(f.PURPLE, "D"),
    "autoattack": f.LineStyle(f.INK, "X"),
    "apgd-ce": f.LineStyle(f.ORANGE, "v"),
    "square": f.LineStyle(f.SKY, "P"),
    "cw": f.LineStyle(f.GREEN, "*", "--"),
    "hopskipjump": f.LineStyle(f.PURPLE, "h", "--"),
}


@register_panel("attack")
def attack_panel(runs: Runs) -> Panel | None:
    """Accuracy against budget per model and attack, with intervals; the gallery of what changed."""
    tables = tables_of(runs, TABLE)
    if not tables:
        return None
    figures = {"attack": draw_curves(tables, list(runs))}
    captions = {
        "attack": f"Share of right answers under attack; bands: 95 % Wilson intervals; leftmost: no attack. "
        f"n = {counts(tables, 'n_images')} images.{_about(tables)}"
    }
    alt = {"attack": "Accuracy against the attacker's budget, per model and attack"}
    if pictures := draw_gallery(runs):
        figures["attack_gallery"] = pictures
        captions["attack_gallery"] = (
            "Images that were right: as they are; the change, amplified to full contrast (grey: none); the attacked "
            "picture with the new answer, at the smallest budget that fooled the model (else the largest tried)."
        )
        alt["attack_gallery"] = "Original, amplified perturbation and attacked picture, with the model's answers"
    return Panel(
        key="attack",
        lens="Attacks",
        title="How easily does it break?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "A curve that drops at once belongs to a model that changes its answer for changes nobody sees; noise of "
            "the same size is what chance can do. An attack only shows that a picture can be found: no attack proves "
            "that there is none, so the strongest curve is an upper bound of the robust accuracy."
        ),
        tables={TABLE: stacked(tables), IMAGES: stacked(tables_of(runs, IMAGES))},
        protocol=protocol(runs, TABLE, "; ".join(sorted({str(t["protocol"].iloc[0]) for t in tables.values()}))),
        findings=told({label: [_finding(table)] for label, table in tables.items()}, len(runs) > 1),
        order=40,
        card=_card(tables),
    )


def _card(tables: Tables) -> Card | None:
    """What the strongest attack that all were given leaves, at the smallest budget that all have."""
    attacks = set.intersection(*(set(t["attack"]) for t in tables.values()))
    norms = {str(t["norm"].iloc[0]) for t in tables.values()}
    if not attacks or len(norms) > 1 or any(map(is_published, tables.values())):
        return None

    def left(name: str) -> float:
        return float(sum(t[t["attack"] == name][measured(t)].mean() for t in tables.values()))

    name = min(sorted(attacks), key=left)
    chosen = {label: t[t["attack"] == name].sort_values("epsilon") for label, t in tables.items()}
    budgets = set.intersection(*(set(t["epsilon"]) for t in chosen.values())) - {0.0}
    if not budgets:
        return None
    column = {label: measured(t) for label, t in tables.items()}
    at = {label: t[t["epsilon"] == min(budgets)].iloc[0] for label, t in chosen.items()}
    budget = f"{_scale(tables) * min(budgets):.3g}" + ("/255" if _scale(tables) == 255 else "")
    return Card(
        question="How easily does it break?",
        values={label: Value(row[c := column[label]], row[f"{c}_low"], row[f"{c}_high"]) for label, row in at.items()},
        says=f"still right when the attack {name} moves pixels by {budget}",
        name=f"right under {name} of {budget}",
        lines={label: [t["clean"].iloc[0], *t[column[label]]] for label, t in chosen.items()},
        across="budget, from none on",
        order=30,
    )


def is_published(table: pd.DataFrame) -> bool:
    return "PUBLISHED" in str(table["protocol"].iloc[0])


def measured(table: pd.DataFrame) -> str:
    """The column that is drawn: each budget by itself where that was measured."""
    return "accuracy" if table["accuracy"].notna().all() else "accuracy_cumulative"


def attack_style(attack: str, number: int = 0) -> f.LineStyle:
    return STYLES.get(attack, f.LineStyle((f.GREEN, f.PURPLE, f.ORANGE, f.SKY)[number % 4], "p"))


def draw_curves(tables: Tables, labels: list[str]) -> Figure:
    """One model: all attacks in one picture. Several: one picture per attack, one colour per model."""
    attacks = list(dict.fromkeys(a for t in tables.values() for a in t["attack"]))
    if len(tables) == 1:
        (table,) = tables.values()
        fig, (ax,) = f.new_figure(width=f.PAGE * 0.72, height=3.0)
        for i, attack in enumerate(attacks):
            rows = table[table["attack"] == attack]
            _curve(ax, rows, _scale(tables), attack_style(attack, i), attack, is_published(table))
        _finish(ax, tables)
        f.direct_labels(ax)
        return fig
    columns = min(3, len(attacks))
    lines = -(-len(attacks) // columns)
    fig, axes = f.new_figure(height=2.1 * lines + 0.75, rows=lines, columns=columns)
    styles = f.model_styles(labels)
    for ax, attack in zip(axes, attacks):
        for label, table in tables.items():
            part = table[table["attack"] == attack]
            if len(part):
                _curve(ax, part, _scale(tables), styles[label], "_", is_published(table))
        _finish(ax, tables, attack)
    for spare in axes[len(attacks) :]:
        spare.set_visible(False)
    name_models(fig, labels, tables)
    return fig


def _curve(ax: Axes, rows: pd.DataFrame, scale: float, style: f.LineStyle, name: str, published: bool) -> None:
    """From the clean accuracy at budget 0 on. The published protocol has hollow markers."""
    column = measured(rows)
    first = rows.iloc[0]
    start = [] if (rows["epsilon"] == 0).any() else [0.0]
    x = [*start, *(scale * rows["epsilon"])]
    y, low, high = (
        [*([first[f"clean{end}"]] if start else []), *rows[f"{column}{end}"]] for end in ("", "_low", "_high")
    )
    line = f.line_per_block(ax, x, y, style=style, label=name, low=low, high=high)
    if published:
        line.set_markerfacecolor(f.PAPER)


def _scale(tables: Tables) -> float:
    """255 where all budgets are whole 255ths: 8 reads better than 0.03137; 0.05 stays what it is."""
    linf = all(t["norm"].iloc[0] == "linf" for t in tables.values())
    steps = [255 * e for t in tables.values() for e in t["epsilon"]]
    return 255.0 if linf and all(abs(s - round(s)) < 1e-6 for s in steps) else 1.0


def _finish(ax: Axes, tables: Tables, attack: str = "") -> None:
    norms = {str(t["norm"].iloc[0]) for t in tables.values()}
    norm = norms.pop() if len(norms) == 1 else ""
    scale = _scale(tables)
    unit = " (1/255)" if scale == 255 else ""
    ax.set_ylim(0, 100)
    ax.set_xlim(left=0)
    budgets = sorted({scale * e for t in tables.values() for e in t["epsilon"]} | {0.0})
    if len(budgets) <= 9:
        ax.set_xticks(budgets, [f"{x:.4g}" for x in budgets])
    what = NORMS.get(norm, "budget") if not attack else f"{norm.title()} budget".strip()  # a third of a page is narrow
    f.label_axes(ax, x=f"{what}{unit}", y=f"{attack}: accuracy (%)" if attack else "accuracy (%)")


def _about(tables: Tables) -> str:
    """What a reader of the picture must know."""
    text = ""
    if any(measured(t) == "accuracy_cumulative" for t in tables.values()):
        text += " Cumulative: an image that a smaller budget fooled counts as fooled."
    if any(map(is_published, tables.values())):
        who = "All of it" if all(map(is_published, tables.values())) else "Hollow markers"
        text += f" {who}: the PUBLISHED protocol, whose budget is not one of pixels; not comparable with other figures."
    return text


def draw_gallery(runs: Runs, most_rows: int = 4, most_attacks: int = 2) -> Figure | None:
    """Rows: images that were right. Columns: as it is, then change and result of the strongest attacks."""
    chosen: list[tuple[str, int, Run, dict[str, Any]]] = []
    for label, table in tables_of(runs, GALLERY).items():
        run = owner_of(runs[label], GALLERY)
        shown = table[table["wrong_before"] == 0]
        strength = shown.groupby("attack")["fooled"].sum().sort_values(ascending=False, kind="stable")
        attacks = [a for a in strength.index if a != "noise"][:most_attacks] or list(strength.index[:most_attacks])
        by_image = shown.groupby("image")["fooled"].sum().sort_values(ascending=False, kind="stable")
        for image in list(by_image.index)[: max(1, most_rows // len(runs))]:
            parts = shown[shown["image"] == image].set_index("attack")
            rows = {a: parts.loc[a].to_dict() | {"attack": a} for a in attacks if a in parts.index}
            if rows and all((run.images_dir / name).exists() for name in _files(image, rows)):
                chosen.append((label, int(image), run, rows))
    if not chosen:
        return None
    columns = 1 + 2 * max(len(rows) for *_, rows in chosen)
    fig = Figure(figsize=(f.PAGE * columns / 5, 1.62 * f.PAGE / 7 * len(chosen) + 0.1))
    axes = fig.subplots(len(chosen), columns, squeeze=False)
    for line, (label, image, run, rows) in zip(axes, chosen):
        first = next(iter(rows.values()))
        cells = [(f"{image}.png", str(first["class_name"]), f"{f.ellipsis(label, 16)}: " if len(runs) > 1 else "")]
        for attack, row in rows.items():
            attacked, change = _files(image, {attack: row})[1:]
            cells.append((change, f"change × {short(float(row['times']))}", ""))
            verdict = row["predicted_name"] if row["fooled"] else f"{row['predicted_name']} (held)"
            cells.append((attacked, str(verdict), f"{attack} {row['eps']}: "))
        for ax in line:
            ax.set_axis_off()
        for ax, (name, title, before) in zip(line, cells):
            picture = np.asarray(Image.open(run.images_dir / name))
            ax.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            ax.set_title(f"{before}{f.ellipsis(title, 26 - len(before))}", fontsize=6.5, fontweight="normal", pad=3)
    return fig


def _files(image: int, rows: Mapping[str, Any]) -> list[str]:
    return [f"{image}.png", *(name for attack in rows for name in picture_names(image, attack))]


def _finding(table: pd.DataFrame) -> Finding:
    column = measured(table)
    note = " (published protocol)" if is_published(table) else ""
    attacked = table[table["attack"] != "noise"] if (table["attack"] != "noise").any() else table
    worst = attacked.sort_values([column, "epsilon"], kind="stable").iloc[0]
    text = (
        f"the attack {worst['attack']} with a budget of {worst['eps']} ({worst['norm']}) leaves "
        f"{short(float(worst[column]))} % right of {short(float(worst['clean']))} % (95 % interval "
        f"{short(float(worst[f'{column}_low']))} to {short(float(worst[f'{column}_high']))} %){note}"
    )
    half = attacked[attacked["accuracy_cumulative"] <= attacked["clean"] / 2].sort_values("epsilon", kind="stable")
    if len(half):
        text += f"; half of what was right is lost by {half.iloc[0]['eps']} ({half.iloc[0]['attack']})"
    return Finding(text + ".", 0.75)
