"""Texts with one class each: sentences of SST-2, reviews of IMDB, the rows of a table."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from vitscope.data.batch import Batch
from vitscope.data.dealing import Turn
from vitscope.data.folders import natural_order
from vitscope.data.text.dataset import TextData
from vitscope.data.text.tokenizer import Tokenizes
from vitscope.errors import DataError, suggest


class LabelledTexts(TextData):
    """Classes in the natural order of their names, unless `ordered_as` says another one."""

    task: Any = "sentences"

    def _place(self, order: np.ndarray) -> None:
        super()._place(order)
        self._number(self.classes or sorted(set(self._names), key=natural_order))

    @property
    def _names(self) -> Sequence[str]:
        """The class of each document."""
        assert self._source.labels is not None
        return self._source.labels

    def _number(self, classes: Sequence[str]) -> None:
        number = {name: i for i, name in enumerate(classes)}
        present = [self._names[document] for document in self.documents]
        unknown = sorted(set(present) - set(number), key=natural_order)
        if unknown:
            raise DataError(
                f"{self.name} ({self.split}) has {present.count(unknown[0]):,} texts of class {unknown[0]!r}, which is "
                f"none of {', '.join(classes)}.{suggest(unknown[0], classes)} Nothing can have learned it: take these "
                "texts out, or put some of them into the training part."
            )
        self.classes = self.class_ids = list(classes)
        self.labels = [number[name] for name in present]

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        return len(self.classes)

    def ordered_as(self, classes: Sequence[str]) -> LabelledTexts:
        """The same texts with labels that count `classes`, among which theirs must be."""
        other = copy.copy(self)
        other.warnings = list(self.warnings)
        other._number(classes)
        return other

    def check_head(self, num_classes: int, model: str = "the model") -> None:
        if num_classes != self.num_classes:
            raise DataError(
                f"{model} tells {num_classes:,} classes apart, and {self.name} has {self.num_classes:,} "
                f"({', '.join(self.classes[:5])}{', ...' if self.num_classes > 5 else ''})."
            )

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "num_classes": self.num_classes}

    def batches(self, preprocess: Tokenizes, batch_size: int = 64, **turn: Unpack[Turn]) -> Iterator[Batch]:
        """Batches of tokens as `TextData.batches` makes them; targets are classes (B,)."""
        return self._with_classes(super().batches(preprocess, batch_size, **turn))

    def learn(
        self,
        preprocess: Tokenizes,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        augment: Any = None,
        **turn: Unpack[Turn],
    ) -> Iterator[Batch]:
        """One epoch for process `rank` from step `start` on; the order depends on (seed, epoch) alone."""
        import torch

        from vitscope.data.batching import nothing_read, steps_per_epoch
        from vitscope.data.randomness import permutation

        if augment is not None:
            raise DataError(f"{self.name} are texts: there is no augmentation for them.")
        world = turn.get("world", 1)
        order = permutation(len(self), seed, epoch)
        used = order[: steps_per_epoch(len(self), batch_size, world) * batch_size * world]
        shuffled = self.subset(used)  # batch b of it belongs to process b % world, as it should
        turn["start"] = turn.get("start", 0) * world
        for batch in shuffled.batches(preprocess, batch_size, **turn):
            if not len(batch):
                raise nothing_read(batch, "texts")
            skipped = [replace(s, index=used[s.index]) for s in batch.skipped]
            yield replace(batch, indices=torch.tensor(used)[batch.indices], skipped=skipped)
        for remark in shuffled.warnings:
            self.remark(remark)

    def _with_classes(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        import torch

        labels = torch.tensor(self.labels, dtype=torch.int64)
        for batch in batches:
            yield replace(batch, targets=labels[batch.indices])

    def __repr__(self) -> str:
        return f"LabelledTexts({self.name} {self.split}: {len(self):,} texts of {self.num_classes:,} classes)"
