"""Corruptions by name, for a batch of pixels: (B, C, H, W) uint8 in, the same out.

    corrupted = corrupt(pixels, "fog", severity=3, seeds=[image_seed(0, i, "fog", 3) for i in range(len(pixels))])

The fifteen of ImageNet-C (Hendrycks & Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations", ICLR 2019) with its five severities each. A corrupted picture depends on its pixels, the corruption, the
severity and its seed alone: not on its neighbours in the batch, not on the process, not on the global generators, which
are left as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitscope.data.randomness import derive_seed
from vitscope.errors import VitscopeError
from vitscope.registry import CORRUPTIONS
from vitscope.robustness.corruptions.names import COMMON, SEVERITIES

LEAST = 32  # pixels: the published functions refuse less, and their kernels are wider than such a picture
TOGETHER = 16  # pictures: enough to be quick, and a large batch needs no more memory than a small one
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow's conversion to grey

Corruption = Callable[[Tensor, int, Sequence[int]], Tensor]  # (B, 3, H, W) uint8, severity, a seed per picture


def register_corruption(name: str) -> Callable[[Corruption], Corruption]:
    """Function decorator: make a corruption known under `name`. It may draw from `seeds` only."""
    return lambda function: CORRUPTIONS.add(name, function)


def image_seed(seed: int, image: int | str, corruption: str, severity: int) -> int:
    """The 32-bit seed of one corrupted picture."""
    return derive_seed("corruption", seed, image, corruption, severity) % 2**32


def corrupt(pixels: Tensor, name: str, severity: int, seeds: Sequence[int]) -> Tensor:
    """Corrupt a batch (B, C, H, W) uint8 with 1 or 3 channels; `seeds` has one number per picture.

    Pictures under 32 pixels are enlarged to 32 (bilinearly) and reduced again (averaging). Grey pictures are corrupted
    as three equal channels; the result is its luma, or for noise the first channel, since averaging three draws would
    weaken the noise.
    """
    if name in COMMON:
        import vitscope.robustness.corruptions.one_by_one  # noqa: F401  (registers the fifteen)
    function: Corruption = CORRUPTIONS.get(name)
    if severity not in SEVERITIES:
        raise VitscopeError(f"A severity is a whole number from 1 to 5, not {severity!r}.")
    _check(pixels, seeds)
    parts = [
        _corrupt(pixels[i : i + TOGETHER], name, function, severity, seeds[i : i + TOGETHER])
        for i in range(0, len(pixels), TOGETHER)
    ]
    return torch.cat(parts) if parts else pixels


def _corrupt(pixels: Tensor, name: str, function: Corruption, severity: int, seeds: Sequence[int]) -> Tensor:
    size, grey = tuple(pixels.shape[2:]), pixels.shape[1] == 1
    x = pixels.expand(-1, 3, -1, -1) if grey else pixels  # (B, 3, H, W)
    if min(size) < LEAST:
        x = _resize(x, tuple(max(LEAST, side) for side in size))
    shape, x = x.shape, function(x.contiguous(), severity, seeds)
    if not isinstance(x, Tensor) or x.shape != shape or x.dtype != torch.uint8:
        got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise VitscopeError(
            f"Corruption {name!r} returned {got} for torch.uint8 {tuple(shape)}: return pixels of the same shape, as "
            "x.round().clamp(0, 255).to(torch.uint8)."
        )
    if min(size) < LEAST:
        x = _resize(x, size)
    if not grey:
        return x
    if name.endswith("noise"):
        return x[:, :1].contiguous()
    weights = torch.tensor(LUMA, device=x.device).view(1, 3, 1, 1)
    return (x * weights).sum(1, keepdim=True).round().to(torch.uint8)


def size_remark(height: int, width: int) -> str:
    """'224 x 224 px', or what is done to smaller pictures."""
    small = f", enlarged to {max(LEAST, height)} x {max(LEAST, width)} and reduced again"
    return f"{height} x {width} px" + (small if min(height, width) < LEAST else "")


def _resize(x: Tensor, size: tuple[int, ...]) -> Tensor:
    resized = F.interpolate(x.float(), size, mode="bilinear", align_corners=False, antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8)


def _check(pixels: Tensor, seeds: Sequence[int]) -> None:
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
        raise VitscopeError(
            f"Corruptions take pixels (B, C, H, W) of type uint8 with 1 or 3 channels, not {tuple(pixels.shape)} "
            f"{pixels.dtype}: corrupt pictures before they are normalised."
        )
    if len(seeds) != len(pixels):
        raise VitscopeError(f"{len(seeds)} seeds for {len(pixels)} pictures: give one for each.")
