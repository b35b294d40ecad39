"""In which block is the decision lost?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscope.analyses.class_space.panels.parts import few_ticks
from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import counts, protocol, stacked, tables_of, told
from vitscope.robustness.attack_panel import attack_style
from vitscope.robustness.conventions import CLEAN, NOISE
from vitscope.runs import Run

TABLE, CLASSES, ATTENTION, SPECTRUM = (
    "attack_lens", "attack_lens_class_space_identifiability", "attack_lens_attention", "attack_lens_kpca_spectrum"
)  # fmt: skip
INK = f.LineStyle(f.INK, "o")  # the clean version


@register_panel("attack_lens")
def attack_lens_panel(runs: Runs) -> Panel | None:
    """Where clean and attacked versions of the same images part."""
    tables = tables_of(runs, TABLE)
    if not tables:
        return None
    figures = {"attack_lens": draw_decision(tables)}
    eps = sorted({str(t["eps"].iloc[0]) for t in tables.values()})
    captions = {
        "attack_lens": f"Images that were right, n = {counts(tables, 'n_images')}, budget "
        f"{' and '.join(eps)}. Left: right answers if the block's output went straight to the head; bands: 95 % Wilson "
        "intervals. Middle: fooled images in which the wrong class has taken the lead for good by this "
        "block (dashed: the true class over that wrong one, in the clean version). Right: share of attention that went "
        "elsewhere; bands: 95 % intervals of the mean. Dotted: noise of the same budget."
    }
    alt = {"attack_lens": "Per block: answers, lost decisions and moved attention of clean and attacked images"}
    shapes = {label: _shape(run) for label, run in runs.items() if label in tables}
    if any(shapes.values()):
        figures["attack_lens_tokens"] = draw_tokens({k: v for k, v in shapes.items() if v})
        captions["attack_lens_tokens"] = (
            "The lenses on the same images, clean (black) and attacked: mean identifiability of the true class "
            "(chance: (K + 1) / 2K for K classes), and effective rank of the keys' Gram matrix, mean over heads."
        )
        alt["attack_lens_tokens"] = "Identifiability and effective rank per block, clean and attacked"
    shown = {name: stacked(t) for name in (TABLE, CLASSES, ATTENTION, SPECTRUM) if (t := tables_of(runs, name))}
    return Panel(
        key="attack_lens",
        lens="Attacks",
        title="In which block is the decision lost?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "Read from left to right, the attacked line leaves the clean one where the attack bites. A decision lost "
            "in the last blocks was taken from a representation that still had the true class; one that is lost early "
            "never built it up."
        ),
        tables=shown,
        protocol=protocol(runs, TABLE, "; ".join(sorted({str(t["protocol"].iloc[0]) for t in tables.values()}))),
        findings=told({label: _findings(table) for label, table in tables.items()}, len(runs) > 1),
        order=41,
    )


def draw_decision(tables: Tables) -> Figure:
    """A row per model: answers, lost decisions, moved attention."""
    reads = any("right_clean" in t.columns for t in tables.values())
    columns = 3 if reads else 1
    fig, axes = f.new_figure(height=0.7 + 2.0 * len(tables), rows=len(tables), columns=columns, share_y=False)
    for i, (label, table) in enumerate(tables.items()):
        row = axes[columns * i : columns * (i + 1)]
        blocks, last = int(table["block"].max()) + 1, i == len(tables) - 1
        title = f.ellipsis(label) if len(tables) > 1 else ""
        if reads and "right_clean" in table.columns:
            first = table[table["attack"] == table["attack"].iloc[0]]
            f.line_per_block(row[0], first["block"], first["right_clean"], style=INK, label="_")
            _each(row[0], table, "right_attacked")
            row[0].set_ylim(0, 100)
            _lost(row[1], table)
            f.label_axes(row[0], y="right if read here (%)", title=title)
            f.label_axes(row[1], y="fooled images, lost by here (%)")
            row[1].set_ylim(0, 100)
        _each(row[-1], table, "attention_moved")
        f.percent_axis(row[-1])
        row[-1].set_ylim(bottom=0)
        f.label_axes(row[-1], y="attention that moved")
        for ax in row:
            f.block_axis(ax, blocks, "block" if last else "")
            few_ticks(ax)
    _same_height(axes, columns)
    _legend(fig, [str(a) for t in tables.values() for a in t["attack"]])
    return fig


def draw_tokens(shapes: Mapping[str, dict[str, pd.DataFrame]]) -> Figure:
    """A row per model: identifiability of class and image tokens, effective rank."""
    names = list(dict.fromkeys(name for shape in shapes.values() for name in shape))
    fig, axes = f.new_figure(
        height=0.7 + 2.0 * len(shapes), rows=len(shapes), columns=len(names), share_y=False,
        width=f.PAGE * min(1, 0.4 * len(names)),
    )  # fmt: skip
    drawn: list[str] = []
    for i, (label, shape) in enumerate(shapes.items()):
        for j, name in enumerate(names):
            ax = axes[len(names) * i + j]
            if name not in shape:
                ax.set_visible(False)
                continue
            table = shape[name]
            for attack, part in table.groupby("attack", sort=False):
                style = INK if attack == CLEAN else attack_style(str(attack))
                f.line_per_block(ax, part["block"], part["mean"], style=style, label="_")
                drawn.append(str(attack))
            title = f.ellipsis(label) if j == 0 and len(shapes) > 1 else ""
            f.block_axis(ax, int(table["block"].max()) + 1, "block" if i == len(shapes) - 1 else "")
            few_ticks(ax)
            f.label_axes(ax, y=name, title=title)
    _same_height(axes, len(names))
    _legend(fig, drawn)
    return fig


def _lost(ax: Axes, table: pd.DataFrame) -> None:
    """Shares of the fooled images whose decision is lost by a block; dashed: won by it, without the attack."""
    for attack, part in table.groupby("attack", sort=False):
        fooled = int(part["n_fooled"].iloc[0])
        if attack == NOISE or fooled == 0:  # the few that noise fools make no distribution
            continue
        draw_lost(ax, part, fooled, attack_style(str(attack)))


def draw_lost(ax: Axes, part: pd.DataFrame, total: int, style: f.LineStyle) -> None:
    """Shares of `total` that are lost by each block; dashed: won by it, in the clean version."""
    f.line_per_block(ax, part["block"], 100 * part["lost"].cumsum() / total, style=style, label="_")
    won = 100 * part["won"].cumsum() / total
    ax.plot(part["block"], won, color=style.colour, linewidth=1.1, linestyle=(0, (4, 2)), label="_")


def _each(ax: Axes, table: pd.DataFrame, column: str) -> None:
    for attack, part in table.groupby("attack", sort=False):
        low, high = part[f"{column}_low"], part[f"{column}_high"]
        style = attack_style(str(attack))
        f.line_per_block(ax, part["block"], part[column], style=style, label="_", low=low, high=high)


def _same_height(axes: list[Axes], columns: int) -> None:
    """The models of a column share its y-axis: they are there to be compared."""
    for j in range(columns):
        column = [ax for ax in axes[j::columns] if ax.get_visible()]
        limits = [ax.get_ylim() for ax in column]
        for ax in column:
            ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _legend(fig: Figure, attacks: list[str]) -> None:
    legend_below(fig, {"clean": INK, **{a: attack_style(a) for a in attacks if a != CLEAN}})


def legend_below(fig: Figure, styles: Mapping[str, f.LineStyle]) -> None:
    handles = [Line2D([], [], color=s.colour, marker=s.marker, linestyle=s.dash) for s in styles.values()]  # type: ignore[arg-type]
    fig.legend(handles, list(styles), loc="outside lower center", ncols=min(6, len(styles)))


def _shape(run: Run) -> dict[str, pd.DataFrame]:
    """{what: attack, block, mean} of the lenses that ran."""
    found = {}
    table = run.table(CLASSES)
    if table is not None:
        rows = table[table["point"] == "resid_post"]
        for kind, name in (("class", "identifiability, class token"), ("image", "identifiability, image tokens")):
            if len(part := rows[rows["tokens"] == kind]):
                found[name] = part[["attack", "block", "mean"]]
    spectrum = run.table(SPECTRUM)
    if spectrum is not None:
        rank = spectrum[(spectrum["metric"] == "effective_rank") & (spectrum["weights"] == "own")]
        found["effective rank of the keys"] = rank.groupby(["attack", "block"], sort=False)["mean"].mean().reset_index()
    return found


def lost_block(part: pd.DataFrame, column: str = "lost") -> int:
    """The median block at which the decision is lost (or 'won'), of one attack."""
    total = part[column].cumsum()
    return int(part["block"][total >= part[column].sum() / 2].iloc[0])


def _findings(table: pd.DataFrame) -> list[Finding]:
    if "lost" not in table.columns:
        return []
    found = []
    select: Callable[[str], pd.DataFrame] = lambda attack: table[table["attack"] == attack]  # noqa: E731
    real = [a for a in table["attack"].unique() if a != NOISE and int(select(a)["lost"].sum()) > 0]
    for attack in real:
        part = select(attack)
        at = lost_block(part)
        moved, noise = (p[p["block"] == at]["attention_moved"] for p in (part, select(NOISE)))
        text = (
            f"the attack {attack} at {part['eps'].iloc[0]} fools "
            f"{short(int(part['n_fooled'].iloc[0]))} of {short(int(part['n_images'].iloc[0]))} images; "
            f"half of them have lost the decision by block {at} of "
            f"{int(part['block'].max())} (clean images have won it by block {lost_block(part, 'won')}), where "
            f"{short(100 * float(moved.iloc[0]))} % of the attention has moved"
        )
        if len(noise):
            text += f" ({short(100 * float(noise.iloc[0]))} % under noise of the same budget)"
        found.append(Finding(text + ".", 0.7))
    return found
