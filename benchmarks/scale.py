"""What each lens costs per image and block, and how that grows with tokens, heads and classes: docs/scale.md.

python benchmarks/scale.py tokens        # or heads, classes: each at three sizes, with the fitted exponents
python benchmarks/scale.py base          # ViT-B/16: what one image costs, for the estimates
python benchmarks/scale.py reading --data path/to/imagenet    # what reading one image costs

The cost of a lens is the time of a pass with it, minus that of a pass without any, both as minima of interleaved
repeats. An exponent is the slope of a straight line through log cost against log size: of three sizes a description.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from timing import interleaved
from vitscope.analyses import create_analysis
from vitscope.analyses.base import Analysis
from vitscope.analyses.one_pass import OnePass
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
SIZES = {"tokens": (112, 224, 384), "heads": (3, 6, 12), "classes": (10, 100, 1000)}  # of tokens: pixels of a side
BLOCKS = 3  # cost per block is what is wanted
NOTHING = "forward"


def make_model(name: str, **options: int) -> Model:
    return open_model(name, "random", **options)


def make_batch(model: Model, n: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    side = model.preprocess.input_size[-1]
    return Batch(
        inputs=torch.randn(n, 3, side, side, generator=generator),
        targets=torch.randint(0, min(model.num_classes, 10), (n,), generator=generator),
        indices=torch.arange(100, 100 + n),
        names=[""] * n,
    )


def contenders(model: Model, n: int, lenses: dict[str, Sequence[str]]) -> dict[str, Callable[[], None]]:
    batch = make_batch(model, n)
    return {NOTHING: one_pass(model, batch, [])} | {
        name: one_pass(model, batch, [create_analysis(lens) for lens in several]) for name, several in lenses.items()
    }


def one_pass(model: Model, batch: Batch, analyses: Sequence[Analysis]) -> Callable[[], None]:
    for analysis in analyses:
        analysis.start(model)
        analysis.begin()
    run = OnePass(model, analyses)

    def go() -> None:
        with torch.inference_mode(False):
            run(batch)
        for analysis in analyses:
            analysis.rows.clear()

    return go


def grow(axis: str, lenses: Sequence[str], n: int, repeats: int) -> None:
    """Milliseconds per image and block at three sizes, and the exponent."""
    sizes, costs = [], []
    for size in SIZES[axis]:
        option = {"tokens": "img_size", "heads": "num_heads", "classes": "num_classes"}[axis]
        model = make_model("vit_tiny_patch16_224", **{"depth": BLOCKS, "num_classes": 1000, option: size})
        sizes.append(model.layout.tokens if axis == "tokens" else size)
        seconds = interleaved(contenders(model, n, {lens: (lens,) for lens in lenses}), repeats, warmup=1)
        floor = min(seconds[NOTHING])
        costs.append({k: 1000 * (min(t) - (floor if k != NOTHING else 0)) / n / BLOCKS for k, t in seconds.items()})
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
    seconds = interleaved(contenders(model, n, dict(SETS)), repeats, warmup=1)
    for name, times in seconds.items():
        print(f"| {name} | {min(times) / n:.2f} | {min(times) / min(seconds[NOTHING]):.2f} |", flush=True)


def reading(data: str, images: int) -> None:
    from vitscope.data import load_data

    model = make_model("vit_base_patch16_224")
    found, transform = load_data(data, "val", images=images), model.preprocess.transform()
    start = time.perf_counter()
    for i in range(len(found)):
        transform(found.image(i))
    print(f"{1000 * (time.perf_counter() - start) / len(found):.1f} ms per image, {len(found)} images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="classes", choices=[*SIZES, "base", "reading"])
    parser.add_argument("--lenses", default=",".join(LENSES))
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data")
    given = parser.parse_args()
    torch.set_grad_enabled(False)
    if given.what == "base":
        base(given.images, given.repeats)
    elif given.what == "reading":
        reading(given.data, given.images)
    else:
        grow(given.what, given.lenses.split(","), given.images, given.repeats)
    print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, {given.images} images, {given.repeats} repeats"
    )


if __name__ == "__main__":
    main()
