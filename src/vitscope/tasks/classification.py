"""One class for each item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.data import Data, synsets
from vitscope.data.batch import Batch
from vitscope.errors import DataError, UnlabelledError
from vitscope.models import Model
from vitscope.tasks.base import DEFAULT, Measure, Task, register_task
from vitscope.tasks.words import PICTURES


@register_task("classification")
class Classification(Task):
    """Outputs (B, K), targets (B,) with -1 where the class is not known."""

    measure = Measure("accuracy", "%", 100.0)
    one_class = True

    def match(self, model: Model, data: Data) -> tuple[Data, str | None]:
        """A model that knows the names of its classes is asked by name; a head of ImageNet's classes knows none."""
        if (check := getattr(data, "check_preprocess", None)) is not None:
            check(getattr(model, "preprocess", None))
        mine, theirs = model.classes, list(data.classes)
        if mine is None:
            return data, _assumed_order(model, data)
        if mine == theirs or len(mine) != len(theirs):  # other numbers of classes: `check`
            return data, None
        if len(set(mine)) == len(mine) and set(mine) == set(theirs):
            remark = (
                f"The model learned the classes in the order {some(mine)}, the data has them in the order "
                f"{some(theirs)}: labels follow their names."
            )
            return data.ordered_as(mine), remark
        return data, (
            f"The model was trained on classes called {some(mine)}; those of the data are called {some(theirs)}. They "
            "are compared by number."
        )

    def check(self, model: Model, data: Data) -> None:
        """Labels only mean something to a head with the same classes."""
        if all(label < 0 for label in data.labels):
            raise UnlabelledError(
                f"None of the {len(data):,} {self.words.items} of {data.name} has a label. Put them into class "
                "folders; `vitscope analyze --only attention` needs no labels."
            )
        data.check_head(model.num_classes, model.name)

    def check_learning(self, train: Data, test: Data) -> None:
        for data in (train, test):
            if any(label < 0 for label in data.labels):
                unknown = sum(label < 0 for label in data.labels)
                raise DataError(
                    f"{unknown:,} {self.words.items} of {data.name} ({data.split}) have no label: training needs them "
                    "all. (Label maps, for a segmenter: --labels DIR.)"
                )
        check_classes(train, test, "both folders must hold the same class folders")

    def model_options(self, data: Data) -> dict[str, Any]:
        return {"num_classes": data.num_classes}

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="sum")

    def item_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(1) == targets

    def counted(self, targets: Tensor) -> Tensor:
        return targets >= 0

    def judged(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        assert batch.outputs is not None
        known = (batch.targets >= 0).nonzero().flatten()
        return batch.outputs.cpu()[known].double(), batch.targets[known], known

    def figures(self, loss: float, right: float, counted: float, *more: float) -> dict[str, float]:
        return {"loss": loss / counted, "accuracy": right / counted}

    def describe(self) -> dict[str, Any] | None:
        return None if self.words == PICTURES and self.name == DEFAULT else super().describe()


def true_rank(logits: Tensor, labels: Tensor) -> Tensor:
    """Rank of the true class, 1 = predicted: (B, C), (B,) -> (B,) int64."""
    true = logits.gather(1, labels[:, None])  # (B, 1)
    earlier = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]  # (B, C)
    return 1 + ((logits > true) | ((logits == true) & earlier)).sum(1)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """How far the best wrong class is ahead of the label: positive where the model is fooled. (B, K) -> (B,)"""
    true = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return others.amax(1) - true[:, 0]


def check_classes(train: Data, test: Data, expected: str) -> None:
    """There are classes to tell apart, and the held-out ones are the same."""
    if train.num_classes < 2:
        raise DataError(f"{train.name} has {train.num_classes} class: there is nothing to learn to tell apart.")
    if list(train.classes) != list(test.classes):
        raise DataError(
            f"The classes of {train.split} ({some(train.classes)}) and {test.split} ({some(test.classes)}) differ: "
            f"{expected}."
        )


def some(names: Sequence[str]) -> str:
    """'cat, dog, bird, ...'"""
    return ", ".join(map(str, names[:3])) + (", ..." if len(names) > 3 else "")


def _assumed_order(model: Model, data: Data) -> str | None:
    """Nothing but their order connects 1,000 classes without WordNet names with an ImageNet head."""
    if model.num_classes != synsets.NUM_CLASSES or data.num_classes != synsets.NUM_CLASSES:
        return None
    if synsets.count_known(data.class_ids) == synsets.NUM_CLASSES:
        return None
    return (
        f"The 1,000 classes of {data.name} are not named by WordNet ids: {some(data.classes)}, {data.classes[-1]} are "
        "taken for the classes 0, 1, 2, ..., 999 of the head, in this order."
    )
