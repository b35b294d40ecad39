"""Draws language_comparison.svg and prints the numbers of docs/results/language.md from the finished comparison:

python docs/figures/language_comparison.py runs/language
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from vitscope.attention.rpc import rpc_threshold
from vitscope.data import load_texts
from vitscope.models import open_model
from vitscope.report import figures as f
from vitscope.report.svg import save_figure
from vitscope.runs import Run
from vitscope.sweeps.averages import mean_with_interval
from vitscope.training import TrainOptions
from vitscope.training.setup import open_data

ATTENTIONS = ("softmax", "symmetric", "RPC in layer 0")
MEASURES = {  # (condition, over): what it is called
    ("clean", "all"): "clean",
    ("swap", "all"): "swapped, all targets",
    ("swap", "unswapped"): "swapped, unswapped targets",
    ("typos", "all"): "typos, all targets",
    ("typos", "unswapped"): "typos, unswapped targets",
}


def attention_of(run: Run) -> tuple[str, int]:
    """(what it is called, seed)"""
    options = run.config["options"]
    name = str(options["attention"])
    return (ATTENTIONS[2] if "rpc" in name else name), int(options["seed"])


def read(folder: Path) -> pd.DataFrame:
    """One row per attention, seed and measure: perplexity, and how many times that of the clean texts it is."""
    rows = []
    for path in sorted((folder / "evaluated").iterdir()):
        attention, seed = attention_of(Run.open(folder / "trained" / "runs" / path.name))
        table = Run.open(path).table("perplexity")
        for row in table[table["metric"] == "perplexity"].to_dict("records"):
            key = {"attention": attention, "seed": seed, "measure": MEASURES[row["condition"], row["over"]]}
            rows.append({**key, "perplexity": row["value"], "times": row["change"], "targets": row["targets"]})
    return pd.DataFrame(rows).sort_values("seed")


def between(values: np.ndarray, digits: int = 3) -> str:
    """'1.02 (0.98 to 1.06)': geometric mean over seeds and its 95 % interval, which two seeds do not have"""
    mean, low, high = mean_with_interval(values.tolist(), geometric=True)
    if low != low:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def of(table: pd.DataFrame, attention: str, measure: str, column: str = "perplexity") -> np.ndarray:
    """In the order of the seeds."""
    return table[(table["attention"] == attention) & (table["measure"] == measure)][column].to_numpy()


def tables(table: pd.DataFrame) -> str:
    lines = [
        "| measure | attention | perplexity | seeds | : softmax | : symmetric | : clean |",
        "|---|---|---|---|---|---|---|",
    ]
    for measure in MEASURES.values():
        for attention in ATTENTIONS:
            own = of(table, attention, measure)
            cells = [measure, attention, between(own, 2), ", ".join(f"{x:.2f}" for x in own)]
            for base in ATTENTIONS[:2]:
                ahead = ATTENTIONS.index(attention) > ATTENTIONS.index(base)
                cells.append(between(own / of(table, base, measure)) if ahead else "")
            cells.append("" if measure == "clean" else between(of(table, attention, measure, "times")))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def costs(table: pd.DataFrame) -> str:
    """What damage costs one attention beside what it costs another, paired by seed: 1 is the same."""
    lines = []
    for measure in list(MEASURES.values())[1:]:
        for attention, base in ((ATTENTIONS[2], ATTENTIONS[0]), ATTENTIONS[2:0:-1], ATTENTIONS[1::-1]):
            ratio = of(table, attention, measure, "times") / of(table, base, measure, "times")
            lines.append(f"{measure}: what it costs {attention} : {base}: {between(ratio, 4)}")
    return "\n".join(lines)


def draw(table: pd.DataFrame) -> None:
    """Every seed beside softmax on the same seed; the line is the 95 % interval of the mean ratio."""
    styles = f.model_styles(list(ATTENTIONS))
    with f.house_style():
        figure, (left, right) = f.new_figure(columns=2, height=2.9, share_x=False)
        for ax, column in ((left, "perplexity"), (right, "times")):
            names = list(MEASURES.values())
            shown = ATTENTIONS[1:] if ax is left else ATTENTIONS
            for i, attention in enumerate(shown):
                style = styles[attention]
                for place, measure in enumerate(names):
                    if ax is right and measure == "clean":
                        continue  # it is 1
                    y = place + 0.22 * (i - (len(shown) - 1) / 2)
                    values = of(table, attention, measure, column)
                    if ax is left:
                        values = values / of(table, ATTENTIONS[0], measure)
                    _, low, high = mean_with_interval(values.tolist(), geometric=True)
                    ax.hlines(y, low, high, color=style.colour, linewidth=2.2, alpha=0.45)
                    label = attention if place == len(names) - 1 else None
                    ax.plot(values, [y] * len(values), style.marker, color=style.colour, markersize=4, label=label)
            ax.axvline(1, color=f.MUTED, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
            ax.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names])
            ax.set_ylim(len(names) - 0.5, -0.5)
            ax.grid(True, axis="x")
            ax.grid(False, axis="y")
        f.label_axes(left, x="perplexity : that of softmax, same seed")
        f.label_axes(right, x="perplexity : that of the clean text")
        right.legend(loc="upper right")
        _, png = save_figure(figure, Path(__file__).parent, "language_comparison")
        png.unlink()  # the page shows the SVG


def bigram(train: np.ndarray, test: list[list[int]], words: int) -> tuple[float, float]:
    """(perplexity, weight) of p(b | a) = w count(a, b) / count(a) + (1 - w) (count(b) + 1) / (T + words).

    The weight is the best of 199 on the last tenth of the training text, with the counts of the rest. test: documents,
    of which every token but the first is a target.
    """

    def both(learned: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """p of every token but the first after the one before it, and alone; the latter twice where that was new."""
        pairs = np.bincount(learned[:-1].astype(np.int64) * words + learned[1:], minlength=words**2)
        pairs = pairs.reshape(words, words)
        alone = ((np.bincount(learned, minlength=words) + 1) / (len(learned) + words))[tokens[1:]]
        seen = pairs.sum(1)[tokens[:-1]]
        return np.where(seen > 0, pairs[tokens[:-1], tokens[1:]] / np.maximum(seen, 1), alone), alone

    def nats(after: np.ndarray, alone: np.ndarray, weight: float) -> np.ndarray:
        return -np.log(weight * after + (1 - weight) * alone)

    cut = len(train) * 9 // 10
    part = both(train[:cut], train[cut:])
    weight = min((w / 200 for w in range(1, 200)), key=lambda w: float(nats(*part, w).mean()))
    found = np.concatenate([nats(*both(train, np.array(text)), weight) for text in test])
    return float(np.exp(found.mean())), weight


def bigrams(folder: Path, table: pd.DataFrame) -> str:
    """The bigram model of each seed: counts of that seed's training text, judged on what the models are judged on."""
    lines = []
    for path in sorted((folder / "trained" / "runs").glob("attention-softmax_seed-*")):
        run, judged = Run.open(path), Run.open(folder / "evaluated" / path.name)
        options = TrainOptions.from_config(run.config["options"])
        train, model = open_data(options).train, open_model(path)
        texts = load_texts(options.data, "test", every=judged.config["data"].get("every", 1))
        test = [model.preprocess.encode(texts.read(i).text, special=False) for i in range(len(texts))]
        found, weight = bigram(train.tokens.ravel(), test, model.num_classes)
        own = of(table, "softmax", "clean")[int(options.seed)]
        told = f"{train.tokens.size:,} tokens, {sum(map(len, test)):,} held out, {model.num_classes:,} words"
        less = 100 * (1 - own / found)
        lines.append(f"{path.name}: {told}; bigram {found:.2f} (weight {weight}), softmax {own:.2f}: {less:.1f} % less")
    return "\n".join(lines)


@torch.no_grad()
def outliers(folder: Path) -> str:
    """Key entries beyond the first iteration's threshold, per seed, in the first 64 windows of the held-out text."""
    lines = []
    for path in sorted((folder / "trained" / "runs").iterdir()):
        if attention_of(Run.open(path))[0] != ATTENTIONS[2]:
            continue
        model = open_model(path)
        text = next(iter(sorted((Path(Run.open(path).config["options"]["data"]) / "test").iterdir()))).read_text()
        tokens = torch.tensor(model.preprocess.encode(text, special=False)[: 64 * 256]).reshape(-1, 256)
        found: list[torch.Tensor] = []
        attention = model.module.blocks[0].attn
        handle = attention.qkv.register_forward_hook(lambda _, __, value, found=found: found.append(value))
        model(tokens)
        handle.remove()
        heads, size = model.layout.heads, model.layout.head_dim
        keys = found[0].unflatten(-1, (2, heads, size))[:, :, 0].transpose(1, 2)  # (B, H, N, D)
        options = attention.options
        beyond = keys.abs() > rpc_threshold(keys, options.lambd, options.variant, is_causal=True)
        lines.append(f"{re.sub('.*_', '', path.name)}: {100 * beyond.double().mean():.4f} % of the key entries")
    return "\n".join(lines)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    found = read(place)
    draw(found)
    sys.stdout.write(f"{tables(found)}\n\n{costs(found)}\n\n{bigrams(place, found)}\n\n{outliers(place)}\n")
