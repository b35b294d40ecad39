"""From a file, an array or any PIL image to a plain picture: mode 'L' or 'RGB', eight bits.

What is converted, and how, so that nothing is guessed silently:

* CMYK, palette, YCbCr, LAB, HSV, 1-bit: Pillow's own conversion, as timm and torchvision do it;
* transparency (an alpha channel or a transparent colour): laid over white, which is what a viewer of a page sees;
* 16-bit grey: scaled from 0..65535 to 0..255 (Pillow's conversion would clip it to white);
* floating point: taken as 0..1, refused if it is not;
* animations and files with several pages: the first frame;
* EXIF rotation: not applied, as in timm and torchvision, so that masks drawn on the stored pixels fit.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from vitscope.errors import DataError

EXTENSIONS = frozenset(
    f".{name}"
    for names in ("jpg jpeg jpe jfif png apng bmp dib gif", "webp tif tiff ppm pgm pbm pnm jp2 j2k avif")
    for name in names.split()
)
# Pillow would also open PostScript, by starting another program: a picture must not be able to do that.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "MPO", "AVIF")


class BadFileError(DataError):
    """One picture or mask that cannot be used: the file, and the reason without the file's name."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(str(path), reason)
        self.path, self.reason = str(path), reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def read_image(path: str | Path) -> Image.Image:
    """The picture in a file, as mode 'L' or 'RGB'. Raises BadFileError with a reason that a person can act on."""
    return plain(open_image(path), path)


def decode_image(content: bytes, path: str | Path, most: int | None = None) -> Image.Image:
    """The picture that the bytes of a file hold, as mode 'L' or 'RGB'; `path` names it in errors.

    most: pixels; None: Pillow's own limit.
    """
    return plain(open_image(path, content, most), path)


def open_image(path: str | Path, content: bytes | None = None, most: int | None = None) -> Image.Image:
    """The picture in a file, or in its bytes, completely read, in whatever mode it is stored."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on EXIF and size; the size is checked here
            with open(path, "rb") if content is None else io.BytesIO(content) as file:
                if content is None:
                    _refuse_odd_files(path, os.fstat(file.fileno()))
                elif not content:
                    raise BadFileError(path, "empty file (0 bytes)")
                image = Image.open(file, formats=_formats())
                _refuse_huge(path, image.size, most)
                image.load()
    except DataError:
        raise
    except FileNotFoundError as error:
        kind = "a link to a file that does not exist" if os.path.islink(path) else "no such file"
        raise BadFileError(path, kind) from error
    except PermissionError as error:
        raise BadFileError(path, "no permission to read it") from error
    except UnidentifiedImageError as error:
        raise BadFileError(path, "not an image, or damaged at its beginning") from error
    except Image.DecompressionBombError as error:
        raise BadFileError(path, f"absurdly large: {error}") from error
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ... on damaged files
        raise BadFileError(path, f"damaged: {error or type(error).__name__}") from error
    return image


def plain(image: Image.Image, path: str | Path = "image") -> Image.Image:
    """Any PIL image as 'L' or 'RGB' with eight bits. Those two pass unchanged."""
    if image.mode.startswith(("I", "F")):  # before transparency: Pillow's way to RGBA clips what has 16 bits
        return Image.fromarray(_deep_grey(image, path))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def from_array(array: Any, path: str | Path = "array") -> Image.Image:
    """A uint8, uint16, bool or 0..1 float array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) as a plain picture."""
    a = np.asarray(array)
    if a.ndim == 3 and a.shape[-1] == 1:
        a = a[..., 0]
    if a.ndim not in (2, 3) or (a.ndim == 3 and a.shape[-1] not in (3, 4)) or 0 in a.shape:
        raise BadFileError(path, f"an array of shape {a.shape} is no picture: expected (H, W), (H, W, 3) or (H, W, 4)")
    if a.dtype == np.bool_:
        a = a.astype(np.uint8) * 255
    elif a.dtype != np.uint8:
        a = _eight_bits(a, path)
    return plain(Image.fromarray(np.ascontiguousarray(a)), path)


def _eight_bits(a: np.ndarray, path: str | Path) -> np.ndarray:
    """Scale 16-bit integers and 0..1 floats to uint8; refuse what has no known range."""
    if np.issubdtype(a.dtype, np.floating):
        if not (np.isfinite(a).all() and a.min() >= 0 and a.max() <= 1):
            raise BadFileError(path, "floating-point pixels outside 0..1: their range is unknown, save it as 8 bit")
        return np.rint(a * 255).astype(np.uint8)
    if a.min() < 0 or a.max() > 65535:
        raise BadFileError(path, "32-bit pixels of unknown range: save it as 8 or 16 bit")
    return ((a.astype(np.uint32) + 128) // 257).astype(np.uint8)  # = round(255 a / 65535), exactly


def _deep_grey(image: Image.Image, path: str | Path) -> np.ndarray:
    """Grey of more than eight bits, scaled. A transparent value is one of the stored ones, and shows white."""
    stored = np.asarray(image)
    grey, clear = _eight_bits(stored, path), image.info.get("transparency")
    return np.where(stored == clear, np.uint8(255), grey) if isinstance(clear, int) else grey


@cache
def _formats() -> tuple[str, ...]:
    """Those of our formats that this build of Pillow knows."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _refuse_odd_files(path: str | Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadFileError(path, "not a regular file")
    if status.st_size == 0:
        raise BadFileError(path, "empty file (0 bytes)")


def _refuse_huge(path: str | Path, size: tuple[int, int], most: int | None) -> None:
    """A few kilobytes can unpack to gigabytes. Only the header has been read at this point."""
    limit = Image.MAX_IMAGE_PIXELS if most is None else most
    if limit is not None and size[0] * size[1] > limit:
        otherwise = ", or raise PIL.Image.MAX_IMAGE_PIXELS if it is meant" if most is None else ""
        raise BadFileError(
            path, f"absurdly large: {size[0]} x {size[1]} pixels, the limit is {limit:,}. Shrink it{otherwise}"
        )
