"""Masks: from pictures and files to CONTEXT, OBJECT and IGNORED per pixel, and from pixels to tokens.

Which pixel speaks for a patch is the *rule*: `centre`, the one in its middle, or `corner`, the upper left one, which is
what OpenCV's nearest resize of a mask to the grid of tokens takes (the published class-embedding study).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitscope.data.batch import CONTEXT, IGNORED, OBJECT
from vitscope.data.images import BadFileError
from vitscope.data.mask_decoding import numbers
from vitscope.errors import DataError, suggest

if TYPE_CHECKING:
    from torch import Tensor


RULES = {"centre": 0.5, "corner": 0.0}  # how far into a patch, in patches, the pixel lies that speaks for it


def check_rule(rule: str) -> None:
    if rule not in RULES:
        raise DataError(f"There is no mask rule {rule!r}.{suggest(rule, RULES)} Known: {', '.join(RULES)}.")


def to_tokens_nearest(masks: Tensor, grid: tuple[int, int], rule: str = "centre") -> Tensor:
    """The mask's value at one pixel of each patch: (B, H, W) -> (B, T), T = grid height x grid width, row by row.

    `rule`: the pixel at the patch's centre, row floor((i + 1/2) H / h) of patch row i, or at its upper left corner,
    row floor(i H / h).
    """
    check_rule(rule)
    _, height, width = masks.shape
    rows = _pixels(height, grid[0], rule)
    columns = _pixels(width, grid[1], rule)
    return masks[:, rows][:, :, columns].flatten(1)  # (B, h, w) -> (B, T)


def resized(mask: Image.Image, size: tuple[int, int], rule: str = "centre") -> Image.Image:
    """A mask in another `size` (height, width), by the same rule: nearest to the new pixel's centre or corner.

    With `corner`, a mask that is resized and then read token by token gives what the whole mask would give.
    """
    height, width = size
    if mask.size == (width, height):
        return mask
    if rule == "centre":
        return mask.resize((width, height), Image.Resampling.NEAREST)
    rows, columns = _pixels(mask.height, height, rule).numpy(), _pixels(mask.width, width, rule).numpy()
    return Image.fromarray(np.asarray(mask)[rows][:, columns])


def token_share(masks: Tensor, grid: tuple[int, int]) -> Tensor:
    """The share of OBJECT among the pixels of each patch that are not IGNORED: (B, H, W) -> (B, T), float32 in 0..1.

    Patches that do not fall on whole pixels weigh border pixels by the area covered. A patch of nothing but ignored
    pixels has no share: it is NaN.
    """
    import torch

    _, height, width = masks.shape
    down = _overlaps(height, grid[0]).to(masks.device)  # (h, H)
    across = _overlaps(width, grid[1]).to(masks.device)  # (w, W)
    covered = down @ (masks == OBJECT).double() @ across.T  # (B, h, w): pixels of the object
    counted = down @ (masks != IGNORED).double() @ across.T
    # differences below a millionth of a pixel are rounding of the sums
    share = torch.where(counted > 1e-6, covered / counted.clamp(min=1e-6), torch.nan)
    return share.clamp(0, 1).float().flatten(1)


def _pixels(pixels: int, cells: int, rule: str) -> Tensor:
    import torch

    return ((torch.arange(cells, dtype=torch.float64) + RULES[rule]) * pixels / cells).floor().long()


def _overlaps(pixels: int, cells: int) -> Tensor:
    """(cells, pixels): how much of each pixel lies in each cell."""
    import torch

    edges = torch.arange(cells + 1, dtype=torch.float64) * pixels / cells
    left = torch.arange(pixels, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], left + 1) - torch.maximum(edges[:-1, None], left)
    return overlap.clamp(min=0)


def ink(image: Image.Image) -> Image.Image:
    """The mask of a light drawing on black, such as a digit: every pixel that is not black is OBJECT."""
    return image.convert("L").point([CONTEXT] + [OBJECT] * 255)


def as_mask(mask: Any, size: tuple[int, int], path: str | Path, name: str = "its mask") -> Image.Image:
    """A mask as mode 'L' after checks: as large as its image, numbers 0, 1 or 255 (1-bit: OBJECT where true).

    `path` and `name` are those of the image and of the mask, for the message.
    """
    if isinstance(mask, Image.Image) and mask.mode == "L" and mask.size == size:
        colours = mask.getcolors(3)  # None if there are more: the quick way for masks that are in order
        if colours and all(value in (CONTEXT, OBJECT, IGNORED) for _, value in colours):
            return mask
    try:
        a = numbers(mask)
    except DataError as error:
        raise BadFileError(path, str(error).replace("its mask", name, 1)) from error
    if a.dtype == np.bool_:
        a = np.where(a, OBJECT, CONTEXT)
    if a.ndim != 2:
        raise BadFileError(path, f"{name} is an array of shape {a.shape}; expected one value per pixel")
    if (a.shape[1], a.shape[0]) != size:
        raise BadFileError(path, f"{name} is {a.shape[1]} x {a.shape[0]} pixels, the image {size[0]} x {size[1]}")
    unknown = a[(a != CONTEXT) & (a != OBJECT) & (a != IGNORED)]
    if unknown.size:
        raise BadFileError(
            path,
            f"{name} holds {np.unique(unknown)[:5].tolist()}; expected {CONTEXT} (context), {OBJECT} (object) and "
            f"{IGNORED} (ignored). Other conventions: mask_decoding='nonzero' or 'half' (--mask-decoding), or "
            "Source(decode_mask=...)",
        )
    return Image.fromarray(a.astype(np.uint8))
