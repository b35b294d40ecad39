"""`vitscope cost`: what each attention costs in a model."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from vitscope.attention.description import check_names
from vitscope.cli.parsing import named, parse
from vitscope.models.naming import check_model_name

EXAMPLES = """\
  vitscope cost vit_tiny_patch16_224
  vitscope cost deit_small_patch16_224 --device cuda --batch 64
  vitscope cost vit_tiny_patch16_224 --attention softmax 'rpc:layers=0-3,iterations=4'
  vitscope cost vit_tiny_patch16_224 --model-options img_size=384 depth=6
"""
COLUMNS = "{:<48} {:<9} {:>10} {:>8} {:>10} {:>6} {:>10} {:>6}"
HEADER = COLUMNS.format("attention", "mode", "parameters", "GFLOPs", "ms/image", "x", "MB/image", "x")
LEGEND = """\
per image; x: ratio to the first row of the same mode. GFLOPs: matrix products, a multiply-add counts as two.
ms: the quickest of {repeats} interleaved rounds with {batch} images. MB: peak of tensor memory above parameters,
gradients and input. training: forward and backward pass, without the optimiser's step."""


@dataclass(frozen=True)
class CostOptions:
    """Parameters, FLOPs, time and peak memory per image of each attention, for inference and training."""

    model: Annotated[tyro.conf.Positional[str], named("MODEL")]
    """a timm name; the weights are random, cost does not depend on them"""
    model_options: Mapping[str, Any] = field(default_factory=dict)
    """for timm.create_model, e.g. img_size=384"""
    attention: Annotated[tuple[str, ...], named("NAME[:KEY=VALUE,...]")] = ()
    """what to compare, the first being the base; otherwise every attention in its usual settings"""
    batch: int = 8
    """images in a pass"""
    repeats: int = 9
    """timed rounds"""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ..."""


def main(arguments: Sequence[str]) -> None:
    options = parse(CostOptions, "cost", arguments, EXAMPLES)
    check_model_name(options.model)
    for description in options.attention:
        check_names(description)
    from vitscope.attention.cost import default_settings, measure_costs
    from vitscope.models import open_model

    model = open_model(options.model, weights="random", **options.model_options)
    costs = measure_costs(
        model.module,
        model.preprocess.input_size,
        options.attention or default_settings(),
        batch=options.batch,
        repeats=options.repeats,
        device=options.device,
        progress=lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr) if sys.stderr.isatty() else None,
    )
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(model)
    print(HEADER)
    for mode in ("inference", "training"):
        rows = [cost for cost in costs if cost.mode == mode]
        for cost in rows:
            memory = ("-", "-")
            if cost.peak_bytes is not None and rows[0].peak_bytes:
                memory = (f"{cost.peak_bytes / 1e6:.1f}", f"{cost.peak_bytes / rows[0].peak_bytes:.2f}")
            numbers = (
                f"{cost.parameters:,}",
                f"{cost.flops / 1e9:.3f}",
                f"{cost.ms:.2f}",
                f"{cost.ms / rows[0].ms:.2f}",
            )
            print(COLUMNS.format(cost.attention, cost.mode, *numbers, *memory))
    print(LEGEND.format(repeats=options.repeats, batch=options.batch))
