"""Corruptions of a batch beside the package's own, picture by picture: python benchmarks/corruptions.py

Prints milliseconds per picture (minimum over repeats, one thread) and the largest difference in grey levels.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from timing import interleaved
from vitscope.robustness.corruptions import corrupt
from vitscope.robustness.corruptions.batched import NAMES
from vitscope.robustness.corruptions.one_by_one import published


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    coarse = torch.rand(options.images, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    pixels = (torch.nn.functional.interpolate(coarse, options.size, mode="bicubic").clamp(0, 1) * 255).to(torch.uint8)
    seeds = list(range(options.images))
    print(f"{'corruption':<16} {'batched':>9} {'package':>9} {'ratio':>6} {'difference':>11}   (ms per picture)")
    for name in NAMES:
        contenders = {
            "batched": partial(corrupt, pixels, name, 3, seeds),
            "package": partial(published, pixels, 3, seeds, name=name),
        }
        difference = int((contenders["batched"]().int() - contenders["package"]().int()).abs().max())
        seconds = interleaved(contenders, options.repeats, warmup=0)
        ours, theirs = min(seconds["batched"]), min(seconds["package"])
        per = 1e3 / options.images
        print(f"{name:<16} {ours * per:9.2f} {theirs * per:9.2f} {ours / theirs:6.2f} {difference:11d}")


if __name__ == "__main__":
    main()
