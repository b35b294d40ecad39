"""What ablation and patching cost on vit_tiny_patch16_224, beside loops that run the whole model for every edit.

Both sides see the same images in batches of equal size, and are measured in turn:

    python benchmarks/causes_patching.py                # 9 repeats, 4 images per pass
    python benchmarks/causes_patching.py --repeats 3 --tokens 20
    python benchmarks/causes_patching.py --memory       # peak of `analyze` over few and many images
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from memory import BOUND, compare_peaks, peak_of_analyze
from timing import interleaved, report
from vitscope.analyses.causes.components import Component, components_of, exchange
from vitscope.analyses.causes.prefix import Edits, Prefix
from vitscope.models import Model, open_model

ABLATED, PATCHED = 0.62, 0.60


def whole_passes(model: Model, images: Tensor, edits: Sequence[Edits]) -> Callable[[], list[Tensor]]:
    """The loop that everybody writes: one forward pass of the whole model per edit."""

    def go() -> list[Tensor]:
        found = []
        for edit in edits:
            with torch.no_grad(), model.edits(edit):
                found.append(model(images))
        return found

    return go


def from_the_edit_on(model: Model, images: Tensor, edits: Sequence[Edits]) -> Callable[[], list[Tensor]]:
    """One pass that is kept, and for each edit what comes after it. Equal rows per pass: no copies side by side."""

    def go() -> list[Tensor]:
        return [outputs for _, outputs in sorted(Prefix(model, images).run_each(edits, len(images)))]

    return go


def side_by_side(
    model: Model, images: Tensor, name: str, edits: Sequence[Edits], bound: float, repeats: int, base: str
) -> None:
    naive, ours = whole_passes(model, images, edits), from_the_edit_on(model, images, edits)
    equal = all(torch.equal(a, b) for a, b in zip(naive(), ours()))
    print(f"\n{name}: {len(edits)} edits, {len(images)} images; bit for bit the same: {'yes' if equal else 'NO'}")
    contenders: dict[str, Callable[[], object]] = {base: naive, name: ours}
    report(interleaved(contenders, repeats=repeats, warmup=1), base, {name: bound}, by_median=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--images", type=int, default=4, help="per pass, on both sides")
    parser.add_argument(
        "--tokens", type=int, default=197, help="patched in each block; fewer, evenly spread, are quicker"
    )
    parser.add_argument("--memory", action="store_true", help="measure the peak instead")
    parser.add_argument("--few", type=int, default=48)
    parser.add_argument("--many", type=int, default=192)
    parser.add_argument("--here", type=int, metavar="N", help="run over N images in this process and print the bytes")
    options = parser.parse_args()
    if options.here is not None:
        # a few parts of the work are enough: what is kept does not depend on how many there are
        print(peak_of_analyze(options.here, {"causes.ablation": {"kinds": ["mlp", "resid"], "blocks": [10, 11]}}))
        return
    if options.memory:
        compare_peaks(__file__, (options.few, options.many), BOUND, "causes.ablation")
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    generator = torch.Generator().manual_seed(0)
    model = open_model("vit_tiny_patch16_224", "random")
    images, others = (torch.randn(options.images, 3, 224, 224, generator=generator) for _ in range(2))
    model.module.eval()
    ablated = [{part.point: exchange(part, 0.0)} for part in components_of(model, ("head", "attn", "mlp"))]
    how = f"{len(ablated)} forward passes"
    side_by_side(model, images, "heads, attentions, MLPs ablated", ablated, ABLATED, options.repeats, how)

    with torch.no_grad():
        _, cache = model.run_with_cache(others, "blocks.*.hook_resid_post")
    tokens = torch.linspace(0, model.layout.tokens - 1, options.tokens).round().long().unique().tolist()
    patched: list[Edits] = []
    for block in range(model.layout.blocks):
        for token in tokens:
            part = Component("resid", block, tokens=token)
            where = part.where({}, (options.images, model.layout.tokens))
            patched.append({part.point: exchange(part, cache[part.point], where)})
    how = f"{len(patched)} forward passes"
    side_by_side(model, images, "residual tokens patched", patched, PATCHED, options.repeats, how)


if __name__ == "__main__":
    main()
