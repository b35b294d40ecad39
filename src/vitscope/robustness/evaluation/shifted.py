"""All conditions of an evaluation as one set of pictures, so that one pass, one resume and one merge serve them all."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any, Unpack

import torch
from torch import Tensor

from vitscope.data.batch import Batch, Item
from vitscope.data.batching import evaluation_batches
from vitscope.data.dataset import ImageData
from vitscope.data.dealing import Turn, place_of
from vitscope.data.transforms import ImageTransform, build_transform, normalise, pixels_of
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess
from vitscope.robustness.condition import Condition
from vitscope.robustness.corruptions import corrupt, image_seed


class ShiftedData(ImageData):
    """Conditions one after the other. Picture `i` belongs to the condition whose range holds `i`."""

    def __init__(self, conditions: Sequence[Condition], seed: int = 0, request: Mapping[str, Any] | None = None):
        if not conditions:
            raise DataError("There is nothing to evaluate on: give --data, --ood or both.")
        first = conditions[0].data
        for condition in conditions:
            if list(condition.data.classes) != list(first.classes):
                raise DataError(
                    f"{conditions[0].key} has {first.num_classes:,} classes ({', '.join(first.classes[:3])}, ...) and "
                    f"{condition.key} {condition.data.num_classes:,} ({', '.join(condition.data.classes[:3])}, ...): "
                    "one head cannot be judged on both. The published sets belong to ImageNet's 1,000 classes."
                )
        self.conditions, self.seed, self.request = tuple(conditions), seed, dict(request or {})
        self.starts = [0, *accumulate(len(c.data) for c in conditions)]
        sets = dict.fromkeys(c.data.name if c.set == "clean" else c.set for c in conditions)
        self.name, self.split = ", ".join(sets), ""
        self.strict = any(c.data.strict for c in conditions)
        self.selection: dict[str, Any] = {}
        self.warnings = list(dict.fromkeys(w for c in conditions for w in c.data.warnings))
        self.has_masks = False
        self.classes, self.class_ids = list(first.classes), list(first.class_ids)
        self.labels = _Numbered(self, "label_at")  # type: ignore[assignment]
        self.paths = _Numbered(self, "path_at")  # type: ignore[assignment]
        self._fingerprint: str | None = None

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def root(self) -> None:
        """Paths begin with the condition and are relative to its own folder."""
        return

    def locate(self, i: int) -> tuple[int, int]:
        """Number of the condition, and of the picture in it."""
        number = bisect.bisect_right(self.starts, i) - 1
        return number, i - self.starts[number]

    def read(self, i: int, masks: bool = True) -> Item:
        """Picture `i` as it lies on disk: what corrupts it happens at the size of the model's input, in `batches`."""
        number, inside = self.locate(i)
        item = self.conditions[number].data.read(inside, masks=False)
        return Item(item.image, self.label_at(number, inside), i, self.path_at(number, inside))

    def label_at(self, number: int, inside: int) -> int:
        condition = self.conditions[number]
        return condition.data.labels[inside] if condition.labelled else -1

    def path_at(self, number: int, inside: int) -> str:
        condition = self.conditions[number]
        return f"{condition.key}/{condition.data.paths[inside]}"

    def ordered_as(self, classes: Sequence[str]) -> ShiftedData:
        number = {name: i for i, name in enumerate(classes)}
        data = {id(c.data): c.data.ordered_as(classes) for c in self.conditions}  # those that share pictures still do
        own = [tuple(sorted(number[self.classes[i]] for i in c.classes)) for c in self.conditions]
        conditions = [replace(c, data=data[id(c.data)], classes=numbers) for c, numbers in zip(self.conditions, own)]
        return ShiftedData(conditions, self.seed, self.request)

    def subset(self, indices: Sequence[int]) -> ImageData:
        raise DataError("Conditions are measured as a whole: choose fewer images when they are loaded.")

    def fingerprint(self) -> str:
        if self._fingerprint is None:
            lines = [f"{c.key} {c.classes} {c.cropped} {c.data.fingerprint()}" for c in self.conditions]
            self._fingerprint = hashlib.sha256("\n".join([str(self.seed), *lines]).encode()).hexdigest()[:32]
        return self._fingerprint

    def describe(self) -> dict[str, Any]:
        return {**self.in_short(), **self.request}

    def batches(self, preprocess: Preprocess, batch_size: int = 64, **turn: Unpack[Turn]) -> Iterator[Batch]:
        """As `ImageData.batches`, with the corruptions carried out where the pictures are read."""
        pixels = Pixels(self, preprocess)
        return evaluation_batches(self, preprocess, batch_size, **turn, prepare=pixels.cut, finish=pixels.corrupt)


@dataclass(frozen=True, eq=False)
class Pixels:
    """Pictures cut to the model's input, corrupted there, and normalised. It can be sent to other processes."""

    data: ShiftedData
    preprocess: Preprocess

    def cut(self, item: Item, transform: ImageTransform) -> Tensor:
        """(C, H, W) uint8"""
        if self.data.conditions[self.data.locate(item.index)[0]].cropped:
            transform = build_transform(replace(self.preprocess, crop_pct=1.0))
        return pixels_of(transform.cut(item.image)[0])

    def corrupt(self, pixels: Tensor, items: Sequence[Item]) -> Tensor:
        """(B, C, H, W) uint8 -> normalised float32, bit for bit the model's own recipe where nothing is corrupted."""
        places = [self.data.locate(item.index) for item in items]
        parts, at = [], 0
        for number, group in groupby(places, key=lambda place: place[0]):
            inside = [picture for _, picture in group]
            condition, part = self.data.conditions[number], pixels[at : at + len(inside)]
            at += len(inside)
            if condition.on_the_fly:
                name, severity, paths = condition.corruption, condition.severity, condition.data.paths
                seeds = [image_seed(self.data.seed, paths[i], name, severity) for i in inside]
                part = corrupt(part, name, severity, seeds)
            parts.append(part)
        transform = build_transform(self.preprocess)
        return normalise(torch.cat(parts), transform.mean, transform.std)


class _Numbered(Sequence[Any]):
    """A list that is computed entry by entry: names of millions of pictures take no memory."""

    def __init__(self, data: ShiftedData, method: str) -> None:
        self._data, self._method = data, method

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: Any) -> Any:
        return getattr(self._data, self._method)(*self._data.locate(place_of(i, len(self), "picture")))
