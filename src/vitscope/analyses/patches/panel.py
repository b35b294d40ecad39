"""The pictures of `patches.identifiability`: at which block does a patch carry its own class, and who makes it so?"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.patches.slider import TABLE as MAPS
from vitscope.analyses.patches.slider import block_slider
from vitscope.report import figures as f
from vitscope.report import lens_drawing as d
from vitscope.report.card import Card
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import blocks_of, name_models, protocol, stacked, tables_of, told

LEVEL, CHANGE, KNOWN, CLASSES = "patches_identifiability", "patches_change", "patches_known", "patches_classes"
PAIRS = (("inside", "border"), ("frequent", "rare"))


@register_panel("patches")
def patches_panel(runs: Runs) -> Panel | None:
    """Share of patches that carry their class per block, what the branches add, from when on, and a slider."""
    levels, changes, known, classes, maps = (tables_of(runs, name) for name in (LEVEL, CHANGE, KNOWN, CLASSES, MAPS))
    if not levels or not known:
        return None
    n = sizes(levels)
    figures = {"patches_levels": draw_levels(levels, list(runs))}
    if changes:
        figures["patches_branches"] = d.draw_branches(changes)
    figures["patches_known"] = d.draw_known(known, list(runs), "patches")
    captions = {
        "patches_levels": "Share of patches whose own class is the first reading. Left: inside of objects (solid) and "
        "at borders (dashed), where a patch holds pixels of several classes or touches one of another class. Right: "
        f"frequent classes (solid) and rare ones (dashed). {n}; bands: 95 % intervals over images. Thin grey: who "
        "always says the most frequent class.",
        "patches_branches": "Mean change of the log-probability of the patch's own class, in nats: attention from the "
        f"block's input to the residual behind it, MLP from there to the block's output. {n}; bands as above.",
        "patches_known": "Share of patches whose class becomes the first reading at this block and stays it up to the "
        f"last; 'never': it is not at the end. {n}; bars: 95 % intervals over images.",
    }
    names = {int(r["class"]): str(r["class_name"]) for t in classes.values() for r in t.to_dict("records")}
    behind = {LEVEL: levels, CHANGE: changes, KNOWN: known, CLASSES: classes}
    return Panel(
        key="patches",
        lens="Patches",
        title="At which block does a patch know what it is?",
        figures=figures,
        alt={
            "patches_levels": "Share of patches that carry their own class, per block, by place and frequency",
            "patches_branches": "What attention and MLP of each block add to the log-probability of the own class",
            "patches_known": "Share of patches that carry their class from each block on to the last",
        },
        captions={name: text for name, text in captions.items() if name in figures},
        reading=(
            "After each block the model's own final norm and decoder read the patches, as if the encoder ended there. "
            "Move the slider to see what each patch is taken for, block by block; below each map, how much is right."
        ),
        tables={name: stacked(tables) for name, tables in behind.items() if tables},
        protocol=protocol(runs, LEVEL, "the model's own final norm and decoder; a patch has the class of most pixels"),
        findings=told({label: _findings(t, known[label]) for label, t in levels.items()}, len(runs) > 1),
        html=block_slider(runs, maps, names) if maps else "",
        order=14,
        card=_card(levels),
    )


def _card(levels: Tables) -> Card | None:
    rows = {label: d.from_embedding(table, "all") for label, table in levels.items()}
    return d.rates_card(
        rows,
        "When does a patch know what it is?",
        says="of patches, read after the last block, carry their own class",
        name="patches that carry their class",
        across="embedding, then blocks",
        chance=float(next(iter(rows.values()))["majority"].iloc[-1]),
        order=20,
    )


def sizes(tables: Tables) -> str:
    """'2,313 patches of 40 images', of each model where they differ."""
    found = [f"{int(t['n_patches'].max()):,} patches of {int(t['n_images'].max()):,} images" for t in tables.values()]
    return " and ".join(dict.fromkeys(found))


def draw_levels(tables: Tables, labels: list[str]) -> Figure:
    """Share known: inside and at borders on the left, frequent and rare classes on the right."""
    styles = f.model_styles(labels)
    fig, axes = f.new_figure(height=3.1, columns=2)
    for ax, pair in zip(axes, PAIRS):
        for kind, dash in zip(pair, ("-", "--")):
            for place, (label, table) in enumerate(tables.items()):
                rows = d.from_embedding(table, kind)
                if not len(rows):
                    continue
                d.banded(ax, rows, "rate", replace(styles[label], dash=dash), kind if place == 0 else "_")
                if place == 0:
                    ax.axhline(float(rows["majority"].iloc[0]), color=f.MUTED, linewidth=0.7, linestyle=dash, zorder=1)
        d.blocks_with_embedding(ax, blocks_of(tables))
        ax.set_ylim(0, 100)
        f.label_axes(ax, y="patches that carry their own class (%)")
        f.direct_labels(ax)
    name_models(fig, labels, tables)
    return fig


def _findings(levels: pd.DataFrame, known: pd.DataFrame) -> list[Finding]:
    ends = {kind: d.over_blocks(levels, "resid_post", kind) for kind in ("all", "inside", "border")}
    last = {kind: table.to_dict("records")[-1] for kind, table in ends.items() if len(table)}
    rows = known[known["tokens"] == "all"].to_dict("records")
    total = float(last["all"]["rate"])
    text = (
        f"after the last block {short(total)} % of the patches carry their own class (95 % interval "
        f"{short(float(last['all']['rate_low']))} to {short(float(last['all']['rate_high']))} %)"
    )
    half = next((row["known_from"] for row in rows if row["known"] >= total / 2), "never")
    where = "in the embedding" if half == "embedding" else f"from block {half} of {len(rows) - 3} on"
    text += f", half of these {where}; who always says the most frequent class is right for"
    found = [Finding(f"{text} {short(float(last['all']['majority']))} %.", 0.75)]
    if "inside" in last and "border" in last:
        inside, border = float(last["inside"]["rate"]), float(last["border"]["rate"])
        found.append(
            Finding(f"{short(inside)} % of the patches inside of objects carry their class, {short(border)} % of "
                    "those at borders.", 0.6)
        )  # fmt: skip
    return found
