"""The picture of `kpca.gamma`: what tells eigenvectors from other vectors, and what does not."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscope.analyses.kpca.conventions import VECTORS
from vitscope.report import figures as f
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import counts, protocol, stacked, tables_of, told

WORDS = {
    "eigenvectors": "true eigenvectors",
    "perturbed": "eigenvectors + noise",
    "recovered": "from the learned V",
    "random": "random vectors",
}
# one line per kind of vector; these hues are no model's and no token's on this panel
STYLES: dict[str, tuple[str, object]] = {
    "eigenvectors": (f.GREEN, "-"),
    "perturbed": (f.SKY, (0, (5, 2))),
    "recovered": (f.VERMILLION, "-"),
    "random": (f.MUTED, (0, (2, 2))),
}
GRIDS = 3  # models with a grid of all layers; more would fill the page
WHY = (
    "|γᵢ − γⱼ| alone proves nothing: γ itself is that small for any vector, so random vectors pass the test, too; the "
    "relative difference and the residual tell eigenvectors (0) from others."
)


@register_panel("kpca_gamma")
def gamma_panel(runs: Runs) -> Panel | None:
    average, layers, heads = (
        tables_of(runs, name) for name in ("kpca_gamma_average", "kpca_gamma", "kpca_gamma_heads")
    )
    if not (average and layers):
        return None
    shown = {label: runs[label] for label in average}
    n = counts(average)
    figures, alt, captions = {"kpca_gamma": draw_average(average, len(runs) > 1)}, {}, {}
    alt["kpca_gamma"] = "Absolute and relative differences of gamma and the residual per axis, four kinds of vectors"
    captions["kpca_gamma"] = (
        f"Mean over heads, blocks and {n} images; band: one standard deviation over heads and images."
    )
    for i, (label, table) in enumerate(list(layers.items())[:GRIDS]):
        for metric in ("absolute", "relative"):
            stem = f"kpca_gamma_layers_{metric}" + (f"_{i + 1}" if len(layers) > 1 else "")
            figures[stem] = draw_layers(table, metric)
            alt[stem] = f"{metric.capitalize()} difference of gamma per axis, one small plot per block"
            name = f"{label}, " if len(layers) > 1 else ""
            captions[stem] = f"{name}{metric} difference in every block, mean over heads and {n} images."
    return Panel(
        key="kpca_gamma",
        lens="Kernel PCA",
        title="Are the vectors behind the learned values eigenvectors?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=WHY,
        tables={"kpca_gamma_average": stacked(average)} | ({"kpca_gamma_heads": stacked(heads)} if heads else {}),
        protocol=protocol(shown, "kpca_gamma", "all pairs of tokens; pseudo-inverse of I − 1_N; noise 0.1"),
        findings=told({label: [_finding(table)] for label, table in average.items()}, len(runs) > 1),
        order=43,
    )


def _draw(ax: Axes, table: pd.DataFrame, metric: str, *, band: bool, label: bool) -> None:
    for kind in VECTORS:
        rows = table[table["vectors"] == kind]
        colour, dash = STYLES[kind]
        mean, spread = rows[metric], rows[f"{metric}_deviation"]
        if band:
            low = (
                (mean - spread).clip(lower=0)
                if metric != "absolute"
                else (mean / (1 + spread / mean.clip(lower=1e-300)))
            )
            ax.fill_between(rows["axis"] + 1, low, mean + spread, color=colour, alpha=0.13, linewidth=0)
        ax.plot(
            rows["axis"] + 1, mean, color=colour, linestyle=dash, label=WORDS[kind] if label else "_", linewidth=1.4
        )


def draw_average(tables: Tables, several: bool) -> Figure:
    """One row per model: absolute, relative, residual."""
    metrics = {"absolute": "|γᵢ − γⱼ|", "relative": "|γᵢ − γⱼ| / max", "residual": "residual"}
    fig, axes = f.new_figure(height=0.5 + 2.4 * len(tables), rows=len(tables), columns=3, share_y=False)
    for row, (label, table) in enumerate(tables.items()):
        own = table[table["weights"] == "own"]
        for column, (metric, words) in enumerate(metrics.items()):
            ax = axes[3 * row + column]
            _draw(ax, own, metric, band=True, label=column == 2)
            if metric == "absolute":
                f.log_axis(ax)
            else:
                ax.set_ylim(-0.03, 1.25 if metric == "relative" else 1.05)
            name = f"{f.ellipsis(label, 18)}: " if several and column == 0 else ""
            f.label_axes(ax, x="axis" if row == len(tables) - 1 else "", y=f"{name}{words}")
        f.direct_labels(axes[3 * row + 2], least=0.09)
    return fig


def draw_layers(table: pd.DataFrame, metric: str) -> Figure:
    """All blocks in a grid."""
    own = table[table["weights"] == "own"]
    blocks = sorted(own["block"].unique().tolist())
    fig, axes = f.small_multiples(len(blocks), columns=4, row_height=1.35)
    for ax, block in zip(axes, blocks):
        _draw(ax, own[own["block"] == block], metric, band=False, label=False)
        if metric == "absolute":
            f.log_axis(ax)
        else:
            ax.set_ylim(-0.03, 1.25)
        ax.annotate(
            f"block {block}", (0.5, 1), xycoords="axes fraction", ha="center", va="bottom", fontsize=7.5, color=f.MUTED
        )
    handles = [axes[0].plot([], [], color=c, linestyle=d, label=WORDS[k])[0] for k, (c, d) in STYLES.items()]
    fig.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=2.2)
    fig.supxlabel("axis, by falling eigenvalue", fontsize=8.5)
    return fig


def _finding(table: pd.DataFrame) -> Finding:
    own = table[table["weights"] == "own"].groupby("vectors")[["absolute", "residual"]].mean()
    residual, absolute = (
        {k: short(float(own[m][k])) for k in ("recovered", "random")} for m in ("residual", "absolute")
    )
    text = (
        f"the vectors behind the learned values miss the eigenvector equation by {residual['recovered']} of its "
        f"size, random vectors by {residual['random']}; the published test, |γᵢ − γⱼ|, passes both "
        f"({absolute['recovered']} and {absolute['random']})."
    )
    return Finding(text, 0.6)
