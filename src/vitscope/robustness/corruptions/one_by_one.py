"""The corruptions as published, one picture at a time, by the package `imagecorruptions` (extra `corruptions`)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from functools import partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from vitscope.data.randomness import preserved_globals, seed_globals
from vitscope.errors import VitscopeError
from vitscope.robustness.corruptions.batched import NAMES as BATCHED
from vitscope.robustness.corruptions.names import COMMON
from vitscope.robustness.corruptions.registry import register_corruption

OWN_SEED = ("impulse_noise", "glass_blur")  # draw from a generator of their own, which wants to be told


def published(pixels: Tensor, severity: int, seeds: Sequence[int], *, name: str) -> Tensor:
    """(B, 3, H, W) uint8 -> the same, each picture with its own seed."""
    package = _package(name)
    out = torch.empty(pixels.shape, dtype=torch.uint8)
    with preserved_globals():
        for i, seed in enumerate(seeds):
            seed_globals(seed)
            picture = np.ascontiguousarray(pixels[i].permute(1, 2, 0).cpu().numpy())  # (H, W, 3)
            own = {"seed": seed} if name in OWN_SEED else {}
            with contextlib.redirect_stdout(io.StringIO()):  # it prints on odd sizes, which it can handle
                result = package.corrupt(picture, severity=severity, corruption_name=name, **own)
            out[i] = torch.from_numpy(np.array(result)).permute(2, 0, 1)
    return out.to(pixels.device)


def check_installed(names: Sequence[str]) -> None:
    """Said before an evaluation begins: these corruptions can be applied."""
    for name in names:
        if name in COMMON and name not in BATCHED:
            _package(name)


def _package(name: str) -> ModuleType:
    try:
        import imagecorruptions
    except ImportError as error:
        raise VitscopeError(
            f"The corruption {name!r} needs imagecorruptions: pip install 'vitscope[corruptions]'. Without it there "
            f"are --corrupt {','.join(BATCHED)}."
        ) from error
    return imagecorruptions


for _name in COMMON:
    if _name not in BATCHED:
        register_corruption(_name)(partial(published, name=_name))
