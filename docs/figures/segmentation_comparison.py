"""Draws segmentation_comparison.svg and prints the tables of docs/results/segmentation.md from the finished comparison:

python docs/figures/segmentation_comparison.py runs/segmentation
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from vitscope.analyses.segmentation.tables import overall
from vitscope.report import figures as f
from vitscope.report.svg import save_figure
from vitscope.runs import Run
from vitscope.statistics.bootstrap import percentiles, poisson_weights
from vitscope.sweeps.averages import mean_with_interval

ATTENTIONS = {"softmax": "softmax", "symmetric": "symmetric", "rpc": "RPC"}
PAIRS = (("symmetric", "softmax"), ("rpc", "softmax"), ("rpc", "symmetric"))
CORRUPTED = "mean of the 15"
DRAWS = 1000  # samples of the images


class Judged:
    """Mean IoU in per cent of all models under all conditions, and of samples of the images."""

    def __init__(self, folder: Path) -> None:
        self.values: dict[tuple[str, int], pd.Series] = {}  # (attention, seed): by condition
        self.drawn: dict[tuple[str, int], dict[str, np.ndarray]] = {}  # by condition (DRAWS,)
        for path in sorted((folder / "judged").iterdir()):
            name, seed = path.name.rsplit("-", 1)
            run = Run.open(path)
            table = run.table("segmentation").fillna({"corruption": "none"})
            rows = table[table["metric"] == "mean_iou"].replace({"corruption": {"none": "clean"}})
            values = rows.groupby("corruption", sort=False)["value"].mean()  # over severities
            values[CORRUPTED] = values.drop("clean").mean()
            self.values[name, int(seed)] = values
            self.drawn[name, int(seed)] = samples(run.table("segmentation_images").fillna({"corruption": "none"}))
        self.seeds = sorted({seed for _, seed in self.values})
        names = [c for c in next(iter(self.values.values())).index if c not in ("clean", CORRUPTED)]
        self.conditions = ["clean", CORRUPTED, *names]

    def of(self, attention: str, condition: str) -> np.ndarray:
        """In the order of the seeds."""
        return np.array([self.values[attention, seed][condition] for seed in self.seeds])

    def difference(self, pair: tuple[str, str], condition: str) -> np.ndarray:
        return self.of(pair[0], condition) - self.of(pair[1], condition)

    def over_images(self, pair: tuple[str, str], condition: str) -> tuple[float, float]:
        """The 95 % interval of the mean difference of these very models, over images."""
        drawn = [self.drawn[pair[0], s][condition] - self.drawn[pair[1], s][condition] for s in self.seeds]
        return percentiles(np.mean(drawn, axis=0))


def samples(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Mean IoU in samples of the images, by condition: every image weighs the same in all models and conditions."""
    image = table["path"].str.rsplit("/", n=1).str[-1].str.extract(r"(\d+)")[0].astype(int)
    weights = np.stack([poisson_weights(0, i, DRAWS) for i in range(image.max() + 1)])  # (images, R)
    found: dict[str, np.ndarray] = {}
    for (corruption, _), part in table.groupby(["corruption", "severity"], sort=False):
        counts = np.zeros((len(weights), 3, table["label"].max() + 1))
        for i, column in enumerate(("right", "pixels", "answered")):
            counts[image[part.index], i, part["label"]] = part[column]
        value = 100 * overall(np.einsum("nr,nkc->rkc", weights, counts))[0]  # (R,)
        found.setdefault("clean" if corruption == "none" else corruption, []).append(value)
    found = {name: np.mean(values, axis=0) for name, values in found.items()}
    return {**found, CORRUPTED: np.mean([v for name, v in found.items() if name != "clean"], axis=0)}


def between(mean: float, low: float, high: float) -> str:
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def tables(judged: Judged) -> str:
    pairs = [f"{a.replace('rpc', 'RPC')} − {b}" for a, b in PAIRS]
    lines = ["| mean IoU (%) | " + " | ".join([*ATTENTIONS.values(), *pairs]) + " |", "|" + "---|" * 7]
    for condition in judged.conditions:
        cells = [condition.replace("_", " ")]
        for attention in ATTENTIONS:
            own = judged.of(attention, condition)
            cells.append(f"{own.mean():.1f} ({own.min():.1f} to {own.max():.1f})")
        cells += [between(*mean_with_interval(judged.difference(pair, condition).tolist())) for pair in PAIRS]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| over images | " + " | ".join(pairs) + " |", "|" + "---|" * 4]
    for condition in judged.conditions[:2]:
        cells = [condition]
        for pair in PAIRS:
            cells.append(between(judged.difference(pair, condition).mean(), *judged.over_images(pair, condition)))
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| kept of the clean mean IoU (%) | " + " | ".join([*ATTENTIONS.values(), *pairs]) + " |"]
    kept = {a: 100 * judged.of(a, CORRUPTED) / judged.of(a, "clean") for a in ATTENTIONS}
    cells = [CORRUPTED, *(f"{x.mean():.1f} ({x.min():.1f} to {x.max():.1f})" for x in kept.values())]
    cells += [between(*mean_with_interval((kept[a] - kept[b]).tolist())) for a, b in PAIRS]
    return "\n".join([*lines, "|" + "---|" * 7, "| " + " | ".join(cells) + " |"])


def draw(judged: Judged) -> None:
    """Left every seed, right the mean difference of three pairs with its 95 % interval over seeds."""
    styles = f.model_styles(list(ATTENTIONS))
    with f.house_style():
        figure, (left, right) = f.new_figure(columns=2, height=5.2, share_x=False)
        for i, (attention, name) in enumerate(ATTENTIONS.items()):
            for y, condition in enumerate(judged.conditions):
                own = judged.of(attention, condition)
                label = name if y == 0 else None
                places = [y + 0.24 * (i - 1)] * len(own)
                left.plot(
                    own, places, styles[attention].marker, color=styles[attention].colour, markersize=3, label=label
                )
        for i, other in enumerate(("softmax", "symmetric")):
            style = styles[other]
            for y, condition in enumerate(judged.conditions):
                mean, low, high = mean_with_interval(judged.difference(("rpc", other), condition).tolist())
                place = y + 0.3 * (i - 0.5)
                right.hlines(place, low, high, color=style.colour, linewidth=2, alpha=0.5)
                label = f"RPC − {other}" if y == 0 else None
                right.plot([mean], [place], style.marker, color=style.colour, markersize=4, label=label)
        right.axvline(0, color=f.MUTED, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
        for ax in (left, right):
            ax.set_yticks(range(len(judged.conditions)), [c.replace("_", " ") for c in judged.conditions])
            ax.set_ylim(len(judged.conditions) - 0.5, -0.5)
            ax.grid(True, axis="x")
            ax.grid(False, axis="y")
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, columnspacing=1, handletextpad=0.2)
        f.label_axes(left, x="mean IoU (%), each seed")
        f.label_axes(right, x="difference of mean IoU (points), three seeds")
        _, png = save_figure(figure, Path(__file__).parent, "segmentation_comparison")
        png.unlink()  # the page shows the SVG


if __name__ == "__main__":
    found = Judged(Path(sys.argv[1]))
    draw(found)
    sys.stdout.write(tables(found) + "\n")
