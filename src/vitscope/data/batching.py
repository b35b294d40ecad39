"""Batches for looking and for learning, read in this process or in workers, always the same ones."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitscope.data.batch import Batch, Item, Skipped
from vitscope.data.dataset import ImageData
from vitscope.data.dealing import Turn, dealt_batches
from vitscope.data.images import BadFileError
from vitscope.data.randomness import derive_seed, permutation, preserved_globals, sample_generator, seed_globals
from vitscope.data.transforms import ImageTransform, build_transform
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess

T = TypeVar("T")
Augment = Callable[[Image.Image, torch.Generator], Image.Image | Tensor]
Prepare = Callable[[Item, ImageTransform], Tensor]  # a picture -> its tensor
Finish = Callable[[Tensor, Sequence[Item]], Tensor]  # all tensors of a batch -> the normalised batch


def evaluation_batches(
    data: ImageData,
    preprocess: Preprocess,
    batch_size: int,
    *,
    prepare: Prepare | None = None,
    finish: Finish | None = None,
    **turn: Unpack[Turn],
) -> Iterator[Batch]:
    """`ImageData.batches`: see there. `prepare` and `finish`, in the workers, replace the model's recipe; no masks."""
    plans = plan_batches(len(data), batch_size, shards=data.shards, **turn)
    check_pictures(data, preprocess)
    transform = build_transform(preprocess, data.mask_rule)
    reader = _Pictures(data, plans, transform, prepare, finish, masks=prepare is None)
    return iterate(reader, data.strict, **turn)


def plan_batches(
    n: int, batch_size: int, *, shards: Sequence[int] = (), **turn: Unpack[Turn]
) -> list[tuple[int, list[int]]]:
    """(number, its items) of every batch of process `rank` from batch `start` on."""
    rank, world = turn.get("rank", 0), turn.get("world", 1)
    start, workers = turn.get("start", 0), turn.get("workers", 0)
    _check(batch_size, rank, world, start, workers)
    return [
        (number, list(range(number * batch_size, min((number + 1) * batch_size, n))))
        for number in dealt_batches(n, batch_size, rank, world, shards)
        if number >= start
    ]


def steps_per_epoch(n: int, batch_size: int, world: int = 1) -> int:
    """Optimiser steps in an epoch: every process has equally many, each of `batch_size` pictures.

    What does not fill a step is left for another epoch. A set smaller than one step is one smaller step.
    """
    return max(1, n // (batch_size * world))


def plan_epoch(n: int, batch_size: int, *, seed: int, epoch: int, **turn: Unpack[Turn]) -> list[tuple[int, list[int]]]:
    """(number, its items) of every batch of an epoch for process `rank`, from step `start` on."""
    rank, world, start = turn.get("rank", 0), turn.get("world", 1), turn.get("start", 0)
    _check(batch_size, rank, world, start, 0)
    if n < world:
        raise DataError(f"{n} images are too few to train {world} processes on: each needs at least one.")
    order = permutation(n, seed, epoch)
    size = min(batch_size, n // world)
    numbers = [step * world + rank for step in range(start, steps_per_epoch(n, batch_size, world))]
    return [(number, order[number * size : (number + 1) * size]) for number in numbers]


def train_batches(
    data: ImageData,
    preprocess: Preprocess,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    augment: Augment | None = None,
    **turn: Unpack[Turn],
) -> Iterator[Batch]:
    """One epoch for process `rank` of `world`, from step `start` on; `batch_size` is that of one process.

    The order depends on (seed, epoch) alone. `augment(picture, generator)` returns a picture, which is then
    preprocessed, or the finished tensor. Whatever it draws, from the generator or from the global generators of
    Python, NumPy and torch, depends on (seed, epoch, number of the picture) alone, in any process; the global
    generators are left as they were. Masks are not read.
    """
    check_pictures(data, preprocess)
    plans = plan_epoch(len(data), batch_size, seed=seed, epoch=epoch, **turn)
    reader = _Pictures(data, plans, build_transform(preprocess), _Augmentation(augment, seed, epoch), masks=False)
    return iterate(reader, data.strict, empty_allowed=False, **turn)


@dataclass(frozen=True)
class _Augmentation:
    augment: Augment | None
    seed: int
    epoch: int

    def __call__(self, item: Item, transform: ImageTransform) -> Tensor:
        if self.augment is None:
            return transform(item.image)[0]
        generator = sample_generator(self.seed, self.epoch, item.index)
        seed_globals(derive_seed("global", self.seed, self.epoch, item.index))
        result = self.augment(item.image, generator)
        if not isinstance(result, Tensor):
            return transform(result)[0]
        if tuple(result.shape) != transform.preprocess.input_size:
            raise ValueError(
                f"The augmentation returned a tensor of shape {tuple(result.shape)}: the model takes "
                f"{transform.preprocess.input_size}."
            )
        return result


@dataclass(frozen=True, eq=False)
class Reader(Dataset[Batch]):
    """A dataset whose entries are whole batches: their boundaries are then nobody else's business."""

    data: Any
    plans: Sequence[tuple[int, list[int]]]  # (number of the batch, its items)

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, i: int) -> Batch:
        with preserved_globals():  # augmentations seed them, and a user's own data may draw from them
            return self.batch(*self.plans[i])

    def batch(self, number: int, indices: list[int]) -> Batch:
        raise NotImplementedError

    def readable(
        self, indices: list[int], read: Callable[[int], T], names: Sequence[str]
    ) -> tuple[list[T], list[Skipped]]:
        """What `read` makes of each item, and those of which it makes nothing."""
        found: list[T] = []
        skipped: list[Skipped] = []
        for index in indices:
            try:
                found.append(read(index))
            except DataError as error:
                reason = error.reason if isinstance(error, BadFileError) else str(error)
                skipped.append(Skipped(index, names[index], reason))
        return found, skipped


@dataclass(frozen=True, eq=False)
class _Pictures(Reader):
    transform: ImageTransform
    prepare: Prepare | None = None  # instead of the transform
    finish: Finish | None = None  # on the whole batch
    masks: bool = True

    def batch(self, number: int, indices: list[int]) -> Batch:
        found, skipped = self.readable(indices, self._read, self.data.paths)
        items = [item for item, _, _ in found]
        masks = [mask for _, _, mask in found if mask is not None]
        shape = self.transform.preprocess.input_size
        with_masks = self.masks and self.data.has_masks
        stacked = torch.stack(masks) if masks else torch.empty(0, *shape[1:], dtype=torch.uint8)
        images = torch.stack([x for _, x, _ in found]) if found else torch.empty(0, *shape)
        return Batch(
            inputs=self.finish(images, items) if found and self.finish is not None else images,
            targets=torch.tensor([item.label for item in items], dtype=torch.int64),
            indices=torch.tensor([item.index for item in items], dtype=torch.int64),
            names=[item.path for item in items],
            masks=stacked if with_masks else None,
            mask_rule=self.transform.mask_rule,
            number=number,
            skipped=skipped,
        )

    def _read(self, index: int) -> tuple[Item, Tensor, Tensor | None]:
        item = self.data.read(index, masks=self.masks)
        if self.prepare is not None:
            return item, self.prepare(item, self.transform), None
        return item, *self.transform(item.image, item.mask)


def iterate(reader: Reader, strict: bool, *, empty_allowed: bool = True, **turn: Unpack[Turn]) -> Iterator[Batch]:
    """The batches of a reader in turn, read here or ahead in `workers`."""
    workers, context = turn.get("workers", 0), turn.get("context")
    if workers < 0:
        raise DataError(f"workers must not be negative, not {workers}.")
    loader: DataLoader[Batch] = DataLoader(
        reader,
        batch_size=None,
        shuffle=False,
        num_workers=workers,
        collate_fn=_unchanged,
        worker_init_fn=_ignore_interrupts if workers else None,
        multiprocessing_context=context if workers else None,
        generator=torch.Generator(),  # else the loader draws a number from the global one
    )
    iterator = iter(loader)
    try:
        for batch in iterator:
            if batch.skipped and strict:
                bad = batch.skipped[0]
                where = reader.data.root / bad.path if reader.data.root is not None else bad.path
                raise BadFileError(where, bad.reason)
            if not len(batch) and not empty_allowed:
                raise nothing_read(batch)
            yield batch
    except (RuntimeError, OSError, EOFError) as error:
        if workers and _is_death(error):
            _shut_down(iterator)
            raise DataError(
                f"A process that reads images died ({error}). It may have run out of memory, or of shared memory "
                "(/dev/shm). Use fewer workers, or workers=0."
            ) from error
        raise
    finally:  # now, not when the last reference goes: torch watches the workers of a living iterator by signals
        if workers:
            _shut_down(iterator)


def nothing_read(batch: Batch, what: str = "images") -> DataError:
    bad = batch.skipped[0]
    return DataError(f"None of the {len(batch.skipped)} {what} of a batch can be read, e.g. {bad.path}: {bad.reason}")


def _shut_down(iterator: Any) -> None:
    """End the workers. The news that one of them died may arrive as a signal just now, once for each."""
    while True:
        try:
            return iterator._shutdown_workers()
        except RuntimeError as error:
            if not _is_death(error):
                raise


def _is_death(error: Exception) -> bool:
    """A worker was killed: torch notices it, or the pipe breaks first. Not: it raised an exception of its own."""
    if isinstance(error, RuntimeError):
        return "DataLoader worker (pid" in str(error)
    return "in DataLoader worker process" not in str(error)


def _unchanged(batch: Any) -> Any:
    return batch


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches every process; the main one ends the workers in good order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _check(batch_size: int, rank: int, world: int, start: int, workers: int) -> None:
    if batch_size < 1:
        raise DataError(f"batch_size must be at least 1, not {batch_size}.")
    if not 0 <= rank < world:
        raise DataError(f"rank must lie in 0..world-1, not {rank} of {world}.")
    if start < 0 or workers < 0:
        raise DataError(f"start and workers must not be negative, not {start} and {workers}.")


def check_pictures(data: ImageData, preprocess: Any) -> None:
    """Raise where a language model is given pictures."""
    if hasattr(preprocess, "encode"):
        raise DataError(
            f"{data.name} are pictures, and the model takes texts: choose texts, such as --data pydoc or a .txt file, "
            "or a vision model such as vit_tiny_patch16_224."
        )
