"""The picture of `kpca.spectrum`: eigenvalues by rank on a log axis, the published ones, and the bound between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.kpca.conventions import PUBLISHED
from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import asked, blocks_of, counts, protocol, stacked, tables_of, told


@register_panel("kpca_spectrum")
def spectrum_panel(runs: Runs) -> Panel | None:
    eigenvalues = tables_of(runs, "kpca_eigenvalues")
    statistics, heads = tables_of(runs, "kpca_eigenvalue_statistics"), tables_of(runs, "kpca_spectrum")
    if not (eigenvalues and statistics and heads):
        return None
    shown = {label: runs[label] for label in eigenvalues}
    n = counts(eigenvalues)
    return Panel(
        key="kpca_spectrum",
        lens="Kernel PCA",
        title="How large are the eigenvalues of the keys' Gram matrix?",
        figures={"kpca_spectrum": draw_spectrum(eigenvalues, statistics, heads, list(runs))},
        alt={"kpca_spectrum": "Eigenvalues by rank on a log axis, far below the published range and the bound"},
        captions={
            "kpca_spectrum": f"Left: geometric mean over heads, blocks and {n} images (line), and of each block alone "
            "(thin). Grey: the published range, 4.65 to 648.46; dashed: the bound that no keys can exceed. Right: "
            "effective rank of every head (dots) and mean per block (line)."
        },
        reading=(
            "Every eigenvalue is at most the trace and that is at most the number of tokens, whatever the keys are. "
            "An effective rank far above 1 and far below the number of tokens says how many axes really matter."
        ),
        tables={"kpca_eigenvalue_statistics": stacked(statistics), "kpca_spectrum": stacked(heads)},
        protocol=protocol(shown, "kpca_eigenvalues", asked(shown, "kpca_eigenvalues", "kpca.spectrum", _variant)),
        findings=told({label: [_finding(table)] for label, table in statistics.items()}, len(runs) > 1),
        order=41,
    )


def draw_spectrum(
    eigenvalues: Tables,
    statistics: Tables,
    heads: Tables,
    labels: list[str],
) -> Figure:
    styles = f.model_styles(labels)
    fig, (left, right) = f.new_figure(height=3.1, columns=2, share_x=False, share_y=False)
    for label, table in eigenvalues.items():
        own, colour = table[table["weights"] == "own"], styles[label].colour
        for _, rows in own.groupby("block"):
            left.plot(rows["axis"] + 1, 10 ** rows["log10_mean"], color=colour, linewidth=0.5, alpha=0.35)
        mean = own.groupby("axis")["log10_mean"].mean()
        name = label if len(labels) > 1 else "_"
        left.plot(mean.index + 1, 10**mean, color=colour, linestyle=styles[label].dash, label=name)
    bounds = {float(t["bound"].iloc[0]) for t in statistics.values()}
    covariance = any((t["of"] == "covariance").any() for t in statistics.values())
    left.axhspan(PUBLISHED["min"], PUBLISHED["max"], color=f.NULL, alpha=0.5, linewidth=0, zorder=0)
    left.annotate(
        "published", (1, PUBLISHED["min"]), xycoords=("axes fraction", "data"), xytext=(-3, 3),
        textcoords="offset points", ha="right", va="bottom", fontsize=7.5, color=f.MUTED,
    )  # fmt: skip
    f.log_axis(left)
    for bound in sorted(bounds):
        left.axhline(bound, color=f.MUTED, linestyle=(0, (4, 3)), linewidth=1)
        left.annotate(
            f"bound: {bound:g}", (0, bound), xycoords=("axes fraction", "data"), xytext=(3, -3),
            textcoords="offset points", fontsize=7.5, color=f.MUTED, va="top",
        )  # fmt: skip
    matrix = "covariance" if covariance else "Gram matrix"
    f.label_axes(left, x="axis, by falling eigenvalue", y=f"eigenvalue of the {matrix}")
    f.direct_labels(left)
    for label, table in heads.items():
        own = table[(table["weights"] == "own") & (table["metric"] == "effective_rank")]
        f.dots_per_block(right, own["block"], own["mean"], style=styles[label])
        mean = own.groupby("block")["mean"].mean()
        f.line_per_block(right, mean.index, mean, style=styles[label], markers=False)
    right.set_ylim(bottom=0)
    f.block_axis(right, blocks_of(heads))
    f.label_axes(right, y="effective rank (axes)")
    return fig


def _variant(options: Mapping[str, Any]) -> str:
    keys = ", standardised keys" if options.get("standardised") else ""
    return f"variant {options.get('variant', 'exact')}{keys}"


def _finding(table: pd.DataFrame) -> Finding:
    own = table[table["weights"] == "own"].set_index("statistic")
    largest, bound = float(own["mean"]["max"]), float(own["bound"]["max"])
    text = f"the largest eigenvalue of the keys' Gram matrix is {short(largest)} on average; published was 648"
    text += f", which no keys of {short(bound)} tokens can have." if bound < PUBLISHED["max"] else "."
    return Finding(text, 0.45)
