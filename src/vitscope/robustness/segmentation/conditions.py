"""Pictures with label maps, clean and under every corruption, as one set: one pass, one resume and one merge."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from vitscope.analyses.gallery import choose_gallery
from vitscope.data.batch import Batch, Item
from vitscope.data.dealing import Turn
from vitscope.data.segmentation.batching import whole_batches
from vitscope.data.segmentation.dataset import SegmentationData
from vitscope.data.transforms import build_transform, normalise, pixels_of
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess
from vitscope.robustness.corruptions import corrupt, image_seed
from vitscope.robustness.segmentation.moving import MOVES, moved_labels


class SegmentationConditions(SegmentationData):
    """The clean pictures, then the same ones under each (corruption, severity). Corrupted at the size that goes in."""

    def __init__(self, clean: SegmentationData, corruptions: Sequence[tuple[str, int]], seed: int = 0, **request: Any):
        self.clean, self.conditions, self.seed = clean, [("none", 0), *corruptions], seed
        self.request = request  # what a run keeps, to be made again
        self.name, self.split, self.strict = clean.name, clean.split, clean.strict
        self.selection: dict[str, Any] = {}
        self.warnings, self.has_masks, self.shards = list(clean.warnings), False, ()
        self.classes, self.class_ids = list(clean.classes), list(clean.class_ids)
        self.labels = [-1] * len(self)
        names = [f"{name}/{severity}/" if severity else "" for name, severity in self.conditions]
        self.paths = [f"{name}{path}" for name in names for path in clean.paths]
        if any(name in MOVES for name, _ in corruptions):
            self.warnings.append("elastic_transform moves pixels: label maps are moved along.")

    @property
    def root(self) -> None:
        """Paths begin with the condition."""
        return

    def sizes(self) -> Iterator[tuple[int, int]]:
        return self.clean.sizes()

    @property
    def alike(self) -> bool:
        return self.clean.alike

    def __len__(self) -> int:
        return len(self.clean) * len(self.conditions)

    def place(self, i: int) -> tuple[int, int]:
        """Number of the condition, and of the picture in it."""
        return divmod(i, len(self.clean))

    def gallery(self, wanted: int = 8) -> frozenset[int]:
        """The clean pictures that an analysis of them shows, and some of them corrupted, half as many as those."""
        clean = sorted(choose_gallery(self.clean.labels, wanted))
        most = min(wanted // 2, len(self.conditions) - 1)
        tried = [1 + i * (len(self.conditions) - 1) // most for i in range(most)]
        return frozenset([*clean, *(len(self.clean) * c + clean[i % len(clean)] for i, c in enumerate(tried))])

    def read(self, i: int, masks: bool = True) -> Item:
        """Picture `i` as it lies on disk: what corrupts it happens at the size of the input, in `batches`."""
        return replace(self.clean.read(self.place(i)[1], masks), index=i, path=self.paths[i])

    def ordered_as(self, classes: Sequence[str]) -> SegmentationConditions:
        return SegmentationConditions(self.clean.ordered_as(classes), self.conditions[1:], self.seed, **self.request)

    def subset(self, indices: Sequence[int]) -> SegmentationData:
        raise DataError("Conditions are measured as a whole: choose fewer images when they are loaded.")

    def fingerprint(self) -> str:
        lines = [self.clean.fingerprint(), str(self.seed), *(f"{name} {level}" for name, level in self.conditions)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]

    def describe(self) -> dict[str, Any]:
        return {**self.in_short(), "clean": self.clean.describe(), **self.request}

    def batches(self, preprocess: Preprocess, batch_size: int = 64, **turn: Unpack[Turn]) -> Iterator[Batch]:
        """As `SegmentationData.batches`, with the corruptions carried out where the pictures are read."""
        return whole_batches(self, preprocess, batch_size, Corrupted(self, preprocess.whole()), **turn)

    def __repr__(self) -> str:
        return f"SegmentationConditions({self.name}: {len(self.clean):,} images, {len(self.conditions)} conditions)"


@dataclass(frozen=True, eq=False)
class Corrupted:
    """A picture as large as the model wants it, corrupted there, and normalised; its map moved along where need be."""

    data: SegmentationConditions
    preprocess: Preprocess

    def __call__(self, item: Item) -> tuple[Tensor, Tensor]:
        condition, inside = self.data.place(item.index)
        name, severity = self.data.conditions[condition]
        transform, labels = build_transform(self.preprocess), item.target
        pixels = pixels_of(transform.cut(item.image)[0])  # (C, H, W) uint8
        if severity:
            seed = image_seed(self.data.seed, self.data.clean.paths[inside], name, severity)
            pixels = corrupt(pixels[None].contiguous(), name, severity, [seed])[0]
            if name in MOVES:
                labels = moved_labels(labels, (pixels.shape[1], pixels.shape[2]), severity, seed)
        return normalise(pixels, transform.mean, transform.std), torch.from_numpy(np.ascontiguousarray(labels))
