"""The batches of a training. Small data stay in memory: each picture is decoded once, not once per epoch.

For small models on small pictures reading is a good part of the time, and it does not get faster with more threads.
The batches are bit for bit those of `ImageData.learn` and `ImageData.batches`, which serve whatever is larger, and
whatever is augmented picture by picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from vitscope.data import Batch, steps_per_epoch
from vitscope.data.batch import Skipped
from vitscope.data.batching import Augment, nothing_read
from vitscope.data.randomness import permutation
from vitscope.models import Model
from vitscope.models.preprocessing import Preprocess
from vitscope.training.joint_augment import joint_augmentation
from vitscope.training.options import TrainOptions
from vitscope.training.picture_augment import picture_augmentation
from vitscope.training.setup import TrainData

LIMIT = 256 * 2**20  # bytes of preprocessed pictures per split and process


class Feed:
    """Batches of one split. Where the preprocessed pictures fit into `limit` bytes, they are read at the first use.

    augment: changes single pictures in `epoch`; repeats: versions of each picture that an epoch then shows.
    """

    def __init__(
        self,
        data: Any,  # Data; what is not kept in memory also has `learn`, as `ImageData`
        preprocess: Preprocess,
        workers: int = 0,
        limit: int = LIMIT,
        augment: Augment | None = None,
        repeats: int = 1,
    ) -> None:
        self.data, self.preprocess, self.workers = data, preprocess, workers
        self.augment, self.repeats = augment, repeats
        size = getattr(preprocess, "input_size", (math.inf,))  # of one item: texts have none
        small = augment is None and 4 * len(data) * math.prod(size) <= limit  # float32
        self.small = small and getattr(data, "alike", True)
        self._whole: Batch | None = None

    def epoch(self, batch_size: int, *, seed: int, epoch: int, rank: int, world: int, start: int) -> Iterator[Batch]:
        """One epoch of training for process `rank`, from step `start` on, in the order of (seed, epoch)."""
        if not self.small:
            laid = repeated(len(self.data), self.repeats, seed, epoch) if self.repeats > 1 else None
            data = self.data if laid is None else self.data.subset(laid)
            for batch in data.learn(
                self.preprocess,
                batch_size,
                seed=seed,
                epoch=epoch,
                rank=rank,
                world=world,
                start=start,
                augment=self.augment,
                workers=self.workers,
            ):
                if laid is not None:
                    batch.skipped = [Skipped(laid[s.index], s.path, s.reason) for s in batch.skipped]
                yield batch
            return
        order = permutation(len(self.data), seed, epoch)
        for step in range(start, steps_per_epoch(len(self.data), batch_size, world)):
            number = step * world + rank
            batch = self._choose(number, order[number * batch_size : (number + 1) * batch_size])
            if not len(batch):
                raise nothing_read(batch)
            yield batch

    def once(self, batch_size: int, *, rank: int, world: int) -> Iterator[Batch]:
        """Every picture once, in the order of the data; the processes take turns."""
        if not self.small:
            yield from self.data.batches(self.preprocess, batch_size, rank=rank, world=world, workers=self.workers)
            return
        n = len(self.data)
        for number, first in enumerate(range(0, n, batch_size)):
            if number % world == rank:
                yield self._choose(number, list(range(first, min(first + batch_size, n))))

    def _choose(self, number: int, indices: list[int]) -> Batch:
        whole = self._read()
        bad = {skipped.index: skipped for skipped in whole.skipped}
        if not bad:
            rows = torch.tensor(indices)
        else:
            row = {index: at for at, index in enumerate(whole.indices.tolist())}
            rows = torch.tensor([row[i] for i in indices if i not in bad], dtype=torch.int64)
        return replace(whole.rows(rows), number=number, skipped=[bad[i] for i in indices if i in bad])

    def _read(self) -> Batch:
        if self._whole is None:
            parts = list(self.data.batches(self.preprocess, 256, workers=self.workers))
            skipped: list[Skipped] = [s for part in parts for s in part.skipped]
            self._whole = Batch(
                inputs=torch.cat([part.images for part in parts]),  # (N, C, H, W)
                targets=torch.cat([part.targets for part in parts]),
                indices=torch.cat([part.indices for part in parts]),
                names=[name for part in parts for name in part.names],
                skipped=skipped,
            )
        return self._whole


def open_feeds(options: TrainOptions, data: TrainData, model: Model) -> tuple[Feed, Feed]:
    """Those that are learnt from, augmented as the options say, and those that are held out."""
    augment: Any = joint_augmentation(options, data.train, model.preprocess)
    if augment is None:
        augment = picture_augmentation(options, model.preprocess)
    learned = Feed(data.train, model.preprocess, options.workers, augment=augment, repeats=options.repeats)
    return learned, Feed(data.test, model.preprocess, options.workers)


def repeated(n: int, repeats: int, seed: int, epoch: int) -> list[int]:
    """`n` numbers of pictures, the first ones of the epoch's order `repeats` times each (Hoffer et al. 2020).

    `train_batches` visits picture `order[p]` at place p. The picture that belongs at place p is therefore laid at
    `order[p]`: versions of a picture follow each other, and each has a number of its own to draw from.
    """
    order = permutation(n, seed, epoch)
    laid = [0] * n
    for place, where in enumerate(order):
        laid[where] = order[place // repeats]
    return laid
