"""Draws robustness_comparison.png and prints the tables of docs/results/robustness.md from finished runs:

python docs/figures/robustness_comparison.py runs/attacked runs/corrupted

Each folder holds one folder per attention, and these the runs of `vitscope attack` or `vitscope evaluate`, one a seed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from vitscope.report import figures as f
from vitscope.report.svg import save_figure
from vitscope.runs import Run
from vitscope.sweeps.averages import mean_with_interval

NAMES = {"softmax": "softmax", "symmetric": "symmetric", "rpc": "RPC in layer 0"}


def read(folder: Path, table: str) -> pd.DataFrame:
    """The table of every run, with its attention and its seed."""
    parts = []
    for path in sorted(folder.glob("*/*/run.json")):
        name = path.parent.name
        kind = next(k for k in ("rpc", "softmax", "symmetric") if k in name)
        parts.append(Run.open(path.parent).table(table).assign(attention=kind, seed=int(name[-1])))
    return pd.concat(parts, ignore_index=True)


def draw(attacks: pd.DataFrame) -> None:
    styles = f.model_styles(NAMES)
    with f.house_style():
        figure, axes = f.new_figure(columns=3, height=2.7)
        for ax, attack in zip(axes, ("noise", "fgsm", "pgd")):
            for kind, name in NAMES.items():
                part = attacks[(attacks["attack"] == attack) & (attacks["attention"] == kind)]
                clean = part.groupby("seed").first().assign(epsilon=0.0, accuracy=lambda t: t["clean"])
                rows = pd.concat([clean, part]).groupby("epsilon")["accuracy"].agg(["mean", "min", "max"])
                f.line_per_block(
                    ax, 255 * rows.index, rows["mean"], style=styles[kind], label=name, low=rows["min"],
                    high=rows["max"],
                )  # fmt: skip
            f.label_axes(ax, x="largest change of a pixel (1/255)", y="accuracy (%)", title=attack)
            ax.set_ylim(0, 100)
        axes[0].legend(loc="lower left")
        svg, _ = save_figure(figure, Path(__file__).parent, "robustness_comparison")
        svg.unlink()  # the page shows the PNG


def wide(table: pd.DataFrame, rows: list[str], value: str, scale: float = 1.0) -> str:
    """One line per condition: mean over seeds per attention, and paired differences to softmax and to symmetric."""
    heads = [*rows, *NAMES.values(), "RPC − softmax", "RPC − symmetric"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for key, part in table.groupby(rows, sort=False):
        seeds = scale * part.pivot_table(index="seed", columns="attention", values=value)
        cells = [*map(str, key)]
        cells += [f"{seeds[kind].mean():.1f} ({seeds[kind].min():.1f} to {seeds[kind].max():.1f})" for kind in NAMES]
        for other in ("softmax", "symmetric"):
            mean, low, high = mean_with_interval((seeds["rpc"] - seeds[other]).to_numpy())
            cells.append(f"{mean:+.1f} ({low:+.1f} to {high:+.1f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def clean_and_attacked(attacks: pd.DataFrame) -> pd.DataFrame:
    clean = attacks.groupby(["attention", "seed"], as_index=False).first()
    return pd.concat([clean.assign(attack="none", eps="0", accuracy=clean["clean"]), attacks], ignore_index=True)


if __name__ == "__main__":
    attacked, corrupted = (Path(word) for word in sys.argv[1:])
    found = read(attacked, "attack")
    draw(found)
    sys.stdout.write(wide(clean_and_attacked(found), ["attack", "eps"], "accuracy") + "\n\n")
    evaluation = read(corrupted, "evaluation").fillna({"corruption": "none"})
    sys.stdout.write(wide(evaluation, ["corruption"], "top1") + "\n")
