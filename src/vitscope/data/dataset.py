"""The chosen pictures of a dataset: what `load_data` returns."""

from __future__ import annotations

import bisect
import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

from PIL import Image

from vitscope.data.batch import IGNORED, Batch, Item
from vitscope.data.dealing import Turn, check_numbers, place_of
from vitscope.data.fingerprint import fingerprint
from vitscope.data.folders import FileList
from vitscope.data.images import BadFileError, decode_image, from_array, open_image, plain, read_image
from vitscope.data.masks import as_mask
from vitscope.data.source import Source
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess


class ImageData:
    """Pictures with labels and perhaps masks, in a fixed order. Nothing is read before it is asked for."""

    task: Any = "classification"
    shards: Sequence[int] = ()  # the first picture of each file that holds many, if they are read one after the other

    def __init__(
        self,
        source: Source,
        order: Sequence[int],
        *,
        name: str,
        split: str,
        selection: dict[str, Any] | None = None,
        masks: bool | None = None,
        strict: bool = False,
        warnings: Sequence[str] = (),
    ) -> None:
        if masks and source.masks is None:
            raise DataError(f"{name} ({split}) has no masks: leave masks=True out, or choose data with masks.")
        self.name, self.split, self.strict = name, split, strict
        self.selection = dict(selection or {})
        self.warnings = list(warnings)
        self.has_masks = source.masks is not None and masks is not False
        self._insists = bool(masks)  # on a mask for every picture; else one without a mask is ignored pixel by pixel
        self.classes = list(source.classes or [])
        self.class_ids = list(source.class_ids or self.classes)  # e.g. WordNet ids where `classes` are for people
        self._source, self._order = source, list(order)
        labels, names = source.labels or [], source.names or []
        self.labels = [labels[i] for i in self._order]
        self.paths = [names[i] for i in self._order]
        self.shards = _first_of_shards(source.shards, self._order)
        self._fingerprint: str | None = None

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def mask_rule(self) -> str:
        """Which pixel of a mask speaks for a token: 'centre' or 'corner' of its patch."""
        return str(self.selection.get("mask_rule", "centre"))

    @property
    def root(self) -> Path | None:
        """The folder that `paths` are relative to, or None for pictures in memory."""
        return self._source.root

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, i: int) -> Item:
        return self.read(i)

    def read(self, i: int, masks: bool = True) -> Item:
        """Picture `i`, without its mask if `masks` is false. Raises DataError that names the file."""
        index = place_of(i, len(self), "picture")
        position, path, label = self._order[index], self.paths[index], self.labels[index]
        image = _picture(self._source.images, position, path)
        mask = self._mask(position, path, image) if masks and self.has_masks else None
        return Item(image, label, index, path, mask)

    def _mask(self, position: int, path: str, image: Image.Image) -> Image.Image:
        try:
            mask, name = _raw_mask(self._source, position, image)
        except BadFileError as error:
            raise BadFileError(path, f"its mask {Path(error.path).name}: {error.reason}") from error
        except Exception as error:  # a user's own masks may fail in any way
            reason = str(error) if isinstance(error, DataError) else f"its mask: {type(error).__name__}: {error}"
            raise BadFileError(path, reason) from error
        if mask is None and self._insists:
            raise BadFileError(path, f"{name} is missing. Leave masks=True out to use images without masks")
        return Image.new("L", image.size, IGNORED) if mask is None else as_mask(mask, image.size, path, name)

    def subset(self, indices: Sequence[int]) -> ImageData:
        """Some of these pictures, in the given order, numbered anew from 0."""
        check_numbers(indices, len(self), "picture")
        chosen = type(self)(
            self._source,
            [self._order[i] for i in indices],
            name=self.name,
            split=self.split,
            selection={**self.selection, "subset": len(indices)},
            masks=self._insists or (None if self.has_masks else False),
            strict=self.strict,
            warnings=self.warnings,
        )
        return chosen if chosen.classes == self.classes else chosen.ordered_as(self.classes)

    def fingerprint(self) -> str:
        """A hash of the chosen data: names, labels, sizes; pixels for pictures in memory. The same on every machine."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self._source, self._order, self.has_masks)
        return self._fingerprint

    def in_short(self) -> dict[str, Any]:
        """What every set says of itself in config.yaml."""
        return {
            "name": self.name,
            "split": self.split,
            "n": len(self),
            "num_classes": self.num_classes,
            "fingerprint": self.fingerprint(),
        }

    def describe(self) -> dict[str, Any]:
        """Plain values for config.yaml."""
        return {
            "name": self.name,
            "split": self.split,
            **self.selection,
            "masks": self.has_masks,
            **self.in_short(),
        }

    def check_head(self, num_classes: int, model: str = "the model") -> None:
        """Raise DataError if a head of so many classes cannot be judged by these labels."""
        if num_classes == self.num_classes or all(label < 0 for label in self.labels):
            return
        hint = "Choose a model trained on these classes, or data with the classes of the model."
        if num_classes == 1000 and self.root is not None and all(name.isdecimal() for name in self.classes):
            hint = "If the folders are called by ImageNet's class numbers, give it as 'imagenet-v2' (--root FOLDER)."
        elif self.num_classes == 1000 and self.class_ids != self.classes:
            hint = "Folders with WordNet names are labelled 0..999; load_data('folder', root=...) numbers the folders."
        raise DataError(
            f"{model} tells {num_classes:,} classes apart, but {self.name} has {self.num_classes:,} "
            f"({', '.join(self.classes[:3])}, ...): its labels mean something else. {hint}"
        )

    def ordered_as(self, classes: Sequence[str]) -> ImageData:
        """The same pictures with the labels of a head that has the same classes in another order."""
        number = {name: i for i, name in enumerate(classes)}
        data = copy.copy(self)
        data.labels = [number[self.classes[label]] if label >= 0 else label for label in self.labels]
        place = {name: i for i, name in enumerate(self.classes)}
        data.class_ids = [self.class_ids[place[name]] for name in classes]
        data.classes = list(classes)
        return data

    def batches(self, preprocess: Preprocess, batch_size: int = 64, **turn: Unpack[Turn]) -> Iterator[Batch]:
        """Preprocessed batches in a fixed order.

        Batch `b` always holds pictures `b * batch_size` to `(b + 1) * batch_size - 1`. Process `rank` of `world` gets
        the batches with `b % world == rank`, or those of its own shards (`vitscope.data.dealing`), beginning with
        `start`. A picture that cannot be read is left out of its
        batch and listed in `batch.skipped` (so a batch may be empty); with `strict` it raises DataError.
        `workers` processes read ahead, started by `context` ('fork', 'spawn', ...; None: the platform's habit).
        """
        from vitscope.data.batching import evaluation_batches

        return evaluation_batches(self, preprocess, batch_size, **turn)

    def check_preprocess(self, preprocess: Any) -> None:
        """Raise where a model takes no pictures."""
        from vitscope.data.batching import check_pictures

        check_pictures(self, preprocess)

    def learn(self, preprocess: Preprocess, batch_size: int, *, seed: int, epoch: int, **how: Any) -> Iterator[Batch]:
        """One epoch of training in the order of (seed, epoch): `vitscope.data.train_batches`."""
        from vitscope.data.batching import train_batches

        return train_batches(self, preprocess, batch_size, seed=seed, epoch=epoch, **how)

    def __repr__(self) -> str:
        masks = ", masks" if self.has_masks else ""
        return f"ImageData({self.name} {self.split}: {len(self):,} images, {self.num_classes:,} classes{masks})"


def _first_of_shards(shards: Sequence[int], order: Sequence[int]) -> list[int]:
    """Where the shards begin in the chosen pictures; empty where these go to and fro between them."""
    if not shards or any(a > b for a, b in pairwise(order)):
        return []
    firsts = (bisect.bisect_left(order, first) for first in shards)
    return [first for first in dict.fromkeys(firsts) if first < len(order)]


def _picture(images: Any, position: int, path: str) -> Image.Image:
    try:
        picture = images[position]
        if isinstance(picture, (str, Path)):
            return read_image(picture)
        if isinstance(picture, bytes):
            return decode_image(picture, path)
        return plain(picture, path) if isinstance(picture, Image.Image) else from_array(picture, path)
    except DataError:
        raise
    except Exception as error:  # a user's own sequence may fail in any way
        raise BadFileError(path, f"{type(error).__name__}: {error}") from error


def missing_masks(source: Source, order: Sequence[int]) -> list[str]:
    """The names of pictures without a mask, as far as that is known without decoding anything."""
    if not isinstance(source.masks, (FileList, list, tuple)):
        return []
    names = source.names or []
    return [names[i] for i in order if _is_missing(source.masks[i])]


def _is_missing(mask: Any) -> bool:
    return mask is None or (isinstance(mask, (str, Path)) and not Path(mask).exists())


def _raw_mask(source: Source, position: int, image: Image.Image) -> tuple[Any, str]:
    """The mask before it is checked, None where it is missing, and how to call it in a message."""
    if callable(source.masks):
        mask: Any = source.masks(image)
    else:
        mask = source.masks[position] if source.masks is not None else None
    name = f"its mask {Path(mask).name}" if isinstance(mask, (str, Path)) else "its mask"
    if mask is None or _is_missing(mask):
        return None, name
    if isinstance(mask, (str, Path)):
        mask = open_image(mask)
    if source.decode_mask is None:
        return mask, name
    return source.decode_mask(mask, source.labels[position] if source.labels is not None else -1), name
