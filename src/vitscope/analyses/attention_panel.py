"""The picture of `attention`: how far and how sharply the heads look, and what they look at."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.lens_drawing import over_heads
from vitscope.report.numbers import percent, short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import blocks_of, counts, name_models, protocol, stacked, tables_of, told


@register_panel("attention")
def attention_panel(runs: Runs) -> Panel | None:
    """Distance and entropy per block with every head, and where the attention goes."""
    tables = tables_of(runs, "attention")
    if not tables:
        return None
    texts = all(main_query(table) == "text" for table in tables.values())
    n = counts(tables)
    return Panel(
        key="attention",
        lens="Attention",
        title="Where do the heads look?",
        figures={"attention": draw_heads(tables, list(runs)), "attention_mass": draw_mass(tables)},
        alt={
            "attention": "Mean attention distance and entropy per block: one dot per head, a line for their mean",
            "attention_mass": f"Shares of attention that go to {', '.join(_parts(texts)[:-1])} and {OTHERS[texts]}",
        },
        captions={
            "attention": f"One dot per head: its mean over {n} images, image-token queries. Line: mean over heads; "
            "band: its 95 % interval over images (often thinner than the line). "
            f"Dashed: attention that ignores the picture ({EVEN[texts]}).",
            "attention_mass": f"Mean over heads and {n} images of the attention that a token of the named kind gives. "
            f"{'Separators' if texts else 'Registers'} are drawn where the model has them.",
        },
        reading=(
            "Heads low in the left plot look at their neighbourhood, heads near the dashed line at the whole picture. "
            "On the right, 1 is attention spread evenly over all tokens and 0 is attention on a single one."
            + (SINK if texts else "")
        ),
        tables={"attention": stacked(tables)},
        protocol=protocol(runs, "attention", DISTANCE[texts]),
        findings=told({label: _findings(table) for label, table in tables.items()}, len(runs) > 1),
        order=30,
        card=_card(tables),
    )


def _card(tables: Tables) -> Card | None:
    distances = {label: rows for label, table in tables.items() if len(rows := select(table, "distance"))}
    units = {_unit(rows) for rows in distances.values()}
    if len(units) != 1:
        return None
    curves = {label: over_heads(rows) for label, rows in distances.items()}
    uniform = _distinct([float(rows["uniform"].iloc[0]) for rows in distances.values()])
    even = f"; evenly spread would be {short(uniform[0])}" if len(uniform) == 1 else ""
    unit = units.pop()
    return Card(
        question="How far do heads look?",
        values={
            label: Value(m := float(mean.iloc[-1]), m - float(half.iloc[-1]), m + float(half.iloc[-1]), unit)
            for label, (mean, half) in curves.items()
        },
        says=f"away in the last block{even}",
        name="how far heads look in the last block",
        larger=None,
        lines={label: mean.tolist() for label, (mean, _) in curves.items()},
        across="blocks",
        chance=uniform[0] if len(uniform) == 1 else None,
        order=40,
    )


DISTANCE = {
    False: "distance between patch centres in input pixels, within the picture",
    True: "distance in tokens, among those that are neither the first nor separators; no padding",
}
EVEN = {False: "1/N everywhere", True: "the same share for every token that a query sees"}
OTHERS = {False: "the picture", True: "the others"}
SINK = (
    " Attention on the first token is often a sink: a head that finds nothing leaves its attention there, and it says "
    "little about what the token means."
)


def main_query(table: pd.DataFrame) -> str:
    """The kind of queries that most tokens are."""
    return "text" if "text" in set(table["query"]) else "image"


def select(table: pd.DataFrame, metric: str, query: str | None = None) -> pd.DataFrame:
    return table[(table["metric"] == metric) & (table["query"] == (query or main_query(table)))]


def _unit(distances: pd.DataFrame) -> str:
    """Of pictures pixels, of sequences tokens."""
    return str(distances["unit"].iloc[0]) if "unit" in distances and len(distances) else "px"


def draw_heads(tables: Tables, labels: list[str]) -> Figure:
    """Distance beside entropy; one colour per model, all models on the same axes."""
    styles = f.model_styles(labels)
    fig, axes = f.new_figure(height=2.9, columns=2, share_y=False)
    blocks = blocks_of(tables)
    units = sorted({_unit(select(table, "distance")) for table in tables.values()})
    names = (f"mean distance ({', '.join(units)})", "entropy / ln N")
    for ax, metric, name in zip(axes, ("distance", "entropy_normalised"), names):
        uniform = []
        for i, (label, table) in enumerate(tables.items()):
            rows = select(table, metric)
            if not len(rows):
                continue
            shift = 0.14 * (i - (len(tables) - 1) / 2)  # models side by side, not on top of each other
            f.dots_per_block(ax, rows["block"] + shift, rows["mean"], style=styles[label])
            mean, half = over_heads(rows)
            band = {"low": mean - half, "high": mean + half}
            f.line_per_block(ax, mean.index + shift, mean, **band, style=styles[label], label="_", markers=False)
            uniform.append(float(rows["uniform"].iloc[0]))
        for value in _distinct(uniform):
            f.null_line(ax, value, "uniform")
        ax.set_ylim(bottom=0)
        if metric == "entropy_normalised":
            ax.set_ylim(top=1.08)
        f.block_axis(ax, blocks)
        f.label_axes(ax, y=name)
        f.direct_labels(ax)
    name_models(fig, labels, tables)
    return fig


def _distinct(values: list[float]) -> list[float]:
    """Values that can be told apart in the figure: one per group within 5 %."""
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value > 1.05 * kept[-1]:
            kept.append(value)
    return kept


def draw_mass(tables: Tables) -> Figure:
    """Stacked shares per block: one row per model, one column per kind of query."""
    kinds = [k for k in ("class", "first", "image", "text") if any(k in set(t["query"]) for t in tables.values())]
    fig, axes = f.new_figure(height=0.9 + 1.6 * len(tables), rows=len(tables), columns=len(kinds))
    blocks = blocks_of(tables)
    names: dict[str, Artist] = {}
    for i, (ax, (label, kind)) in enumerate(zip(axes, [(t, k) for t in tables for k in kinds])):
        who = f"{f.ellipsis(label)}: " if len(tables) > 1 else ""
        if kind not in set(tables[label]["query"]):
            ax.set_axis_off()
            axes[i + 1].yaxis.set_tick_params(labelleft=True)  # the numbers of the row stood at this one
            ax.text(0, 0.5, f"{who}no {kind} token", va="center", transform=ax.transAxes, color=f.MUTED)
            continue
        names |= _stack(ax, tables[label], kind)
        f.block_axis(ax, blocks, "block" if i >= len(axes) - len(kinds) else "")
        f.percent_axis(ax)
        ax.set(ylim=(0, 1), xlim=(-0.5, blocks - 0.5))
        ax.grid(False)
        f.label_axes(ax, y=f"{who}{kind}-token queries")
    ranked = dict.fromkeys(part for both in zip(_parts(False), _parts(True)) for part in both)
    order = [name for name in ranked if name in names]
    fig.legend([names[name] for name in order], order, loc="outside lower center", ncols=len(order))
    return fig


def _parts(texts: bool) -> tuple[str, str, str, str]:
    """What tokens look at: the first at the bottom of a bar."""
    if texts:
        return "first token", "separators", "the token itself", "other tokens"
    return "class token", "registers", "the token itself", "image tokens"


def _stack(ax: Axes, table: pd.DataFrame, kind: str) -> dict[str, Artist]:
    """Bars of the `_parts`, the first at the bottom -> {name: the bars}."""

    def share(metric: str) -> np.ndarray | None:
        rows = select(table, metric, kind)
        return rows.groupby("block")["mean"].mean().to_numpy() if len(rows) else None

    blocks = sorted(table["block"].unique().tolist())
    # a class token's own share is in that of the class tokens
    itself = share("mass_self") if kind == main_query(table) else None
    colours, texts = f.TOKEN_COLOURS, main_query(table) == "text"
    special = ("mass_first", "mass_separator") if texts else ("mass_class", "mass_register")
    shares = (*map(share, special), itself)
    rest = 1 - np.sum([s for s in shares if s is not None], axis=0)
    looks = ((colours["class"], 1.0), (colours["register"], 1.0), (colours["image"], 1.0), (colours["image"], 0.4))
    below = np.zeros(len(blocks))
    names: dict[str, Artist] = {}
    for name, values, (colour, alpha) in zip(_parts(texts), (*shares, rest), looks):
        if values is not None:
            bars = ax.bar(blocks, values, bottom=below, width=0.86, color=colour, alpha=alpha)
            names[name] = bars[0]
            below = below + values
    return names


MASSES = {
    "mass_class": "class token",
    "mass_register": "registers",
    "mass_first": "first token",
    "mass_separator": "separators",
}


def _findings(table: pd.DataFrame) -> list[Finding]:
    found = []
    distance = select(table, "distance")
    if len(distance):
        mean, half = over_heads(distance)
        first, last, uniform = mean.index[0], mean.index[-1], float(distance["uniform"].iloc[0])
        heads = distance[distance["block"] == first]["mean"]
        unit = _unit(distance)
        ends = [f"{short(float(mean[b]))} {unit} (95 % interval ± {short(float(half[b]), 2)})" for b in (first, last)]
        text = (
            f"attention travels {ends[0]} in the first block and {ends[1]} in the last; uniform attention would "
            f"travel {short(uniform)} {unit}. {int((heads < uniform / 2).sum())} of {len(heads)} heads of the first "
            "block stay within half of that."
        )
        found.append(Finding(text, 0.5))
    for kind, name in MASSES.items():
        rows = select(table, kind)
        if len(rows) and float(rows["uniform"].iloc[0]) > 0:  # a tokenizer may have separators that no text has
            mean, half = over_heads(rows)
            top, uniform = mean.index[int(mean.to_numpy().argmax())], float(rows["uniform"].iloc[0])
            times, share = float(mean[top]) / uniform, percent(float(mean[top]))
            text = (
                f"{main_query(table)} tokens give the {name} {share} of their attention in block {top} "
                f"(95 % interval ± {percent(float(half[top]), 2)}), {short(times)} times what uniform attention would"
                f"{': a sink' if kind == 'mass_first' and times > 10 else ''}."
            )
            found.append(Finding(text, 0.55 if times > 10 else 0.35))
    return found
