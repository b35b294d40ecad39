"""Masks as people store them: black and white, soft edges, an alpha channel; and a look whether they hold an object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitscope.data.batch import CONTEXT, IGNORED, OBJECT
from vitscope.data.images import from_array, plain
from vitscope.errors import DataError, suggest

if TYPE_CHECKING:
    from vitscope.data.dataset import ImageData

LOOKED_AT = 8  # masks of a set: enough to tell a convention from a picture without an object
_NAMES = {CONTEXT: "0 (context)", OBJECT: "1 (object)", IGNORED: "255 (ignored)"}


def numbers(mask: Any) -> np.ndarray:
    """(H, W): the number of each pixel; true and false for one bit, and for a palette of just black and white.

    Of other palettes the index counts, whatever its colour; of grey that is stored as RGB or RGBA, the grey.
    """
    if isinstance(mask, Image.Image) and mask.mode == "P" and _is_black_and_white(mask):
        return np.asarray(mask.convert("L")) > 0
    a = np.asarray(mask)
    if a.ndim != 3:
        return a
    opaque = a.shape[2] not in (2, 4) or bool((a[..., -1] == 255).all())
    colours = a[..., : 3 if a.shape[2] > 2 else 1]
    if not opaque or not (colours == colours[..., :1]).all():
        raise DataError(
            f"its mask is {'in colour' if opaque else 'partly transparent'}; expected one value per pixel. Where the "
            "object is what is opaque, say mask_decoding='alpha' (--mask-decoding alpha)"
        )
    return colours[..., 0]


def _is_black_and_white(mask: Image.Image) -> bool:
    """Index 0 may well be white: a program that shrinks files orders colours as it likes."""
    used = mask.getcolors(2)
    shown = mask.convert("RGB").getcolors(2)
    if used is None or shown is None or len(used) != len(shown) or any(index > 1 for _, index in used):  # type: ignore[operator]
        return False
    return all(colour in ((0, 0, 0), (255, 255, 255)) for _, colour in shown)


def nonzero(mask: Any, label: int) -> np.ndarray:
    """Whatever is not 0 is the object: 0 and 255, 0 and 1, numbered objects."""
    if getattr(mask, "format", None) == "JPEG":
        raise DataError("its mask is a JPEG, in which hardly a 0 stays 0: say mask_decoding='half'")
    return numbers(mask) != 0


def half(mask: Any, label: int) -> np.ndarray:
    """Whatever is nearer to white than to black is the object: soft edges, JPEG."""
    picture = plain(mask) if isinstance(mask, Image.Image) else from_array(mask)
    return np.asarray(picture.convert("L")) >= 128


def alpha(mask: Any, label: int) -> np.ndarray:
    """Whatever is more opaque than not is the object: a cut-out."""
    if isinstance(mask, Image.Image):
        if not mask.has_transparency_data:
            raise DataError(f"its mask (mode {mask.mode}) has no alpha channel: say mask_decoding='nonzero' or 'half'")
        mask = mask.convert("RGBA")
    return np.asarray(mask)[..., -1] >= 128


Decode = Callable[[Any, int], np.ndarray]
DECODINGS: dict[str, Decode] = {"nonzero": nonzero, "half": half, "alpha": alpha}


def find_decoding(name: str) -> Decode:
    if name not in DECODINGS:
        raise DataError(f"There is no mask decoding {name!r}.{suggest(name, DECODINGS)} Known: {', '.join(DECODINGS)}.")
    return DECODINGS[name]


def doubtful_masks(data: ImageData, bare: Sequence[str] = (), decoding: str | None = None) -> str | None:
    """What is wrong with masks that tell no object from its context; None if they do. `bare`: images without one."""
    from vitscope.data.randomness import preserved_globals

    without = set(bare)
    masked = [i for i, path in enumerate(data.paths) if path not in without]
    found: set[int] = set()
    looked = 0
    for k in range(min(LOOKED_AT, len(masked))):
        try:
            with preserved_globals():
                mask = data.read(masked[k * len(masked) // min(LOOKED_AT, len(masked))]).mask
        except DataError:  # skipped, with its reason, when its turn comes
            continue
        found |= set(np.unique(np.asarray(mask)).tolist())
        looked += 1
    few = looked < LOOKED_AT // 2 and (OBJECT in found or IGNORED not in found)
    if not looked or {CONTEXT, OBJECT} <= found or few:  # a few pictures may well show nothing but an object, or none
        return None
    held = " and ".join(_NAMES[value] for value in sorted(found))
    how = f" with mask_decoding={decoding!r}" if decoding else ""
    text = f"None of the {looked} masks looked at tells an object from its context: they hold nothing but {held}{how}."
    if decoding is None and found == {CONTEXT, IGNORED}:
        text += " If 255 is the object, say mask_decoding='nonzero' (--mask-decoding nonzero)."
    return text
