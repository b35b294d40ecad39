"""How a task is taught: batches made ready for the model, the loss that is minimised, and what counts as right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitscope.data import Batch
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.models.preprocessing import UNTOUCHED
from vitscope.tasks import Task
from vitscope.training.augment import EpochAugmentation
from vitscope.training.distillation import open_teacher
from vitscope.training.losses import Objective, Outputs, prediction, wide
from vitscope.training.mixing import Mixing, answers
from vitscope.training.options import TrainOptions
from vitscope.training.processes import onto
from vitscope.training.refinement import PUBLISHED, Learner, refinement_loss, tally_heads

OF_PICTURES = ("augment", "randaugment", "auto_augment", "color_jitter", "erase", "mixup", "cutmix", "cutmix_minmax")


def given_of(options: TrainOptions, names: Sequence[str]) -> list[str]:
    """Those of these options that ask for something."""
    return [name for name in names if getattr(options, name) not in ("", "none", 0, ())]


def open_lesson(options: TrainOptions, task: Task, model: Model, items: int, device: torch.device) -> Lesson:
    if options.refine:
        return HeadsLesson(options, task, model, items, device)
    kind = ClassLesson if task.one_class else ToldLesson if takes_targets(model.module) else Lesson
    return kind(options, task, model, items, device)


def takes_targets(module: Any) -> bool:
    """Does a model compute its own loss where it is told the targets, because that costs it less?"""
    return getattr(module, "takes_targets", False)


def with_targets(inputs: Any, targets: Tensor) -> dict[str, Tensor]:
    """What such a model is called with."""
    return {**(inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}), "targets": targets}


def tally(task: Task, model: Model, batch: Batch) -> list[float]:
    """[loss, right answers, answers, ...] of a batch; a model that takes its targets tells the loss itself."""
    if not takes_targets(model.module):
        return task.tally(model(model.place(batch.inputs)), batch.targets)
    nats = model.ask(model.module, model.place(with_targets(batch.inputs, batch.targets)))
    return [float(nats.cpu().double().sum()), math.nan, float(task.counted(batch.targets).sum())]


class Lesson:
    """The task's own loss on the data as they are. items: in the training data."""

    def __init__(self, options: TrainOptions, task: Task, model: Model, items: int, device: torch.device) -> None:
        self.options, self.task, self.model, self.items, self.device = options, task, model, items, device
        self.dtype = getattr(torch, options.dtype)
        given = given_of(options, OF_PICTURES)
        if given and (model.row.text or model.preprocess == UNTOUCHED):
            raise VitscopeError(f"{given[0]} changes pictures, and {model.name} takes none: leave it out.")

    def begin(self, epoch: int) -> None:
        """Called before the first step of an epoch."""

    def tally(self, model: Model, batch: Batch) -> list[float]:
        """[loss, right answers, answers, ...] of held-out items."""
        return tally(self.task, model, batch)

    def prepare(self, batch: Batch) -> tuple[Any, Tensor]:
        """(inputs, targets) on the device, for the model and for `loss`."""
        return self._placed(batch.inputs), onto(self.device, batch.targets)

    def _placed(self, inputs: Any) -> Any:
        if isinstance(inputs, Mapping):
            return {name: self._placed(part) for name, part in inputs.items()}
        there = onto(self.device, inputs)
        return there.to(self.dtype) if there.is_floating_point() else there

    def counted(self, targets: Tensor) -> int | Tensor:
        """How many answers the loss is summed over."""
        return self.task.counted(targets).sum()

    def loss(self, outputs: Any, targets: Tensor, inputs: Any) -> Tensor:
        """Summed, not averaged, so that the mean over all processes is right also where one has fewer."""
        return self.task.loss(wide(outputs), targets)

    def right(self, outputs: Any, targets: Tensor) -> Tensor:
        """How many answers are right: a number on the device; before what else the task adds up, (1 + k,)."""
        right, more = self.task.right(outputs, targets).sum(), self.task.more(outputs.detach(), targets)
        return torch.cat([right[None].to(more.dtype), more]) if len(more) else right


class ToldLesson(Lesson):
    """The model computes its loss: its answers are nats, (B, N), and 0 where nothing is compared."""

    def prepare(self, batch: Batch) -> tuple[Any, Tensor]:
        inputs, targets = super().prepare(batch)
        return with_targets(inputs, targets), targets

    def loss(self, outputs: Any, targets: Tensor, inputs: Any) -> Tensor:
        return wide(outputs).sum()

    def right(self, outputs: Any, targets: Tensor) -> Tensor:
        """Not known: only words of some clusters were looked at."""
        return torch.full((), torch.nan, device=self.device)


class ClassLesson(Lesson):
    """Classes, of pictures that may be changed and mixed, with smoothed labels or a teacher."""

    def __init__(self, options: TrainOptions, task: Task, model: Model, items: int, device: torch.device) -> None:
        super().__init__(options, task, model, items, device)
        self.objective = Objective(options, open_teacher(options, model, device))
        self.mix = Mixing(options, model.num_classes)
        self.augment: EpochAugmentation | None = None

    def begin(self, epoch: int) -> None:
        recipe = self.model.preprocess
        if recipe != UNTOUCHED and not self.model.row.text:
            black = (-torch.tensor(recipe.mean) / torch.tensor(recipe.std))[:, None, None]  # (C, 1, 1)
            self.augment = EpochAugmentation(self.options.augment, self.items, black, self.options.seed, epoch)

    def prepare(self, batch: Batch) -> tuple[Any, Tensor]:
        """Pictures (B, C, H, W), and labels (B,), or (B, classes) where they are mixed."""
        inputs = self.augment(batch.images, batch.indices) if self.augment is not None else batch.inputs
        return self.mix(self._placed(inputs), onto(self.device, batch.labels))

    def counted(self, targets: Tensor) -> int:
        return len(targets)

    def loss(self, outputs: Outputs, targets: Tensor, inputs: Any) -> Tensor:
        return self.objective(outputs, targets, inputs)

    def right(self, outputs: Outputs, targets: Tensor) -> Tensor:
        return (prediction(outputs) == answers(targets)).sum()


class HeadsLesson(ClassLesson):
    """Heads that read the blocks of a frozen model; outputs are `refinement.Readings`."""

    def loss(self, outputs: Any, targets: Tensor, inputs: Any) -> Tensor:
        chosen = self.options.refine_loss
        kind = PUBLISHED[self.options.refine_kind] if chosen == "published" else chosen
        return refinement_loss(outputs, targets, kind)

    def right(self, outputs: Any, targets: Tensor) -> Tensor:
        """Per head: their mean."""
        return (outputs[2].argmax(-1) == targets[:, None]).float().mean(1).sum()

    def tally(self, model: Model, batch: Batch) -> list[float]:
        return tally_heads(Learner(model, self.options), self.task, batch)
