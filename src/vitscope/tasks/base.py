"""What a task is. The engine, the training loop, attacks, `accuracy` and the page ask it; none of them knows which.

Subclass `Task`, decorate with `@register_task("name")`, and let the data say `task = "name"`, or
`task = "package.module:Name"`. Targets have the items first, (B, ...); an item may hold many answers to compare, a
class for each pixel or the next token at each place, and those without a target are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.models import Model
from vitscope.registry import TASKS
from vitscope.tasks.words import PICTURES, Words

DEFAULT = "classification"


@dataclass(frozen=True)
class Measure:
    """The one figure that a training is judged by."""

    name: str  # as in the columns `train_NAME` and `test_NAME`
    unit: str
    factor: float = 1.0  # from the column to the unit: 100 where a share is shown in per cent
    larger: bool = True  # is a larger one better?

    def better(self, new: float, best: float | None) -> bool:
        return best is None or (new > best if self.larger else new < best)


class Task:
    """What is compared, summed over items. All sums add up over batches and processes."""

    name: ClassVar[str] = ""
    measure: ClassVar[Measure]
    evaluation: ClassVar[str] = ""  # the analysis that `evaluate` makes where nothing is corrupted or shifted
    attack: ClassVar[str] = ""  # the analysis that `attack` makes, where it is not that of one class for each item
    one_class: ClassVar[bool] = False  # is each item of one class? Then it has a class for the lenses to look for

    def __init__(self, words: Words = PICTURES) -> None:
        self.words = words

    def match(self, model: Model, data: Data) -> tuple[Data, str | None]:
        """Data whose targets mean what the model's outputs mean, and a remark where that is not certain."""
        return data, None

    def check(self, model: Model, data: Data) -> None:
        """Raise DataError where the targets of these data cannot judge the model's outputs."""

    def check_learning(self, train: Data, test: Data) -> None:
        """Raise DataError where nothing can be learnt from `train` that could be judged on `test`."""

    def model_options(self, data: Data) -> dict[str, Any]:
        """What a new model must be built with to answer for these data."""
        return {}

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """In nats, summed over all that is compared: a number."""
        return self.item_loss(outputs, targets).sum()

    def item_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(B,): of each item, summed over what is compared in it."""
        raise NotImplementedError

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(B,): how many answers of each item are right."""
        raise NotImplementedError

    def counted(self, targets: Tensor) -> Tensor:
        """(B,): how many answers of each item are compared."""
        raise NotImplementedError

    def more(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(k,): whatever else `figures` needs of a batch, as sums: none. Where they are, such as confusions."""
        return outputs.new_zeros(0)

    def tally(self, outputs: Tensor, targets: Tensor) -> list[float]:
        """[loss, right answers, answers, *more] of a batch without gradients, in float64."""
        outputs = outputs.cpu().double()
        right, counted = self.right(outputs, targets), self.counted(targets)
        told = [float(self.loss(outputs, targets)), float(right.sum()), float(counted.sum())]
        return told + self.more(outputs, targets).tolist()

    def fooled(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(B,) bool: has an attack reached what it wants?"""
        return self.right(outputs, targets) == 0

    def judged(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """(outputs (n, K) float64 on the CPU, classes (n,), items (n,)) of a batch: all that is compared in it.

        With the gradients that the outputs have.
        """
        raise NotImplementedError

    def figures(self, loss: float, right: float, counted: float, *more: float) -> dict[str, float]:
        """From the sums to what is written down: the loss, and the measure under its name. more: as `more` has them."""
        raise NotImplementedError

    def preprocess(self, recipe: Any) -> Any:
        """How a new model's inputs are made for these data: as the model says."""
        return recipe

    def describe(self) -> dict[str, Any] | None:
        """What a run's configuration says of the task; None where it says nothing, for classes of pictures."""
        return {"name": self.name, "words": self.words.to_dict()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.words.items})"


T = TypeVar("T", bound=type[Task])


def register_task(name: str) -> Callable[[T], T]:
    """Class decorator: make a task known under `name`, which data then bear."""
    return TASKS.named(name)


def task_of(data: Any) -> Task:
    """The task that data are for: a Task, a name, or nothing, which means classes of pictures."""
    task = getattr(data, "task", DEFAULT)
    return task if isinstance(task, Task) else TASKS.get(str(task))()
