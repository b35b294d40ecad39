"""Draws separation_study.png and prints the tables of docs/results/separation.md from the finished study:

python docs/figures/separation_study.py runs/separation
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from vitscope.analyses.separation.drawing import AXIS
from vitscope.analyses.separation.profile import epoch_fits
from vitscope.report import figures as f
from vitscope.report.svg import save_figure
from vitscope.runs import Run
from vitscope.sweeps.averages import mean_with_interval

KEYS = ["epoch", "split", "point", "token", "layer"]
TOKENS = ("class", "mean")


def read_runs(folder: Path, table: str) -> pd.DataFrame:
    """A table of all runs, with the seed."""
    runs = {path.name: Run.open(path) for path in sorted((folder / "runs").iterdir())}
    found = {int(name.rpartition("-")[2]): run.table(table) for name, run in runs.items()}
    return pd.concat([t.assign(seed=seed) for seed, t in found.items() if t is not None], ignore_index=True)


def over_seeds(table: pd.DataFrame, keys: list[str], column: str, *, geometric: bool = True) -> pd.DataFrame:
    rows = []
    for key, part in table.dropna(subset=[column]).groupby(keys, sort=False, dropna=False):
        mean, low, high = mean_with_interval(part[column].tolist(), geometric=geometric)
        rows.append(dict(zip(keys, key)) | {"mean": mean, "low": low, "high": high, "n": len(part)})
    return pd.DataFrame(rows)


def of(table: pd.DataFrame, **cells: object) -> pd.DataFrame:
    for name, value in cells.items():
        table = table[table[name] == value]
    return table


def draw(probe: pd.DataFrame) -> None:
    """Lines are geometric means, thin lines single seeds."""
    layers, epochs = int(probe["layer"].max()), sorted(set(probe["epoch"]))
    with f.house_style():
        figure, axes = f.new_figure(columns=3, height=3.2, share_x=False)
        for ax, token in zip(axes, TOKENS):
            shown = [0, int(epochs[1]), int(epochs[-1])]
            for style, epoch in zip(f.model_styles(map(str, shown)).values(), shown):
                now = of(probe, epoch=epoch, split="test")
                line_of_seeds(
                    ax,
                    of(now, point="block", token=token),
                    "layer",
                    style,
                    "untrained" if epoch == 0 else f"epoch {epoch}",
                )
                others = {
                    -1: of(now, point="pixels"),
                    0: of(now, point="embedding", token="mean"),
                    layers: of(now, point="logits"),
                }
                for place, rows in others.items():
                    values = rows["fuzziness"].dropna()
                    ax.plot(
                        [place] * len(values),
                        values,
                        marker=style.marker,
                        color=style.colour,
                        markerfacecolor="none",
                        linestyle="",
                    )
            ax.set_xticks([-1, 0, *range(1, layers), layers], ["pix", "emb", *map(str, range(1, layers)), "out"])
            ax.tick_params(axis="x", labelsize=7)
            f.label_axes(ax, x="block", y=AXIS, title=f"{token} token")
        axes[1].legend(loc="lower left")
        for token in TOKENS:
            style = f.token_style("class" if token == "class" else "image")
            for split, words in (("test", "held-out"), ("train", "training")):
                line = of(probe, point="block", token=token, split=split, layer=layers - 1)
                dashed = f.LineStyle(
                    style.colour, style.marker if split == "test" else "", "-" if split == "test" else "--"
                )
                line_of_seeds(axes[2], line, "epoch", dashed, f"{token}, {words}")
        f.whole_numbers(axes[2])
        axes[2].legend()
        f.label_axes(axes[2], x="epoch", y=AXIS, title="last block")
        for ax in axes:
            f.log_axis(ax)
        svg, _ = save_figure(figure, Path(__file__).parent, "separation_study")
        svg.unlink()  # the page shows the PNG


def line_of_seeds(ax: Axes, table: pd.DataFrame, x: str, style: f.LineStyle, label: str) -> None:
    for _, seed in table.groupby("seed"):
        ax.plot(seed[x], seed["fuzziness"], color=style.colour, linestyle=style.dash, linewidth=0.6, alpha=0.6)
    mean = over_seeds(table, [x], "fuzziness")
    f.line_per_block(ax, mean[x], mean["mean"], style=style, label=label)


def say(*parts: str) -> None:
    sys.stdout.write(" ".join(parts) + "\n")


def cell(row: pd.Series) -> str:
    return f"{row['mean']:.3g} ({row['low']:.3g}–{row['high']:.3g})"


def print_profiles(probe: pd.DataFrame, training: pd.DataFrame) -> None:
    d = over_seeds(probe, KEYS, "fuzziness")
    accuracy = over_seeds(training, ["epoch"], "test_accuracy", geometric=False).set_index("epoch")["mean"]
    for token in TOKENS:
        say(f"\nheld-out fuzziness, {token} token, geometric mean of the seeds")
        for epoch in sorted(set(d["epoch"])):
            now = of(d, epoch=epoch, split="test")
            blocks = of(now, point="block", token=token)["mean"]
            values = [*of(now, point="pixels")["mean"], *of(now, point="embedding", token="mean")["mean"], *blocks]
            values += [*of(now, point="logits")["mean"]]
            right = f"{100 * accuracy[epoch]:.1f}" if epoch in accuracy else "–"
            say(f"| {epoch} | {right} |", " | ".join(f"{x:.3g}" for x in values), "|")


def print_spikes(spikes: pd.DataFrame) -> None:
    say("\nthe highest block over pixels, over the embedding's mean token, and over the last block")
    for key, part in spikes.groupby(["split", "token", "epoch"]):
        where = ", ".join(map(str, part["place"]))
        ratios = [
            mean_with_interval(part[c].tolist(), geometric=True) for c in ("over_pixels", "over_embedding", "fall")
        ]
        say(
            f"| {' | '.join(map(str, key))} | {where} |",
            " | ".join(f"{m:.2f} ({a:.2f}–{b:.2f})" for m, a, b in ratios),
            "|",
        )


def print_fits(fits: pd.DataFrame, over: str) -> None:
    say(f"\nfits over {over}: R² of each seed, rate over seeds, ΔAICc and weight of each seed")
    for key, part in fits.groupby(["split", "token", "curve", "errors"]):
        r2 = ", ".join(f"{x:.3f}" for x in part["r2"])
        rate = cell(over_seeds(part, ["curve"], "rho").iloc[0]) if part["rho"].notna().any() else "–"
        decay = cell(over_seeds(part, ["curve"], "b", geometric=False).iloc[0]) if part["b"].notna().any() else "–"
        deltas, weights = (", ".join(f"{x:.2f}" for x in part[c]) for c in ("delta", "weight"))
        say(f"| {' | '.join(key)} | {r2} | rho {rate} | b {decay} | {deltas} | {weights} |")


def main(folder: Path) -> None:
    probe, training = read_runs(folder, "probe_separation"), read_runs(folder, "training")
    draw(probe)
    print_profiles(probe, training)
    print_spikes(read_runs(folder, "probe_separation_spike"))
    block = of(read_runs(folder, "probe_separation_fits"), over="blocks")
    print_fits(of(block, epoch=block["epoch"].max()), "blocks")
    print_fits(pd.concat([epoch_fits(part) for _, part in probe.groupby("seed")]), "epochs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
