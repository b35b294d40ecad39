"""Data in memory that are no pictures: tensors, as the engine and a training ask for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitscope.data.batch import Batch
from vitscope.data.dealing import dealt_batches
from vitscope.errors import DataError


class Tensors:
    """A `vitscope.data.Data`: what a model is called with and what its answers are compared with, items first.

    `inputs`: a tensor, or several by name. `targets`: whole numbers are classes, called `classes`, of one per item;
    everything else is for the `task` to read.
    """

    warnings, has_masks, strict, shards = (), False, False, ()

    def __init__(
        self,
        name: str,
        split: str,
        inputs: Tensor | Mapping[str, Tensor],
        targets: Tensor,
        *,
        classes: Sequence[str] = (),
        task: Any = "classification",  # a name, or a `vitscope.tasks.Task`
    ) -> None:
        self.name, self.split, self.inputs, self.targets, self.task = name, split, inputs, targets, task
        lengths = {len(part) for part in (*self._parts().values(), targets)}
        if len(lengths) > 1:
            raise DataError(f"The tensors of {name} have {sorted(lengths)} items: expected as many in each.")
        one_class = targets.ndim == 1 and not targets.is_floating_point()
        self.labels: list[int] = targets.tolist() if one_class else [-1] * len(targets)
        self.classes = list(classes) or [str(label) for label in range(max(self.labels, default=-1) + 1)]
        self.class_ids, self.num_classes = self.classes, len(self.classes)

    def _parts(self) -> Mapping[str, Tensor]:
        return self.inputs if isinstance(self.inputs, Mapping) else {"inputs": self.inputs}

    def _rows(self, rows: Tensor) -> Tensor | dict[str, Tensor]:
        if isinstance(self.inputs, Mapping):
            return {name: part[rows] for name, part in self.inputs.items()}
        return self.inputs[rows]

    def __len__(self) -> int:
        return len(self.targets)

    def describe(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for name, part in sorted({**self._parts(), "targets": self.targets}.items()):
            digest.update(f"{name} {part.dtype} {tuple(part.shape)}".encode())
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        found = {"name": self.name, "split": self.split, "n": len(self), "num_classes": self.num_classes}
        return {**found, "fingerprint": digest.hexdigest()[:32]}

    def check_head(self, num_classes: int, model: str = "the model") -> None:
        if num_classes != self.num_classes:
            raise DataError(f"{self.name} has {self.num_classes} classes, and {model} answers with {num_classes}.")

    def subset(self, indices: Sequence[int]) -> Tensors:
        rows = torch.as_tensor(list(indices), dtype=torch.int64)
        inputs, targets = self._rows(rows), self.targets[rows]
        return Tensors(self.name, self.split, inputs, targets, classes=self.classes, task=self.task)

    def ordered_as(self, classes: Sequence[str]) -> Tensors:
        places = torch.tensor([*map(list(classes).index, self.classes), -1])  # -1, an unknown class, stays
        return Tensors(self.name, self.split, self.inputs, places[self.targets], classes=classes, task=self.task)

    def batches(
        self, preprocess: Any, batch_size: int = 64, *, rank: int = 0, world: int = 1, start: int = 0, workers: int = 0
    ) -> Iterator[Batch]:
        for number in dealt_batches(len(self), batch_size, rank, world):
            if number >= start:
                rows = torch.arange(number * batch_size, min((number + 1) * batch_size, len(self)))
                names = [f"{self.name}[{i}]" for i in rows.tolist()]
                yield Batch(self._rows(rows), self.targets[rows], rows, names, number=number)

    def __repr__(self) -> str:
        return f"Tensors({self.name}, {self.split}: {len(self):,} items)"
