"""The picture of corruptions: accuracy per corruption and severity, how soon it falls, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import counts, name_models, protocol, stacked, tables_of, told
from vitscope.robustness.corruptions.names import COMMON, FAMILIES

MOST_MAPS = 4  # models beside each other in one figure; more would not be read
SOURCES = {"corrupted": "corrupted on the fly", "C": "ImageNet-C as distributed"}


@register_panel("corruptions")
def corruption_panel(runs: Runs) -> Panel | None:
    """Tables `evaluation`, `corruption_error` and `corruption_mean`; one row of figures per source of corruptions."""
    rows, errors = tables_of(runs, "evaluation"), tables_of(runs, "corruption_error")
    means = tables_of(runs, "corruption_mean")
    if not rows or not errors:
        return None
    labels = list(runs)
    figures, alt, captions = {}, {}, {}
    sources = [s for s in SOURCES if any((t["set"] == s).any() for t in errors.values())]
    for source in sources:
        chosen = {label: pick(t, source) for label, t in rows.items() if (t["set"] == source).any()}
        n = counts(chosen)
        suffix = "" if source == sources[0] else f"_{source}"
        figures[f"corruption_map{suffix}"] = draw_maps(chosen, labels)
        alt[f"corruption_map{suffix}"] = "Top-1 accuracy of each corruption at each severity, one map per model"
        captions[f"corruption_map{suffix}"] = (
            f"Top-1 accuracy (%), {SOURCES[source]}, {n} images per cell. First column: the same model on clean images."
        )
        if any(t["severity"].nunique() > 2 for t in chosen.values()):
            figures[f"corruption_severity{suffix}"] = draw_severity(chosen, labels)
            alt[f"corruption_severity{suffix}"] = "Accuracy against severity for each family of corruptions"
            captions[f"corruption_severity{suffix}"] = (
                f"Mean top-1 accuracy over the corruptions of a family against severity. n = {n} images."
            )
        own = {label: t[t["set"] == source] for label, t in errors.items() if (t["set"] == source).any()}
        if all(t["difference"].notna().all() for t in own.values()):
            figures[f"corruption_difference{suffix}"] = draw_difference(own, chosen, labels)
            alt[f"corruption_difference{suffix}"] = "Points of accuracy lost to each corruption, hardest first"
            captions[f"corruption_difference{suffix}"] = (
                "Top-1 under a corruption minus top-1 on clean images, in points: the mean over severities, and thin "
                "lines from the mildest to the strongest severity."
            )
    return Panel(
        key="corruptions",
        lens="Corruptions",
        title="Which corruptions break it, and how soon?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "Read a row of the map from left to right: an accuracy that stays is robustness, one that falls at "
            "severity 1 is not. mCE divides the errors by AlexNet's: 100 % is as fragile as AlexNet, smaller is better."
        ),
        tables={"corruption_mean": stacked(means), "corruption_error": stacked(errors), "evaluation": stacked(rows)},
        protocol=protocol(runs, "corruption_error", "; ".join(_how(t) for t in list(rows.values())[:1])),
        findings=told(
            {label: [_finding(row, errors[label]) for row in t.to_dict("records")] for label, t in means.items()},
            len(runs) > 1,
        ),
        order=24,
        card=corruption_card(
            {label: pick(t, sources[0]) for label, t in rows.items() if (t["set"] == sources[0]).any()}
        ),
    )


def corruption_card(tables: Tables, column: str = "top1", what: str = "right") -> Card:
    """The mean over corruptions by severity, from clean on. column, what: what is shown."""
    means = {label: t.groupby("severity")[column].mean().sort_index() for label, t in tables.items()}
    kinds = max(t[t["severity"] > 0]["corruption"].nunique() for t in tables.values())
    strongest = int(max(mean.index[-1] for mean in means.values()))
    return Card(
        question="Does it stand bad pictures?",
        values={label: Value(float(mean.iloc[-1])) for label, mean in means.items()},
        says=f"{what} under {kinds} corruption{'s' * (kinds > 1)} of severity {strongest}",
        name=f"{what} under corruptions of severity {strongest}",
        lines={label: mean.tolist() for label, mean in means.items()},
        across="severities, from none on",
        order=32,
    )


def pick(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """The rows of one source, and the clean row over all images."""
    clean = (table["set"] == "clean") & (table["images"] == "all")
    return table[clean | (table["set"] == source)]


def ordered(tables: Tables) -> list[str]:
    """Corruptions that any model has, in the order of the families."""
    found = {str(name) for table in tables.values() for name in table["corruption"]} - {"none"}
    return [name for name in COMMON if name in found] + sorted(found - set(COMMON))


def draw_maps(tables: Tables, labels: list[str], column: str = "top1", name: str = "top-1 (%)") -> Figure:
    """Corruptions x severities, numbers in the cells, one map per model. column, name: what is shown."""
    shown = [label for label in labels if label in tables][:MOST_MAPS]
    names = ordered(tables)
    severities = sorted({int(s) for t in tables.values() for s in t["severity"]})
    fig, axes = f.new_figure(height=0.75 + 0.19 * len(names), columns=len(shown), share_x=False)
    for ax, label in zip(axes, shown):
        values = _grid(tables[label], names, severities, column)
        f.heat_map(fig, ax, values, low=0, high=100, label=name, colour_bar=ax is axes[-1])
        for (row, at), value in np.ndenumerate(values):
            if np.isfinite(value):  # the map is dark below, light above the middle, on a light and on a dark page
                ink = "#fefefe" if value < 55 else "#101010"
                ax.text(at, row, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color=ink)
        ax.set_xticks(range(len(severities)), ["clean" if s == 0 else str(s) for s in severities])
        ax.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        ax.tick_params(length=0)
        for edge in _edges(names):
            ax.axhline(edge, color=f.PAPER, linewidth=1.6)
        f.label_axes(ax, x="severity", title=f.ellipsis(label, 60 // len(shown)) if len(labels) > 1 else "")
    return fig


def _grid(table: pd.DataFrame, names: list[str], severities: list[int], column: str) -> np.ndarray:
    """(corruptions, severities) of a column; severity 0 is the clean value in every row."""
    cells = {(r["corruption"], int(r["severity"])): r[column] for r in table.to_dict("records")}
    clean = cells.get(("none", 0), np.nan)
    return np.array([[clean if s == 0 else cells.get((name, s), np.nan) for s in severities] for name in names])


def _edges(names: list[str]) -> list[float]:
    """Between two families."""
    family = {name: key for key, members in FAMILIES.items() for name in members}
    return [i - 0.5 for i in range(1, len(names)) if family.get(names[i]) != family.get(names[i - 1])]


def draw_severity(tables: Tables, labels: list[str], column: str = "top1", name: str = "top-1 (%)") -> Figure:
    """Mean over each family against severity, one line per model."""
    there = set(ordered(tables))
    families = {key: [n for n in names if n in there] for key, names in FAMILIES.items()}
    families = {key: names for key, names in families.items() if names}
    severities = sorted({int(s) for t in tables.values() for s in t["severity"]})
    fig, axes = f.small_multiples(len(families), row_height=2.0)
    for ax, (family, names) in zip(axes, families.items()):
        for label, style in f.model_styles(labels).items():
            if label in tables:
                t = tables[label]
                means = t[t["corruption"].isin(["none", *names])].groupby("severity")[column].mean()
                f.line_per_block(ax, means.index, means.to_numpy(), style=style)
        ax.set_ylim(0, 100)
        ax.set_xticks(severities, ["clean" if s == 0 else str(s) for s in severities])
        f.label_axes(ax, x="severity", y=name, title=family)
    name_models(fig, labels, tables)
    return fig


def draw_difference(errors: Tables, rows: Tables, labels: list[str]) -> Figure:
    """Points lost per corruption, the hardest on average first."""
    mean = pd.concat([t.set_index("corruption")["difference"] for t in errors.values()]).groupby(level=0).mean()
    names = list(mean.sort_values(kind="stable").index)
    styles = {label: style for label, style in f.model_styles(labels).items() if label in errors}
    fig, (ax,) = f.new_figure(height=0.6 + 0.18 * len(names) * max(1, len(errors) ** 0.5))
    for i, (label, style) in enumerate(styles.items()):
        by_name = rows[label].groupby("corruption")["difference"]
        t = errors[label].set_index("corruption")
        y = [names.index(name) + 0.6 * ((i + 1) / (len(styles) + 1) - 0.5) for name in t.index]
        ax.hlines(y, by_name.min()[t.index], by_name.max()[t.index], color=style.colour, linewidth=1, alpha=0.55)
        ax.plot(t["difference"], y, linestyle="", marker=style.marker, color=style.colour)
    ax.axvline(0, color=f.MUTED, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    ax.set_yticks(range(len(names)), [str(name).replace("_", " ") for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(True, axis="x")
    f.label_axes(ax, x="top-1 minus clean (points); dashed: no change")
    name_models(fig, labels, errors)
    return fig


def _how(table: pd.DataFrame) -> str:
    """How corrupted pictures were made, as the table states it."""
    corrupted = table[table["corruption"] != "none"]
    made = dict(zip(corrupted["set"], corrupted["preparation"]))
    return "; ".join(f"{SOURCES.get(source, source)}, preparation: {how}" for source, how in made.items())


def _finding(row: Mapping[Any, Any], errors: pd.DataFrame) -> Finding:
    own = sorted(errors[errors["set"] == row["set"]].to_dict("records"), key=lambda r: r["top1"])
    worst, best = own[0], own[-1]
    text = f"{short(row['top1'])} % right under {row['corruptions']} corruptions ({SOURCES[str(row['set'])]}"
    if row["top1_low"] == row["top1_low"]:
        text += f"; 95 % interval {short(row['top1_low'])} to {short(row['top1_high'])} %"
    text += ")"
    if row["clean"] == row["clean"]:
        text += f", {short(row['clean'])} % on clean images"
    if len(own) > 1:
        text += (
            f"; hardest: {str(worst['corruption']).replace('_', ' ')} ({short(worst['top1'])} %), "
            f"mildest: {str(best['corruption']).replace('_', ' ')} ({short(best['top1'])} %)"
        )
    if row["mce"] == row["mce"]:
        text += f". mCE {short(row['mce'])} %"
        if row["mce_low"] == row["mce_low"]:
            text += f" (95 % interval {short(row['mce_low'])} to {short(row['mce_high'])} %)"
    return Finding(text + ".", 0.75)
