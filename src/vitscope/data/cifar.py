"""CIFAR-10 and CIFAR-100 through torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitscope.data.places import download_errors, places
from vitscope.data.registry import register_dataset
from vitscope.data.source import Source
from vitscope.errors import DataError


@register_dataset("cifar10", splits=("train", "test"))
def cifar10(split: str, root: Path | None, download: bool) -> Source:
    """50,000 and 10,000 pictures of 32 x 32 pixels, 10 classes."""
    return _cifar("CIFAR10", "cifar-10-batches-py", split, root, download)


@register_dataset("cifar100", splits=("train", "test"))
def cifar100(split: str, root: Path | None, download: bool) -> Source:
    """The same with 100 (fine) classes."""
    return _cifar("CIFAR100", "cifar-100-python", split, root, download)


def _cifar(name: str, folder: str, split: str, root: Path | None, download: bool) -> Source:
    place = places(root, ())[0]
    if place.name == folder and not download:  # the folder itself was given
        place = place.parent
    if download:
        with download_errors(name, place):
            data = _open(name, place, split, download=True)
    else:
        data = _open(name, place, split, download=False)
    return Source(data.data, [int(t) for t in data.targets], list(data.classes))  # (N, 32, 32, 3) uint8


def _open(name: str, place: Path, split: str, download: bool) -> Any:
    """torchvision compares checksums before it unpickles: a changed file cannot run code."""
    import torchvision

    try:
        return getattr(torchvision.datasets, name)(place, train=split == "train", download=download)
    except RuntimeError as error:
        if download:
            raise
        raise DataError(
            f"{name} is not complete in {place} ({str(error).splitlines()[0]}). Give the folder above the unpacked "
            "archive as root=FOLDER, or download=True where the net allows it."
        ) from error
