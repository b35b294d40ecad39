"""TensorFlow Datasets that can be asked for any picture by its number.

timm's reader goes through the records in TensorFlow's own order, from their beginning, without numbers or labels ahead:
batches would not be the same twice. The package's `data_source` gives numbered access, to sets that were prepared in
the format `array_record`. Labels are known ahead by one look at every record when the set is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitscope.data.places import download_errors, places
from vitscope.data.registry import register_dataset
from vitscope.data.source import Source
from vitscope.data.splits import choose_split, normal_split
from vitscope.errors import DataError

_IMAGE, _LABEL = "image", "label"  # as in timm


@dataclass(frozen=True, eq=False)
class RecordPictures:
    """Decoded pictures, one record at a time."""

    records: Any

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> Any:
        return self.records[i][_IMAGE]


@register_dataset("tfds", needs=("tensorflow_datasets", "tensorflow-datasets array-record"))
def tensorflow_set(name: str, root: Path | None, download: bool, split: str | None = None) -> Source:
    """The set `name` in the folder `root`, TensorFlow Datasets' own `data_dir`."""
    import tensorflow_datasets as tfds

    if not name:
        raise DataError("Which of TensorFlow's datasets is meant? Type tfds/NAME, for example tfds/mnist.")
    place = places(root, ())[0]
    try:
        builder = tfds.builder(name, data_dir=str(place), file_format="array_record")
    except Exception as error:  # an unknown name shows in several ways
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"tfds/{name} cannot be opened: {type(error).__name__}: {reason}") from error
    if download:
        with download_errors(f"tfds/{name}", place):
            builder.download_and_prepare()
    splits = {normal_split(str(key)): str(key) for key in builder.info.splits}
    if not splits:
        raise DataError(
            f"tfds/{name} is not in {place} in the format array_record. Give its data_dir as root=FOLDER, or "
            "download=True (--download) where the net allows it."
        )
    holds = choose_split(split, list(splits), f"tfds/{name}")
    try:
        records = builder.as_data_source(split=splits[holds])
    except Exception as error:  # NotImplementedError for other formats, whatever the disk says for damaged files
        reason = " ".join(str(error).split())[:300]
        raise DataError(
            f"tfds/{name} cannot be read by number: {type(error).__name__}: {reason} Prepare it with "
            f"tfds.builder({name!r}, file_format='array_record').download_and_prepare()."
        ) from error
    features = builder.info.features
    if _IMAGE not in features:
        raise DataError(f"tfds/{name} has no pictures: its features are {', '.join(features)}.")
    labelled = _LABEL in features
    info = builder.info.splits[splits[holds]]
    return Source(
        RecordPictures(records),
        [int(records[i][_LABEL]) for i in range(len(records))] if labelled else None,
        list(getattr(features[_LABEL], "names", None) or []) or None if labelled else None,
        names=[f"{holds}[{i}]" for i in range(len(records))],
        holds=holds,
        content=f"{builder.info.full_name} {holds} {info.num_examples} {info.num_bytes}",
        notes=() if labelled else (f"tfds/{name} has no labels.",),
    )
