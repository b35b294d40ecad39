"""The picture of patches that lose their class, under attack and under corruption, block by block."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import protocol, stacked, tables_of, told
from vitscope.robustness.attack_lens_panel import INK, draw_lost, legend_below
from vitscope.robustness.attack_panel import attack_style
from vitscope.robustness.conventions import NOISE
from vitscope.robustness.corruptions.names import FAMILIES

ATTACKED, CORRUPTED = "segmentation_attack_lens", "segmentation_lens"
COLOURS = (f.VERMILLION, f.BLUE, f.GREEN, f.ORANGE, f.PURPLE)
READING = (
    "Only patches that the clean picture tells right are here, so the black line ends at 100 %. Where a coloured line "
    "leaves it, the change bites: a class that is lost in the last blocks was there before, one that is lost early was "
    "never built up."
)


@register_panel("segmentation_attack_lens")
def attack_lens_panel(runs: Runs) -> Panel | None:
    """Clean and attacked patches."""
    return _panel(runs, ATTACKED, "Attacks", "In which block does a patch lose its class to an attack?", 42)


@register_panel("segmentation_lens")
def corruption_lens_panel(runs: Runs) -> Panel | None:
    """Clean and corrupted patches."""
    return _panel(runs, CORRUPTED, "Corruptions", "In which block does a patch lose its class to a corruption?", 25)


def _panel(runs: Runs, name: str, lens: str, title: str, order: int) -> Panel | None:
    tables = tables_of(runs, name)
    if not tables:
        return None
    shown = {label: versions_of(table) for label, table in tables.items()}
    n = " and ".join(
        dict.fromkeys(
            f"{int(t['n_patches'].max()):,} patches of {int(t['n_images'].max()):,} images" for t in shown.values()
        )
    )
    how = "; ".join(sorted({str(t["how"].iloc[0]) for t in shown.values()}))
    return Panel(
        key=name,
        lens=lens,
        title=title,
        figures={name: draw(shown)},
        alt={name: "Per block: patches that carry their class, patches that have lost it, and how far they moved"},
        captions={
            name: f"Patches that carry their own class after the last block of the clean picture ({n}), {how}. Left: "
            "share that carry it if read after this block (black: clean). Middle: of those that have lost it at the "
            "end, the share that have lost it for good by this block (dashed: that had won it by then, clean). Right: "
            "distance of the changed residual stream from the clean one, relative to its length. Bands: 95 % intervals "
            "over images."
        },
        reading=READING,
        tables={name: stacked(tables)},
        protocol=protocol(runs, name, "the model's own final norm and decoder; a patch has the class of most pixels"),
        findings=told({label: _findings(table) for label, table in shown.items()}, len(runs) > 1),
        order=order,
    )


def versions_of(table: pd.DataFrame) -> pd.DataFrame:
    """All patches of each `version`: attacks, or corruptions at the largest severity; families where these are many."""
    rows = table[table["tokens"] == "all"]
    if "attack" in rows.columns:
        return rows.assign(version=rows["attack"], how=f"budget {rows['eps'].iloc[0]}")
    worst = int(rows["severity"].max())
    rows = rows[rows["severity"] == worst]
    named = rows["corruption"].str.replace("_", " ")
    if rows["corruption"].nunique() <= len(COLOURS):
        return rows.assign(version=named, how=f"severity {worst}")
    family = {name: key for key, names in FAMILIES.items() for name in names}
    rows = rows.assign(version=rows["corruption"].map(family).fillna("other"))
    means = ("right_clean", "right_changed", "moved")
    sums = ("lost", "won", "n_lost", "n_patches")
    grouped = rows.groupby(["version", "block"], sort=False)
    found = grouped.agg({**dict.fromkeys(means, "mean"), **dict.fromkeys(sums, "sum"), "n_images": "max"}).reset_index()
    return found.assign(how=f"severity {worst}, mean over the corruptions of a family")


def styles(table: pd.DataFrame) -> dict[str, f.LineStyle]:
    names = list(dict.fromkeys(table["version"]))
    if "attack" in table.columns:
        return {name: attack_style(name, i) for i, name in enumerate(names)}
    return {name: f.LineStyle(COLOURS[i % len(COLOURS)], "o^sDv"[i % 5]) for i, name in enumerate(names)}


def draw(tables: Tables) -> Figure:
    """A row per model."""
    fig, axes = f.new_figure(height=0.7 + 2.0 * len(tables), rows=len(tables), columns=3, share_y=False)
    top = max(float(t["moved"].max()) for t in tables.values()) * 1.08 or 1.0
    for i, (label, table) in enumerate(tables.items()):
        left, middle, right = axes[3 * i : 3 * i + 3]
        first = table[table["version"] == table["version"].iloc[0]]
        f.line_per_block(left, first["block"], first["right_clean"], style=INK, label="_")
        for version, style in styles(table).items():
            part = table[table["version"] == version]
            for ax, value in ((left, "right_changed"), (right, "moved")):
                low, high = (part.get(f"{value}_{end}") for end in ("low", "high"))  # families have none
                f.line_per_block(ax, part["block"], part[value], style=style, label="_", low=low, high=high)
            if lost := int(part["lost"].sum()):
                draw_lost(middle, part, lost, style)
        title = f.ellipsis(label) if len(tables) > 1 else ""
        f.label_axes(left, y="carry their class (%)", title=title)
        f.label_axes(middle, y="of the lost, lost by here (%)")
        f.label_axes(right, y="residual moved")
        for ax, limit in ((left, 104.0), (middle, 104.0), (right, top)):
            ax.set_ylim(0, limit)
            f.block_axis(ax, int(table["block"].max()) + 1, "block" if i == len(tables) - 1 else "")
    known = {name: style for table in tables.values() for name, style in styles(table).items()}
    legend_below(fig, {"clean": INK, **known})
    return fig


def _findings(table: pd.DataFrame) -> list[Finding]:
    """Of what takes most patches away: how many, and by which block."""
    counts = {str(v): int(part["lost"].sum()) for v, part in table.groupby("version", sort=False) if v != NOISE}
    if not counts or not max(counts.values()):
        return []
    version = max(counts, key=lambda v: counts[v])
    part = table[table["version"] == version]
    lost, total = counts[version], int(part["n_patches"].iloc[0])
    at = {name: int(part["block"][part[name].cumsum() >= lost / 2].iloc[0]) for name in ("lost", "won")}
    text = (
        f"{version} ({part['how'].iloc[0]}) takes the class from "
        f"{short(100 * lost / total)} % of the patches that carry it in clean pictures; half of these have lost it by "
        f"block {at['lost']} of {int(part['block'].max())} (clean, half of them carry it from block {at['won']} on)"
    )
    noise = table[table["version"] == NOISE]
    if "attack" in table.columns and len(noise):
        text += f"; noise of this budget takes {short(100 * int(noise['lost'].sum()) / total)} %"
    return [Finding(text + ".", 0.7)]
