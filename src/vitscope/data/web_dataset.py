"""WebDataset: tar files ("shards") of pictures with their labels beside them, read where they lie.

WebDataset's and timm's readers go through a tar from its beginning: they know neither how many pictures there are nor
what their labels are before they have come by, cannot begin in the middle, and deal out pictures differently for every
number of processes. All that vitscope promises (numbered batches, choices of pictures, resuming, exact sums over
processes) asks for the opposite. On a disk one look at the headers gives it: a header says where a file begins, and a
label is a few bytes beside it. So there is one pass over the headers, which keeps a name, a label and three numbers per
picture; after it a picture is one seek and one read, when its batch is read. Nothing is unpacked or kept, and neither
webdataset nor any other package is needed.

What makes a sample is WebDataset's rule: neighbours in the tar whose names agree up to the first dot of the file name.
Which of its files are meant is timm's: `jpg`, `png` or `webp` is the picture, `cls` the number of the class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from vitscope.data.images import EXTENSIONS, BadFileError
from vitscope.data.places import given_root
from vitscope.data.registry import register_dataset
from vitscope.data.shard_lists import ShardList, find_shards
from vitscope.data.source import Source
from vitscope.data.tar_index import Member, index_tar
from vitscope.errors import DataError

CLASS_MAP = "class_map.txt"  # timm's: the name of class i in line i
_PICTURES = ("jpg", "png", "webp", *sorted(e[1:] for e in EXTENSIONS))  # timm's three first, in its order
_PARTS = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)  # 'a/b.seg.png' -> 'a/b', 'seg.png'
_META = re.compile(r"__[^/]*__($|/)")
_MOST_CLASSES = 10**6  # what says more is not the number of a class
_UNKNOWN, _LEFT_OUT = -1, -2


@dataclass
class _Shard:
    """What the headers of one tar tell."""

    size: int = 0
    names: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)  # offset and size of each picture
    samples: int = 0
    bare: list[str] = field(default_factory=list)  # samples without a picture
    fault: str | None = None


@dataclass(frozen=True, eq=False)
class TarPictures:
    """The pictures of some tar files, each read when it is asked for: the bytes of its file.

    A file is opened for each picture: this costs less than a thousandth of decoding a photograph, and nothing has to be
    said about processes that share an open file.
    """

    folder: Path
    files: list[str]
    places: np.ndarray  # (N, 3) int64: which file, offset, size

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, i: int) -> bytes:
        number, offset, size = self.places[i].tolist()
        path = self.folder / self.files[number]
        try:
            with open(path, "rb") as file:
                if offset + size > file.seek(0, 2):  # before it is read: a damaged header may ask for terabytes
                    raise BadFileError(path, f"{path.name} ends before the picture does: fetch it again")
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise BadFileError(path, f"{path.name} cannot be read: {error.strerror or error}") from error


@register_dataset("wds")
def web_dataset(name: str, root: Path | None, split: str | None = None) -> Source:
    """Tar files below `root`, or below the folder `name` in it; otherwise the name is only a name."""
    root = given_root(root, "wds", ", which holds its tar files")
    folder = root / name if name and (root / name).is_dir() else root
    shards = find_shards(folder, split)
    class_names = _read_class_map(folder)
    numbers = {text: i for i, text in enumerate(class_names or ())}
    read = partial(_read_shard, numbers=numbers, alt_label=shards.alt_label)
    with ThreadPoolExecutor(8) as pool:  # the time goes into waiting for the disk, or for the net behind it
        found = list(pool.map(read, [folder / file for file in shards.files]))
    labels = [label for shard in found for label in shard.labels]
    warnings, notes = _remarks(shards, found, labels)
    if not labels:
        raise DataError(f"There are no pictures in the {len(found):,} tar files of {folder}. {' '.join(warnings[:3])}")
    places = [(number, *place) for number, shard in enumerate(found) for place in shard.places]
    counts = [len(shard.names) for shard in found]
    firsts = np.cumsum([0, *counts])
    return Source(
        TarPictures(folder, shards.files, np.array(places, dtype=np.int64).reshape(-1, 3)),
        labels,
        class_names,
        root=folder,
        names=[f"{file}/{name}" for file, shard in zip(shards.files, found) for name in shard.names],
        holds=shards.split,
        shards=[int(first) for first, count in zip(firsts, counts) if count],
        content="\n".join(f"{file} {shard.size} {shard.samples}" for file, shard in zip(shards.files, found)),
        warnings=tuple(warnings),
        notes=tuple(notes),
    )


def _read_class_map(folder: Path) -> list[str] | None:
    try:
        return [line.strip() for line in (folder / CLASS_MAP).read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{folder / CLASS_MAP} cannot be read: {error}. Expected one class per line.") from error


def _read_shard(path: Path, numbers: dict[str, int], alt_label: str) -> _Shard:
    """Samples, labels and places of a tar, from its headers and its files of labels."""
    labels_in = "json" if alt_label else "cls"
    index, contents = index_tar(path, lambda name: name.lower().endswith(f".{labels_in}"))
    shard = _Shard(size=index.size, fault=index.fault)
    for key, files in _samples(index.members):
        shard.samples += 1
        picture = next((extension for extension in _PICTURES if extension in files), None)
        if picture is None:
            shard.bare.append(key)
            continue
        told = contents.get(files[labels_in].offset, b"") if labels_in in files else b""
        label = _alternative(told, alt_label) if alt_label else _label(told, numbers)
        if label != _LEFT_OUT:
            shard.names.append(f"{key.removeprefix('./')}.{picture}")
            shard.labels.append(label)
            shard.places.append((files[picture].offset, files[picture].size))
    return shard


def _samples(members: list[Member]) -> Iterator[tuple[str, dict[str, Member]]]:
    """(key, {extension: file}) of neighbours with the same key."""
    current: str | None = None
    files: dict[str, Member] = {}
    for member in members:
        parts = _PARTS.fullmatch(member.name)
        if parts is None or _META.match(member.name):
            continue
        if parts[1] != current:
            if current is not None:
                yield current, files
            current, files = parts[1], {}
        files.setdefault(parts[2].lower(), member)
    if current is not None:
        yield current, files


def _label(told: bytes, numbers: dict[str, int]) -> int:
    """The class that a .cls file tells: its number, or its name where a class map knows it."""
    text = told.decode("utf-8", "replace").strip()
    if text in numbers and not text.isdecimal():
        return numbers[text]
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else _UNKNOWN
    return number if number < _MOST_CLASSES else _UNKNOWN


def _alternative(told: bytes, key: str) -> int:
    """The class in a .json file. Where it is negative the sample is no part of the set, by timm's rule."""
    try:
        label = int(json.loads(told)[key])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return _UNKNOWN
    return _LEFT_OUT if label < 0 else label if label < _MOST_CLASSES else _UNKNOWN


def _remarks(shards: ShardList, found: list[_Shard], labels: list[int]) -> tuple[list[str], list[str]]:
    """What is doubtful, and what is just so."""
    warnings, notes = [], []
    for file, shard in zip(shards.files, found):
        expected = shards.lengths.get(file, shard.samples)
        if shard.fault is not None:
            warnings.append(f"{file} is damaged ({shard.fault}): only {len(shard.names):,} pictures of it are known.")
        elif expected != shard.samples:
            warnings.append(f"{file} has {shard.samples:,} samples, the info file says {expected:,}.")
        elif not shard.names:
            warnings.append(f"{file} has no pictures ({', '.join(_PICTURES[:3])}, ...).")
    if shards.stray:
        warnings.append(f"{len(shards.stray):,} tar files belong to no split and are left out, e.g. {shards.stray[0]}.")
    bare = [f"{file}/{key}" for file, shard in zip(shards.files, found) if shard.names for key in shard.bare]
    if bare:
        warnings.append(f"{len(bare):,} samples have no picture and are left out, e.g. {bare[0]}.")
    unknown = sum(label < 0 for label in labels)
    where = f"entry {shards.alt_label!r} in a .json file" if shards.alt_label else "class number in a .cls file"
    if labels and unknown == len(labels):
        notes.append(f"No sample has a {where}: labels are unknown.")
    elif unknown:
        first = next(n for n, label in zip((n for s in found for n in s.names), labels) if label < 0)
        warnings.append(f"{unknown:,} samples have no {where}: their labels are unknown, e.g. {first}.")
    return warnings, notes
