"""What the measures give when there is nothing to find.

Random numbers are a function of (seed, stream, block, image): the same for any batch size, order or number of
processes, and untouched by a resume.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

NOISE, VECTORS, VALUES = range(3)  # streams: two nulls must not share their numbers


def normal(shape: tuple[int, ...], seed: int, stream: int, block: int, images: Tensor) -> Tensor:
    """Standard normal numbers (B, *shape) in float64, one independent stream per image number in `images` (B,)."""
    draws = [np.random.default_rng([seed, stream, block, i]).standard_normal(shape) for i in images.tolist()]
    return torch.from_numpy(np.stack(draws))


def with_row_norms(x: Tensor, of: Tensor) -> Tensor:
    """X with each row rescaled to the length of that row of `of`: a random V of the same norm, token by token."""
    return x * (of.norm(dim=-1, keepdim=True) / x.norm(dim=-1, keepdim=True))


def other_head(v: Tensor) -> Tensor:
    """V of the next head of the same block and image: (B, H, ...) -> (B, H, ...). Needs two heads."""
    return v.roll(-1, dims=1)
