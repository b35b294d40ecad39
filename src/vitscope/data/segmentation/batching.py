"""Batches of pictures with label maps: whole ones to judge by, pieces to learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from vitscope.data.batch import Batch, Item
from vitscope.data.batching import Reader, check_pictures, iterate, plan_batches, plan_epoch
from vitscope.data.dealing import Turn, batch_size_of
from vitscope.data.randomness import sample_generator
from vitscope.data.segmentation.dataset import SegmentationData
from vitscope.data.segmentation.joint import Joint
from vitscope.data.transforms import build_transform
from vitscope.models.preprocessing import Preprocess

Prepare = Callable[[Item], tuple[Tensor, Tensor]]  # a picture and its map -> (C, H, W), (H, W) int64


@dataclass(frozen=True)
class Whole:
    """A picture with its short side as the recipe has it; its map as it is."""

    preprocess: Preprocess

    def __call__(self, item: Item) -> tuple[Tensor, Tensor]:
        x, _ = build_transform(self.preprocess)(item.image)
        return x, torch.from_numpy(np.ascontiguousarray(item.target))


@dataclass(frozen=True)
class Piece:
    """A piece of a picture and of its map, as large as the input, drawn from (seed, epoch, number of the picture)."""

    joint: Joint
    seed: int
    epoch: int

    def __call__(self, item: Item) -> tuple[Tensor, Tensor]:
        return self.joint(item.image, item.target, sample_generator(self.seed, self.epoch, item.index))


def whole_batches(
    data: SegmentationData,
    preprocess: Preprocess,
    batch_size: int,
    prepare: Prepare | None = None,
    **turn: Unpack[Turn],
) -> Iterator[Batch]:
    """`SegmentationData.batches`: see there. `prepare`, in the workers, replaces the model's recipe."""
    check_pictures(data, preprocess)
    plans = plan_batches(len(data), batch_size_of(data, batch_size), shards=data.shards, **turn)
    return iterate(_Scenes(data, plans, prepare or Whole(preprocess.whole())), data.strict, **turn)


def piece_batches(data: SegmentationData, piece: Piece, batch_size: int, **turn: Unpack[Turn]) -> Iterator[Batch]:
    """`SegmentationData.learn`: see there."""
    plans = plan_epoch(len(data), batch_size, seed=piece.seed, epoch=piece.epoch, **turn)
    return iterate(_Scenes(data, plans, piece), data.strict, empty_allowed=False, **turn)


@dataclass(frozen=True, eq=False)
class _Scenes(Reader):
    prepare: Prepare

    def batch(self, number: int, indices: list[int]) -> Batch:
        def read(index: int) -> tuple[Item, Tensor, Tensor]:
            item = self.data.read(index)
            return item, *self.prepare(item)

        found, skipped = self.readable(indices, read, self.data.paths)
        return Batch(
            inputs=torch.stack([x for _, x, _ in found]) if found else torch.empty(0, 3, 1, 1),
            targets=torch.stack([y for _, _, y in found]) if found else torch.empty(0, 1, 1, dtype=torch.int64),
            indices=torch.tensor([item.index for item, _, _ in found], dtype=torch.int64),
            names=[item.path for item, _, _ in found],
            number=number,
            skipped=skipped,
        )
