"""Hugging Face datasets: folders made by `save_to_disk`, and sets of the hub where a download is allowed.

timm's reader gives random access too, but opens sets by `load_dataset` alone, which asks the hub about whatever it is
given and takes no folder made by `save_to_disk`. So the package is asked here directly, with timm's conventions: the
columns `image` and `label`, the names of classes from the label's own type. The tables are mapped into memory, not
read; a picture is decoded when its batch is read, by vitscope's own rules.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitscope.data.places import download_errors, places
from vitscope.data.registry import register_dataset
from vitscope.data.source import Source
from vitscope.data.splits import ALL, choose_split, normal_split
from vitscope.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

_MARKS = ("dataset_dict.json", "dataset_info.json")  # what save_to_disk leaves in a folder: with splits, without


@dataclass(frozen=True, eq=False)
class TablePictures:
    """A column of encoded pictures: bytes, or the path of a file where the table holds no more than that."""

    table: Dataset
    column: str

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, i: int) -> bytes | str:
        picture = self.table[i][self.column]
        if picture is None or (picture["bytes"] is None and not picture["path"]):
            return b""
        return picture["bytes"] if picture["bytes"] is not None else picture["path"]


@register_dataset("hfds", needs=("datasets", "'vitscope[hfds]'"))
def hugging_face(name: str, root: Path | None, download: bool, split: str | None = None) -> Source:
    """A folder made by save_to_disk: `root` itself, or `name` below it; or the set of that name on the hub."""
    tried = [place / name for place in places(root, ())] + ([root] if root is not None else [])
    folder = next((p for p in tried if any((p / mark).is_file() for mark in _MARKS)), None)
    if folder is None and name and download:
        folder = _fetch(name, places(root, ())[0] / name)
    if folder is None:
        where = root if root is not None else places(None, ())[0]
        fetch = f" download=True (--download) fetches {name!r} from the hub into it." if name else ""
        raise DataError(
            f"There is no Hugging Face dataset {name!r} in {where}: expected a folder made by save_to_disk, given as "
            f"root=FOLDER (--root FOLDER).{fetch}"
        )
    tables = _open(folder)
    holds = choose_split(split, list(tables), str(folder)) if list(tables) != [ALL] else ALL
    return _source(tables[holds], holds, name or folder.name)


def _fetch(name: str, target: Path) -> Path:
    """The only place where the hub is asked. What came is saved as a folder that later calls open without the net."""
    import datasets

    with download_errors(f"the Hugging Face dataset {name!r}", target):
        datasets.load_dataset(name).save_to_disk(str(target))
    return target


def _open(folder: Path) -> dict[str, Dataset]:
    """The tables of a folder by split; one called 'all' where it has no splits."""
    import datasets

    try:
        found = datasets.load_from_disk(os.path.abspath(folder))
    except Exception as error:  # missing and damaged files show in many ways
        reason = " ".join(str(error).split())
        raise DataError(f"{folder} cannot be opened: {type(error).__name__}: {reason}. Save it again.") from error
    if not isinstance(found, Mapping):
        return {ALL: found}
    return {normal_split(str(name)): table for name, table in found.items()}


def _source(table: Dataset, split: str, name: str) -> Source:
    import datasets

    image = _column(table, "image", datasets.Image)
    if image is None:
        raise DataError(f"{name} has no column of pictures: it has {', '.join(table.column_names)}.")
    label = _column(table, "label", datasets.ClassLabel)
    kind = table.features[label] if label is not None else None
    labels = _labels(table, label) if label is not None else None
    table = table.cast_column(image, datasets.Image(decode=False))
    unknown = () if labels is not None else (f"{name} has no column 'label' of whole numbers: labels are unknown.",)
    return Source(
        TablePictures(table.select_columns(image), image),
        labels,
        list(kind.names) if isinstance(kind, datasets.ClassLabel) and kind.names else None,
        names=[f"{split}[{i}]" for i in range(len(table))],
        holds=split,
        content=_content(table),
        notes=unknown,
    )


def _column(table: Dataset, usual: str, kind: type) -> str | None:
    """timm's name for it, or else the only column of its kind."""
    if usual in table.features and (isinstance(table.features[usual], kind) or usual == "label"):
        return usual
    fitting = [name for name, feature in table.features.items() if isinstance(feature, kind)]
    return fitting[0] if len(fitting) == 1 else None


def _labels(table: Dataset, column: str) -> list[int] | None:
    values = list(table[column])
    if not all(value is None or isinstance(value, int) for value in values):
        return None
    return [-1 if value is None or value < 0 else value for value in values]


def _content(table: Dataset) -> str:
    """Names and sizes of the files behind the table, and its number of rows: the same in every copy of the folder."""
    files = [Path(entry["filename"]) for entry in table.cache_files]
    return "\n".join([f"{len(table)} rows", *(f"{file.name} {file.stat().st_size}" for file in files)])
