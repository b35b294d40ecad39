"""What did the varied option change? Accuracy and loss per setting, averaged over seeds, and profiles of separation."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.numbers import percent, short
from vitscope.report.panel import Finding, Panel, Runs, register_panel

MOST_PROFILES = 8  # more lines in one figure nobody tells apart
QUANTITIES = {
    "test_perplexity": "held-out perplexity",
    "test_accuracy": "held-out accuracy (%)",
    "test_loss": "held-out loss (nats)",
    "last_fuzziness": "fuzziness D of the last block",
    "over_embedding": "spike over the patch embedding",
    "rate": "rate per block",
}


# spike and rates of separation are among the quantities; its profiles over the epochs are in the panel of all probes
@register_panel("sweep", draws=("sweep_probe_separation_fits", "sweep_probe_separation_spike"))
def sweep_panel(runs: Runs) -> Panel | None:
    """Of one sweep; a page about several shows the first."""
    run = next((run for run in runs.values() if run.kind == "sweep"), None)
    table, summary = (run.table(name) if run else None for name in ("sweep_runs", "sweep_summary"))
    if run is None or table is None or summary is None:
        return None
    profile = run.table("sweep_profile")
    figures: dict[str, Figure] = {}
    if len(summary):
        figures["sweep_quantities"] = draw_quantities(table, summary)
    if profile is not None and len(profile):
        figures["sweep_profile"] = draw_profiles(profile)
    counts = sorted({int(n) for n in summary[summary["metric"].isin(list(QUANTITIES))]["runs"]}) or [0]
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    tables, failed = {"sweep_runs": table, "sweep_summary": summary}, table[table["status"] == "failed"]
    spike = (
        " The spike is the highest block over the patch embedding: at 1 the blocks begin no fuzzier than what they "
        "are given."
    )
    return Panel(
        key="sweep",
        lens="Sweep",
        title="What did the varied option change?",
        figures=figures,
        alt={
            "sweep_quantities": "Accuracy, loss and figures of separation per setting, with intervals",
            "sweep_profile": "Separation fuzziness per layer, one line per setting, on a log axis",
        },
        captions={
            "sweep_quantities": f"Dots: runs. Bars: mean over {seeds} seeds with its 95 % interval (Student's t, from "
            "three seeds on; of logarithms for perplexity, fuzziness, spike and rate).",
            "sweep_profile": f"Held-out images, the token that the head reads; geometric mean over {seeds} seeds, "
            "band: 95 % interval. Left of the blocks: raw pixels and the patch embedding.",
        },
        reading=(
            "Intervals that do not overlap are a difference beyond the scatter of seeds; others may still differ."
            + (spike if profile is not None else "")
        ),
        tables=tables if profile is None else {**tables, "sweep_profile": profile},
        protocol=f"after the last epoch, {len(table)} runs with seeds {table['seed'].min()} to {table['seed'].max()}",
        findings=[
            *(Finding(f"{r['run']} failed: {r['reason']} (log: {r['log']}).", 1.0) for r in failed.to_dict("records")),
            *_findings(summary),
        ],
        order=5,
        card=_card(next(label for label in runs if runs[label] is run), summary),
    )


def _card(label: str, summary: pd.DataFrame) -> Card | None:
    """The best setting, over its seeds."""
    rows = _ranked(summary)
    if not rows:
        return None
    best, texts = rows[-1], rows[-1]["metric"] == "test_perplexity"
    scale = 1 if texts else 100
    number, low, high = (scale * float(best[end]) for end in ("mean", "low", "high"))
    told = "is the lowest held-out perplexity" if texts else "of held-out images right, the most"
    apart = len(rows) < 2 or max(best["low"], rows[-2]["low"]) > min(best["high"], rows[-2]["high"])
    return Card(
        question="Which setting is best?",
        values={label: Value(number, low, high, "" if texts else "%")},
        says=f"{told} of {len(rows)} settings: {best['setting']}" + ("" if apart else "; intervals overlap"),
        name="the best setting",
        larger=not texts,
        order=5,
    )


def draw_quantities(table: pd.DataFrame, summary: pd.DataFrame) -> Figure:
    """One axes per quantity, settings below each other, so that long names can be read."""
    shown = {name: words for name, words in QUANTITIES.items() if (summary["metric"] == name).any()}
    settings = list(dict.fromkeys(table["setting"]))
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    fig, axes = f.new_figure(height=rows * (0.75 + 0.24 * len(settings)), rows=rows, columns=columns, share_x=False)
    for ax, (name, words) in zip(axes, shown.items()):
        scale = 100 if name == "test_accuracy" else 1
        for row, setting in enumerate(settings):
            _one_setting(ax, row, table, summary, setting, name, scale)
        ax.set_yticks(range(len(settings)), [f.ellipsis(s, 30) for s in settings])
        ax.set_ylim(len(settings) - 0.5, -0.5)
        ax.grid(True, axis="x")
        ax.grid(False, axis="y")
        if name == "over_embedding":
            ax.axvline(1, color=f.MUTED, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
        f.label_axes(ax, y=words)
    for spare in axes[len(shown) :]:
        spare.remove()
    return fig


def _one_setting(
    ax: Axes, row: int, table: pd.DataFrame, summary: pd.DataFrame, setting: str, name: str, scale: float
) -> None:
    runs = table[(table["setting"] == setting) & (table["status"] == "finished")][name].dropna()
    ax.plot(scale * runs, [row] * len(runs), linestyle="", marker="o", color=f.BLUE, alpha=0.35, markersize=4)
    for mean in summary[(summary["setting"] == setting) & (summary["metric"] == name)].to_dict("records"):
        if mean["low"] == mean["low"]:
            ax.hlines(row, scale * mean["low"], scale * mean["high"], color=f.INK, linewidth=1.6)
        ax.plot([scale * mean["mean"]], [row], marker="|", markersize=11, markeredgewidth=2, color=f.INK)


def draw_profiles(profile: pd.DataFrame) -> Figure:
    """The held-out profiles, one line per setting."""
    split = "test" if (profile["split"] == "test").any() else profile["split"].iloc[0]
    rows = profile[profile["split"] == split]
    token = "class" if (rows["token"] == "class").any() else "mean"
    settings = list(dict.fromkeys(rows["setting"]))[:MOST_PROFILES]
    fig, (ax,) = f.new_figure(height=3.2)
    deepest = int(rows["layer"].max())
    for setting, style in f.model_styles(settings).items():
        mine = rows[rows["setting"] == setting]
        blocks = mine[(mine["point"] == "block") & (mine["token"] == token)].sort_values("layer")
        f.line_per_block(
            ax, blocks["layer"], blocks["fuzziness"], low=blocks["low"], high=blocks["high"], style=style, label=setting
        )
        for place, part in (
            (-1, mine[mine["point"] == "pixels"]),
            (0, mine[(mine["point"] == "embedding") & (mine["token"] == "mean")]),
        ):
            open_marker = {"marker": style.marker, "markerfacecolor": "none", "linestyle": ""}
            ax.plot([place] * len(part), part["fuzziness"], color=style.colour, **open_marker)  # type: ignore[arg-type]
    f.log_axis(ax)
    ax.set_xticks([-1, 0, *range(1, deepest)], ["pixels", "embed", *map(str, range(1, deepest))])
    f.label_axes(ax, x="block", y="separation fuzziness D")
    f.direct_labels(ax, least=0.1)
    return fig


def _findings(summary: pd.DataFrame) -> list[Finding]:
    """The best and the worst setting, with their intervals: of perplexity where there is one, else of accuracy."""
    rows = _ranked(summary)
    if not rows:
        return []
    worst, best = rows[0], rows[-1]
    texts = best["metric"] == "test_perplexity"
    values = [short(row["mean"]) if texts else percent(row["mean"]) for row in (worst, best)]
    told = f"held-out perplexity {values[1]}" if texts else f"{values[1]} of held-out images right"
    text = f"{best['setting']}: {told}{_interval(best, 1, '') if texts else _interval(best, 100, ' %')}"
    if len(rows) > 1:
        known = best["low"] == best["low"] and worst["high"] == worst["high"]
        apart = max(best["low"], worst["low"]) > min(best["high"], worst["high"])
        overlap = f" ({'no overlap' if apart else 'the intervals overlap'})" if known else ""
        text = f"best is {text}; last is {worst['setting']} with {values[0]}{overlap}"
    return [Finding(text + ".", 0.9)]


def _ranked(summary: pd.DataFrame) -> list[dict[str, Any]]:
    """Settings from the worst to the best."""
    texts = bool((summary["metric"] == "test_perplexity").any())
    rows = summary[summary["metric"] == ("test_perplexity" if texts else "test_accuracy")]
    return [*rows.sort_values("mean", ascending=not texts, kind="stable").to_dict("records")]  # type: ignore[list-item]


def _interval(row: dict, scale: float, unit: str) -> str:
    if row["low"] != row["low"]:
        return ""
    return (
        f" (95 % interval {short(scale * row['low'])} to {short(scale * row['high'])}{unit}, {int(row['runs'])} seeds)"
    )
