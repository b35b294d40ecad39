"""What attribution costs: ratios to the plain fused forward pass of vit_tiny_patch16_224 over the same images.

python benchmarks/causes.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from class_space import make_batch, one_pass
from timing import interleaved, report
from vitscope.analyses.causes import Attribution
from vitscope.models import Model, open_model

BATCH = 32
BOUNDS = {
    "causes.attribution": 1.3,
    "causes.attribution, to the best other": 1.3,
}


def head_by_head(model: Model, images: Tensor, labels: Tensor) -> list[Tensor]:
    """As one would write it with hooks: cache everything, multiply every head by its part of W_O, project, take."""
    _, cache = model.run_with_cache(images, ["*.hook_z", "*.hook_mlp_out", "*.hook_resid_post", "*.hook_resid_pre"])
    module, size = model.module, model.layout.head_dim
    last = cache["resid_post", -1]
    scale = (last.var(-1, unbiased=False, keepdim=True) + module.norm.eps).sqrt()  # type: ignore[union-attr, operator]
    weights: Tensor = module.head.weight[labels][:, None] * module.norm.weight  # type: ignore[index, union-attr, operator]
    found = []
    for i, block in enumerate(model.blocks):
        for h in range(model.layout.heads):
            columns = block.attn.proj.weight[:, h * size : (h + 1) * size]  # type: ignore[union-attr, index]
            wrote = cache["z", i][:, h] @ columns.T  # (B, N, C)
            found.append((((wrote - wrote.mean(-1, keepdim=True)) / scale) * weights).sum(-1)[:, 0])
    return found


@torch.no_grad()
def attribution(model: Model, repeats: int) -> None:
    batch = make_batch(BATCH, torch.Generator().manual_seed(0))
    contenders: dict[str, Callable[[], object]] = {
        "plain forward": lambda: model.module(batch.images),
        "causes.attribution": one_pass(model, batch, Attribution()),
        "causes.attribution, to the best other": one_pass(model, batch, Attribution(minus="best")),
        "heads by hand, all tokens": lambda: head_by_head(model, batch.images, batch.labels),
    }
    report(interleaved(contenders, repeats=repeats), "plain forward", BOUNDS, by_median=True)


def main(repeats: int = 15) -> None:
    model = open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "random")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batches of {BATCH}")
    attribution(model, repeats)


if __name__ == "__main__":
    main()
