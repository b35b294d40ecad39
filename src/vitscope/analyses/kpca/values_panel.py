"""The picture of `kpca.values`: how alike learnt and theoretical values are, block by block, with the null band."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.kpca.conventions import LEARNED, OTHER, RANDOM
from vitscope.report import figures as f
from vitscope.report.numbers import percent
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import asked, blocks_of, counts, protocol, stacked, tables_of, told

SHOWN = {
    "optimal_cosine": "optimal cosine",
    "linear_cka": "linear CKA",
    "kernel_cka": "kernel CKA",
    "principal_overlap": "overlap of the spaces",
    "cca": "canonical correlation",
    "component": "best matching of components",
}


@register_panel("kpca_values")
def values_panel(runs: Runs) -> Panel | None:
    tables, model = tables_of(runs, "kpca_values"), tables_of(runs, "kpca_values_model")
    if not tables:
        return None
    shown = {label: runs[label] for label in tables}
    n = counts(tables)
    return Panel(
        key="kpca_values",
        lens="Kernel PCA",
        title="Do learned values look like those of the theorem?",
        figures={"kpca_values": draw_values(tables, list(runs))},
        alt={"kpca_values": "Six measures of alignment per block: learned values, null band, another head's values"},
        captions={
            "kpca_values": f"Line: mean over heads and {n} images, dots: heads. Grey band: random values of the same "
            "norms (lowest to highest head); dashed: the values of another head; dotted, where measured: random "
            "weights. 1 is perfect agreement. Upper row: as published, and dependent on sign, order or length "
            "of the axes, which the theory leaves open; lower row: measures that are not."
        },
        reading=(
            "Inside the grey band, learned values are no more like the theorem's than random ones are. On the dashed "
            "line, what there is of alignment has nothing to do with the head: any other head's values would do."
        ),
        tables={"kpca_values_model": stacked(model), "kpca_values": stacked(tables)},
        protocol=protocol(shown, "kpca_values", asked(shown, "kpca_values", "kpca.values", _variant)),
        findings=told({label: _findings(t) for label, t in model.items()}, len(runs) > 1),
        order=44,
    )  # fmt: skip


def draw_values(tables: Tables, labels: list[str]) -> Figure:
    styles = f.model_styles(labels)
    fig, axes = f.new_figure(height=4.3, rows=2, columns=3, share_y=False)
    blocks = blocks_of(tables)
    for i, (ax, (metric, name)) in enumerate(zip(axes, SHOWN.items())):
        for label, table in tables.items():
            rows = table[table["metric"] == metric]
            own, style = rows[rows["weights"] == "own"], styles[label]
            null = own[own["values"] == RANDOM].groupby("block")["mean"]
            if len(null):
                f.null_band(ax, null.min().to_numpy(), null.max().to_numpy(), "_", x=null.min().index)
            for kind, part, dash in (
                (OTHER, own, (0, (4, 2))),
                (LEARNED, rows[rows["weights"] == "random"], (0, (1, 1.5))),
            ):
                mean = part[part["values"] == kind].groupby("block")["mean"].mean()
                if len(mean):
                    ax.plot(mean.index, mean, color=style.colour, linestyle=dash, linewidth=1.1, zorder=4)
            learned = own[own["values"] == LEARNED]
            f.dots_per_block(ax, learned["block"], learned["mean"], style=style)
            mean = learned.groupby("block")["mean"].mean()
            f.line_per_block(ax, mean.index, mean, style=style, label=label if len(labels) > 1 else "_", markers=False)
        f.block_axis(ax, blocks, "block" if i >= 3 else "")
        ax.set_ylim(0, 1)
        f.label_axes(ax, y=name)
    f.direct_labels(axes[2], least=0.09)
    lines: list[tuple[str, Any, float]] = [("learned values", "-", 1.6), ("another head's values", (0, (4, 2)), 1.1)]
    if any((table["weights"] == "random").any() for table in tables.values()):
        lines.append(("random weights", (0, (1, 1.5)), 1.1))
    handles: list[Any] = [axes[0].plot([], [], color=f.INK, linestyle=d, linewidth=w, label=t)[0] for t, d, w in lines]
    handles.append(axes[0].fill_between([], [], [], color=f.NULL, alpha=0.5, linewidth=0, label="random values"))
    axes[0].legend(handles=handles, loc="upper right", borderaxespad=0.2)
    return fig


def _variant(options: Mapping[str, Any]) -> str:
    keys = ", standardised keys" if options.get("standardised") else ""
    return f"variant {options.get('variant', 'exact')}, {options.get('axes', 'unit')} eigenvectors{keys}"


def _findings(table: pd.DataFrame) -> list[Finding]:
    own = table[table["weights"] == "own"]
    fair = own[own["metric"] == "principal_overlap"].set_index("values")["mean"]
    if RANDOM not in fair:
        return []
    text = (
        f"{percent(float(fair[LEARNED]))} of the space of the learned values lies in that of the theorem's; "
        f"chance gives {percent(float(fair[RANDOM]))}"
    )
    if OTHER in fair:
        text += f", another head's values {percent(float(fair[OTHER]))}"
    return [Finding(f"{text} (principal angles: blind to sign, order and length of the axes).", 0.55)]
