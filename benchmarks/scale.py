"""What each lens costs per image and block, and how that grows with tokens, heads and classes: docs/scale.md.

python benchmarks/scale.py tokens        # or heads, classes: each at three sizes, with the fitted exponents
python benchmarks/scale.py base          # ViT-B/16: what one image costs, for the estimates
python benchmarks/scale.py reading --data path/to/imagenet    # what reading one image costs

Times are those of one core (one thread, CPU time). The cost of a lens is the time of a pass with it, minus that of a
pass without any, both as minima of interleaved repeats, of which there are as many as fit into --seconds. The doubt of
a cost is how far the minima of the even and of the odd repeats are apart. An exponent is the slope of a straight line
through log cost against log size: of three sizes a description, no law.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vitscope.analyses import create_analysis
from vitscope.analyses.base import Analysis
from vitscope.analyses.one_pass import OnePass
from vitscope.analyses.separation import Separation
from vitscope.data.batch import Batch
from vitscope.models import Model, open_model

LENSES = (
    "accuracy", "attention", "kpca.norms", "kpca.reconstruction", "kpca.spectrum", "kpca.values", "kpca.gamma",
    "class_space.identifiability", "class_space.composition", "class_space.memories", "separation",
    "causes.attribution",
)  # fmt: skip
SETS = {  # what somebody would ask for
    "accuracy, attention": ("accuracy", "attention"),
    "class space": ("class_space.identifiability", "class_space.composition", "class_space.memories"),
    "kernel PCA": ("kpca.norms", "kpca.reconstruction", "kpca.spectrum", "kpca.values", "kpca.gamma"),
    "separation": ("separation",),
    "causes.attribution": ("causes.attribution",),
}
SIZES = {"tokens": (160, 224, 320), "heads": (3, 6, 12), "classes": (10, 100, 1000)}  # of tokens: pixels of a side
BLOCKS = 3  # cost per block is what is wanted
NOTHING = "forward"
LABELS = [0, 1] * 16
OPTIONS: dict[str, dict[str, bool]] = {"separation": {"pixels": False}}  # they need the pictures themselves


def make_model(name: str, **options: Any) -> Model:
    return open_model(name, "random", **options)


def make_batch(model: Model, n: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    side = model.preprocess.input_size[-1]
    return Batch(
        inputs=torch.randn(n, 3, side, side, generator=generator),
        targets=torch.tensor(LABELS[:n]),
        indices=torch.arange(100, 100 + n),
        names=[""] * n,
    )


def contenders(model: Model, n: int, lenses: dict[str, Sequence[str]]) -> dict[str, Callable[[], None]]:
    batch = make_batch(model, n)
    return {NOTHING: one_pass(model, batch, [])} | {
        name: one_pass(model, batch, [create_analysis(lens, **OPTIONS.get(lens, {})) for lens in several])
        for name, several in lenses.items()
    }


def one_pass(model: Model, batch: Batch, analyses: Sequence[Analysis]) -> Callable[[], None]:
    labels: Any = SimpleNamespace(labels=LABELS, classes=[str(c) for c in range(model.num_classes)], name="noise")
    for analysis in analyses:
        analysis.start(model)
        if isinstance(analysis, Separation):
            with warnings.catch_warnings(action="ignore"):  # most classes have no image
                analysis.prepare(labels, model)
        analysis.begin()
    run = OnePass(model, analyses)

    def go() -> None:
        with torch.inference_mode(False):
            run(batch)
        for analysis in analyses:
            analysis.rows.clear()

    return go


def times_of(contenders: dict[str, Callable[[], None]], seconds: float) -> dict[str, np.ndarray]:
    """CPU times, after one that warms up. Each contender in turn gets as many seconds, so that cheap ones run often."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    spent = dict.fromkeys(contenders, 0.0)
    while sum(spent.values()) < seconds or min(map(len, times.values())) < 5:
        name = min(spent, key=lambda n: (len(times[n]) >= 5, spent[n]))
        start = time.process_time()
        contenders[name]()
        times[name].append(time.process_time() - start)
        spent[name] += times[name][-1]
    return {name: np.array(values[1:]) for name, values in times.items()}


def costs_of(times: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """{lens: (milliseconds beyond the pass without any, doubt)}"""

    def cost(name: str, some: slice) -> float:
        return 1000 * (times[name][some].min() - (times[NOTHING][some].min() if name != NOTHING else 0))

    halves = slice(0, None, 2), slice(1, None, 2)
    return {name: (cost(name, slice(None)), abs(cost(name, halves[0]) - cost(name, halves[1]))) for name in times}


def grow(axis: str, lenses: Sequence[str], n: int, seconds: float) -> None:
    """Milliseconds per image and block at three sizes, and the exponent."""
    sizes, lines = [], []
    repeats: list[int] = []
    for size in SIZES[axis]:
        option = {"tokens": "img_size", "heads": "num_heads", "classes": "num_classes"}[axis]
        model = make_model("vit_tiny_patch16_224", **{"depth": BLOCKS, "num_classes": 1000} | {option: size})
        sizes.append(model.layout.tokens if axis == "tokens" else size)
        times = times_of(contenders(model, n, {lens: (lens,) for lens in lenses}), seconds / len(SIZES[axis]))
        lines.append({k: np.array(cost) / n / BLOCKS for k, cost in costs_of(times).items()})
        repeats.extend(len(values) for values in times.values())
    print(f"| {axis} | {' | '.join(f'{s:,}' for s in sizes)} | doubt | exponent |\n|---|{'--:|' * (len(sizes) + 2)}")
    for name in (NOTHING, *lenses):
        costs, doubts = np.array([line[name] for line in lines]).T
        shown = " | ".join(f"{cost:.2f}" for cost in costs)
        print(f"| `{name}` | {shown} | {max(doubts):.2f} | {exponent(sizes, costs, doubts)} |", flush=True)
    print(f"{n} images, {min(repeats)} to {max(repeats)} repeats")


def exponent(sizes: Sequence[float], costs: np.ndarray, doubts: np.ndarray) -> str:
    """'2.1'; nothing where a cost is not three times its doubt."""
    if (costs < np.maximum(3 * doubts, 0.01)).any():
        return "–"
    slope = round(float(np.polyfit(np.log(sizes), np.log(costs), 1)[0]), 1)
    return f"{slope + 0:.1f}"  # no minus before zero


def base(n: int, seconds: float) -> None:
    """Seconds per image of a whole pass, how far the two halves of the repeats are apart, ratio to the forward pass."""
    times = times_of(contenders(make_model("vit_base_patch16_224"), n, dict(SETS)), seconds)
    floor = times[NOTHING].min()
    for name, values in times.items():
        doubt = abs(values[::2].min() - values[1::2].min()) / n
        print(f"| {name} | {values.min() / n:.3f} | {doubt:.3f} | {values.min() / floor:.2f} |", flush=True)
    print(f"{n} images, {min(map(len, times.values()))} to {max(map(len, times.values()))} repeats")


def reading(data: str, images: int) -> None:
    from vitscope.data import load_data

    model = make_model("vit_base_patch16_224")
    found = load_data(data, "val", images=images)
    start = time.process_time()
    read = sum(len(batch.names) for batch in found.batches(model.preprocess, 8))
    print(f"{1000 * (time.process_time() - start) / read:.1f} ms per image, {read} images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="classes", choices=[*SIZES, "base", "reading"])
    parser.add_argument("--lenses", default=",".join(LENSES))
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300, help="what the repeats may take together")
    parser.add_argument("--data")
    given = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    if given.what == "base":
        base(given.images, given.seconds)
    elif given.what == "reading":
        reading(given.data, given.images)
    else:
        grow(given.what, given.lenses.split(","), given.images, given.seconds)
    print(f"one thread, torch {torch.__version__}")


if __name__ == "__main__":
    main()
