"""A picture looked at through windows of one size; where windows overlap, their logits are averaged.

So Segmenter answers for pictures of any size with a model of one size: windows of 512 every 512 pixels, the last one
flush with the edge.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.errors import VitscopeError


def window_starts(side: int, window: int, stride: int) -> list[int]:
    """Where windows begin along a side of so many pixels: every `stride`, the last flush with the edge."""
    if side <= window:
        return [0]
    return [*range(0, side - window, stride), side - window]


def pad_to(images: Tensor, height: int, width: int) -> Tensor:
    """Zeros (the mean colour, after normalising) at the right and the bottom: (..., H, W) -> (..., height, width)"""
    return F.pad(images, (0, width - images.shape[-1], 0, height - images.shape[-2]))


def slide(
    answer: Callable[[Tensor], Tensor], images: Tensor, window: tuple[int, int], stride: tuple[int, int], at_a_time: int
) -> Tensor:
    """Logits (B, K, H, W) of pictures (B, C, H, W), `at_a_time` windows of any of the pictures per call of `answer`.

    A picture smaller than the window is padded to it, and its logits are cut back.
    """
    check_windows(window, stride)
    height, width = images.shape[-2:]
    images = pad_to(images, max(height, window[0]), max(width, window[1]))
    tops, lefts = (window_starts(images.shape[-2 + i], window[i], stride[i]) for i in (0, 1))
    places = [(picture, top, left) for picture in range(len(images)) for top in tops for left in lefts]
    total, count = None, images.new_zeros(images.shape[-2:])
    for top in tops:
        for left in lefts:
            count[top : top + window[0], left : left + window[1]] += 1
    for first in range(0, len(places), at_a_time):
        some = places[first : first + at_a_time]
        seen = torch.stack([images[b, :, y : y + window[0], x : x + window[1]] for b, y, x in some])
        logits = answer(seen)  # (windows, K, h, w)
        if total is None:
            total = logits.new_zeros(len(images), logits.shape[1], *images.shape[-2:])
        for (b, y, x), part in zip(some, logits):
            total[b, :, y : y + window[0], x : x + window[1]] += part
    assert total is not None
    return (total / count)[..., :height, :width]


def check_windows(window: tuple[int, int], stride: tuple[int, int]) -> None:
    for size, step in zip(window, stride):
        if not 0 < step <= size:
            raise VitscopeError(
                f"Windows of {size} pixels every {step} pixels: expected a stride from 1 to the window's size, so that "
                "no pixel is left out."
            )
