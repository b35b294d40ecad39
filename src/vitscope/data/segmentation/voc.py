"""Pascal VOC and Oxford-IIIT Pet in the folders in which torchvision lays them, which also fetches them.

VOC: palettes, whose indices are the classes, with 0 for the background; 255, the borders, is ignored. Pet: 1 is the
animal, 2 the background, 3 what nobody has classified, which is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitscope.data.folders import FileList
from vitscope.data.places import download_errors, places
from vitscope.data.registry import register_dataset
from vitscope.data.segmentation.maps import Numbers
from vitscope.data.source import Source
from vitscope.errors import DataError

_NAMES = (
    "background aeroplane bicycle bird boat bottle bus car cat chair cow table dog horse motorbike person plant sheep "
    "sofa train screen"
)
VOC = _NAMES.split()
PET = ("pet", "background")


@register_dataset("voc2012", splits=("train", "val"))
def voc2012(split: str, root: Path | None, download: bool) -> Source:
    """1,464 and 1,449 pictures of 20 things and their background."""
    fetch = {"VOCSegmentation": {"year": "2012"}} if download else {}
    home = _home("Pascal VOC 2012", "VOCdevkit/VOC2012", "ImageSets/Segmentation", root, fetch)
    names = (home / "ImageSets" / "Segmentation" / f"{split}.txt").read_text().split()
    maps = [home / "SegmentationClass" / f"{name}.png" for name in names]
    return _source(home, [f"JPEGImages/{name}.jpg" for name in names], maps, VOC)


@register_dataset("oxford-pet", splits=("train", "test"))
def oxford_pet(split: str, root: Path | None, download: bool) -> Source:
    """3,680 and 3,669 cats and dogs: which pixels are the animal?"""
    fetch = {"OxfordIIITPet": {"target_types": "segmentation"}} if download else {}
    home = _home("Oxford-IIIT Pet", "oxford-iiit-pet", "annotations/trimaps", root, fetch)
    listed = home / "annotations" / f"{'trainval' if split == 'train' else 'test'}.txt"
    names = [line.split()[0] for line in listed.read_text().splitlines() if line.strip()]
    maps = [home / "annotations" / "trimaps" / f"{name}.png" for name in names]
    decode = Numbers(len(PET), 1, ignored=(3,))
    return _source(home, [f"images/{name}.jpg" for name in names], maps, PET, decode)


def _source(home: Path, files: list[str], maps: list[Path], classes: Sequence[str], decode: Any = None) -> Source:
    return Source(FileList(home, files), classes=classes, maps=maps, decode_map=decode, root=home, names=files)


def _home(name: str, folder: str, inside: str, root: Path | None, fetch: Mapping[str, dict[str, str]]) -> Path:
    """The folder of a data set; where it is not there, what `fetch` names of torchvision fetches it."""
    tried = [p for place in places(root, ()) for p in (place / folder, place)]
    found = next((p for p in tried if (p / inside).is_dir()), None)
    for kind, options in fetch.items() if found is None else ():
        import torchvision

        target = places(root, ())[0]
        with download_errors(name, target):
            getattr(torchvision.datasets, kind)(str(target), download=True, **options)
        found = target / folder
    if found is None:
        raise DataError(
            f"{name} is not there: looked for {inside}/ in {', '.join(map(str, tried))}. Give root=FOLDER, or "
            "download=True where the net allows it."
        )
    return found
