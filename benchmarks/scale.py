"""What each lens costs per image and block, and how that grows with tokens, heads and classes: docs/scale.md.

python benchmarks/scale.py tokens        # or heads, classes: each at three sizes, with the fitted exponents
python benchmarks/scale.py base          # ViT-B/16: what one image costs, for the estimates
python benchmarks/scale.py reading --data path/to/imagenet    # what reading one image costs

Times are those of one core (one thread, CPU time, so that what else runs hardly counts). The cost of a lens is the time
of a pass with it, minus that of a pass without any, both as minima of interleaved repeats. An exponent is the slope of
a straight line through log cost against log size: of three sizes a description, no law.
"""

from __future__ import annotations

import argparse
import math
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
SIZES = {"tokens": (112, 160, 224), "heads": (3, 6, 12), "classes": (10, 100, 1000)}  # of tokens: pixels of a side
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


def seconds_of(contenders: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """The smallest CPU time of interleaved repeats, after one that warms up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats + 1):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return {name: min(values[1:]) for name, values in times.items()}


def grow(axis: str, lenses: Sequence[str], n: int, repeats: int) -> None:
    """Milliseconds per image and block at three sizes, and the exponent."""
    sizes, costs = [], []
    for size in SIZES[axis]:
        option = {"tokens": "img_size", "heads": "num_heads", "classes": "num_classes"}[axis]
        model = make_model("vit_tiny_patch16_224", **{"depth": BLOCKS, "num_classes": 1000} | {option: size})
        sizes.append(model.layout.tokens if axis == "tokens" else size)
        seconds = seconds_of(contenders(model, n, {lens: (lens,) for lens in lenses}), repeats)
        floor = seconds[NOTHING]
        costs.append({k: 1000 * (t - (floor if k != NOTHING else 0)) / n / BLOCKS for k, t in seconds.items()})
    print(f"| {axis} | {' | '.join(f'{s:,}' for s in sizes)} | exponent |\n|---|{'--:|' * (len(sizes) + 1)}")
    for name in (NOTHING, *lenses):
        line = [cost[name] for cost in costs]
        print(f"| `{name}` | {' | '.join(f'{c:.2f}' for c in line)} | {exponent(sizes, line)} |", flush=True)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> str:
    """'2.1'; nothing where a cost is within the noise."""
    if min(costs) < 0.02:
        return "–"
    slope = np.polyfit([math.log(s) for s in sizes], [math.log(c) for c in costs], 1)[0]
    return f"{slope:.1f}"


def base(n: int, repeats: int) -> None:
    model = make_model("vit_base_patch16_224")
    seconds = seconds_of(contenders(model, n, dict(SETS)), repeats)
    for name, time_of in seconds.items():
        print(f"| {name} | {time_of / n:.2f} | {time_of / seconds[NOTHING]:.2f} |", flush=True)


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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data")
    given = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    if given.what == "base":
        base(given.images, given.repeats)
    elif given.what == "reading":
        reading(given.data, given.images)
    else:
        grow(given.what, given.lenses.split(","), given.images, given.repeats)
    print(f"one thread, torch {torch.__version__}, {given.images} images, {given.repeats} repeats")


if __name__ == "__main__":
    main()
