"""Draws attention_comparison.png and prints the numbers of docs/results/attention.md from the finished comparison:

python docs/figures/attention_comparison.py runs/attention
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pandas as pd
import torch

from vitscope.attention.rpc import rpc_threshold
from vitscope.data import load_data
from vitscope.models import open_model
from vitscope.report import figures as f
from vitscope.report.svg import save_figure
from vitscope.runs import Run
from vitscope.sweeps.averages import mean_with_interval
from vitscope.training.panel import Curve, curves_over_seeds

COLUMNS = {
    "symmetric": "Symmetric",
    "RPC, layer 0": "RPC in layer 0",
    "RPC, all": "RPC in all layers",
    "scaled": "Scaled",
}


def short(attention: str) -> str:
    """`symmetric; rpc:layers=0,...,variant=code` -> `RPC, layer 0: code`."""
    if found := re.search(r"rpc:layers=(\w+).*variant=(\w+)", attention):
        return f"RPC, {'all' if found[1] == 'all' else 'layer 0'}: {found[2]}"
    return attention.replace(":form=", ": ").replace("matrix", "matrix S").replace("scalar", "scalar α")


def read_curves(folder: Path) -> dict[str, Curve]:
    runs = {path.name: Run.open(path) for path in sorted((folder / "runs").iterdir())}
    runs = {name: run for name, run in runs.items() if run.status == "finished"}
    tables = {name: run.table("training") for name, run in runs.items()}
    curves = {short(curve.name): curve for curve in curves_over_seeds(runs, tables)}
    order = ["softmax", *COLUMNS, "code", "paper", "exact"]
    return dict(sorted(curves.items(), key=lambda item: [name not in item[0] for name in order]))


def draw(curves: dict[str, Curve]) -> None:
    with f.house_style():
        figure, axes = f.new_figure(rows=2, columns=len(COLUMNS), height=4.4)
        for row, (quantity, unit, scale) in enumerate((("accuracy", "accuracy (%)", 100), ("loss", "loss (nats)", 1))):
            for column, (begin, title) in enumerate(COLUMNS.items()):
                ax = axes[row * len(COLUMNS) + column]
                shown = {"softmax": curves["softmax"]} | {n: c for n, c in curves.items() if n.startswith(begin)}
                styles = f.model_styles(list(shown)[1:])
                for name, curve in shown.items():
                    style = styles.get(name, f.LineStyle(f.MUTED, "", "-"))
                    p = curve.over_seeds(f"test_{quantity}")
                    label = name.rpartition(": ")[2]
                    f.line_per_block(
                        ax, p["epoch"], scale * p["mean"], style=style, label=label, low=scale * p["low"],
                        high=scale * p["high"], markers=name != "softmax",
                    )  # fmt: skip
                f.whole_numbers(ax)
                f.label_axes(ax, x="epoch" if row else "", y=unit, title="" if row else title)
                if row == 0:
                    ax.legend(loc="lower right")
        svg, _ = save_figure(figure, Path(__file__).parent, "attention_comparison")
        svg.unlink()  # the page shows the PNG


def table(curves: dict[str, Curve]) -> str:
    """Means over seeds with 95 % intervals (Student's t), after the last epoch, and paired differences to softmax."""
    last = {name: pd.concat([t.iloc[[-1]] for t in curve.tables]) for name, curve in curves.items()}
    base = last["softmax"]["test_accuracy"].to_numpy()
    lines = [
        "| attention | held-out accuracy (%) | seeds | difference to softmax | held-out loss | training loss |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in last.items():
        accuracy = 100 * rows["test_accuracy"].to_numpy()
        mean, low, high = mean_with_interval(accuracy)
        cells = [name, f"{mean:.1f} ({low:.1f} to {high:.1f})", ", ".join(f"{a:.1f}" for a in accuracy)]
        if name == "softmax":
            cells.append("")
        else:
            d, low, high = mean_with_interval(accuracy - 100 * base)
            cells.append(f"{d:+.1f} ({low:+.1f} to {high:+.1f})")
        cells += [f"{mean_with_interval(rows[c].to_numpy())[0]:.3f}" for c in ("test_loss", "train_loss")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


@torch.no_grad()
def outlier_shares(folder: Path) -> str:
    """Per RPC setting (seed 0): key entries beyond the first iteration's threshold, for each layer with RPC."""
    lines = []
    for path in sorted((folder / "runs").glob("*rpc*_seed-0")):
        model = open_model(path)
        (batch,) = load_data("fashion-mnist", "test", images=200).batches(model.preprocess, 200)
        shares = []
        for block in model.module.blocks:
            if not hasattr(options := getattr(block.attn, "options", None), "iterations"):
                continue  # no RPC here
            found: list[torch.Tensor] = []
            handle = block.attn.qkv.register_forward_hook(lambda _, __, value, found=found: found.append(value))
            model(batch.images)
            handle.remove()
            heads, size = model.layout.heads, model.layout.head_dim
            keys = found[0].unflatten(-1, (2, heads, size))[:, :, 0].transpose(1, 2)  # (B, H, N, D)
            beyond = keys.abs() > rpc_threshold(keys, options.lambd, options.variant)
            shares.append(f"{100 * beyond.double().mean():.3f} %")
        lines.append(f"{path.name}: {', '.join(shares)}")
    return "\n".join(lines)


if __name__ == "__main__":
    found = read_curves(Path(sys.argv[1]))
    draw(found)
    sys.stdout.write(f"{table(found)}\n\n{outlier_shares(Path(sys.argv[1]))}\n")
