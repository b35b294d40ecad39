"""What the class-space lens costs: ratios to the plain fused forward pass of vit_tiny_patch16_224 over the same images.

python benchmarks/class_space.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from timing import interleaved, report
from vitscope.analyses.base import Analysis
from vitscope.analyses.class_space import Composition, Identifiability, Memories
from vitscope.analyses.class_space.lens import Lens
from vitscope.analyses.class_space.linear_probes import ProbeMoments
from vitscope.analyses.class_space.relevance import relevance
from vitscope.analyses.one_pass import OnePass
from vitscope.data.batch import Batch
from vitscope.models import Model, open_model

BOUNDS = {
    "items 1-4, all tokens": 2.9,
    "items 1-4, class token only": 1.2,
    "Chefer relevancy": 3.5,
}


def make_batch(n: int, generator: torch.Generator) -> Batch:
    return Batch(
        inputs=torch.randn(n, 3, 224, 224, generator=generator),
        targets=torch.randint(0, 1000, (n,), generator=generator),
        indices=torch.arange(100, 100 + n),  # none is in the gallery but one, as in a run over many images
        names=[""] * n,
        masks=torch.randint(0, 2, (n, 224, 224), generator=generator, dtype=torch.uint8),
    )


def one_pass(model: Model, batch: Batch, *analyses: Analysis) -> Callable[[], None]:
    for analysis in analyses:
        analysis.start(model)
    run = OnePass(model, analyses)

    def go() -> None:
        run(batch)
        for analysis in analyses:
            analysis.rows.clear()

    return go


def floor(model: Model, images: Tensor) -> Callable[[], None]:
    """The forward pass and the bare products: all tokens of the embedding and of three points a block, all classes."""
    head, layout = model.module.head, model.layout
    tokens = torch.randn(len(images) * layout.tokens, layout.width)
    logits = torch.empty(len(tokens), model.num_classes)

    def go() -> None:
        model.module(images)
        for _ in range(1 + 3 * layout.blocks):
            torch.addmm(head.bias, tokens, head.weight.t(), out=logits)  # type: ignore[arg-type, operator, union-attr]

    return go


def plain_version(model: Model, images: Tensor, labels: Tensor) -> list[Tensor]:
    """As one would write it first: re-run the model for every layer, project and sort token by token."""
    ranks = []
    for block in range(model.layout.blocks):
        for point in ("resid_post", "attn_out", "mlp_out"):
            _, cache = model.run_with_cache(images, f"blocks.{block}.hook_{point}")
            (x,) = cache.values()
            for token in range(model.layout.tokens):
                order = model.to_class_space(x[:, token]).argsort(dim=-1, descending=True)
                ranks.append((order == labels[:, None]).nonzero()[:, 1])
    return ranks


@torch.no_grad()
def main() -> None:
    generator = torch.Generator().manual_seed(0)
    model = open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "random")
    batch = make_batch(16, generator)
    lens = Lens(images=[100])

    def items(tokens: str) -> list[Analysis]:
        return [kind(tokens=tokens) for kind in (Identifiability, Composition, Memories)]  # type: ignore[arg-type]

    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    contenders: dict[str, Callable[[], object]] = {
        "plain forward": lambda: model.module(batch.images),
        "forward and bare products": floor(model, batch.images),
        "items 1-4, all tokens": one_pass(model, batch, *items("all"), lens),
        "items 1-4, class token only": one_pass(model, batch, *items("class"), Lens(tokens="class", images=[100])),
        "Chefer relevancy": lambda: relevance(model, batch.images, batch.labels, "chefer"),
        "class-embedding gradients": lambda: relevance(model, batch.images, batch.labels, "class_gradients"),
    }
    report(interleaved(contenders, repeats=31), "plain forward", BOUNDS)

    print("\nprobes: sums for all 197 tokens and their mean, 12 blocks, 3 points, 24 classes, batch 64")
    many = make_batch(64, generator)
    many.labels %= 24
    moments = ProbeMoments(classes=list(range(24)))
    contenders = {
        "plain forward": lambda: model.module(many.images),
        "probes, all tokens and blocks": one_pass(model, many, moments),
    }
    report(interleaved(contenders), "plain forward", {"probes, all tokens and blocks": 2.0})
    start = time.perf_counter()
    moments.probe(0, 0)
    each = time.perf_counter() - start
    print(
        f"solves: {each:.2f} s for one block and point (198 positions, 4 regularisers), 36 of them: {36 * each:.0f} s"
    )

    print("\nplain version of item 1: the model re-run per layer, tokens projected and sorted one by one, 1 image")
    few = batch.images[:1]
    contenders = {
        "plain forward": lambda: model.module(few),
        "re-run per layer and token": lambda: plain_version(model, few, batch.labels[:1]),
    }
    report(interleaved(contenders, repeats=9, warmup=1), "plain forward", {})


if __name__ == "__main__":
    main()
