"""A teacher: another model's opinion of the images that the student is shown."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.errors import VitscopeError
from vitscope.models import Model, Preprocess
from vitscope.training.options import TrainOptions
from vitscope.training.teachers import Answers, open_answers


def open_teacher(options: TrainOptions, student: Model, device: torch.device) -> Teacher | None:
    """The teacher of the options, checked. A student with a distillation token learns from it with that token."""
    if options.distillation == "none":
        return None
    model = open_answers(options.teacher, options.teacher_weights, device, options.use_ema)
    if model.num_classes != student.num_classes:
        raise VitscopeError(
            f"The teacher {options.teacher} knows {model.num_classes:,} classes, the student {student.num_classes:,}: "
            "a teacher must know the same classes in the same order."
        )
    if model.classes and student.classes and model.classes != student.classes:
        raise VitscopeError(f"The classes of the teacher {options.teacher} are others, or in another order.")
    ours, theirs = student.preprocess.input_size[0], model.preprocess.input_size[0]
    if ours != theirs and ours != 1:
        raise VitscopeError(f"The teacher takes pictures of {theirs} channel(s), the student of {ours}.")
    if student.layout.distillation:
        module: Any = student.module
        module.set_distilled_training(True)
    return Teacher(model, student.preprocess)


class Teacher:
    """`teacher(images)`: its logits (B, classes) for images that are preprocessed for the student, mixed ones too."""

    def __init__(self, model: Answers, student: Preprocess) -> None:
        def column(values: tuple[float, ...]) -> Tensor:
            return torch.tensor(values, device=model.device)[:, None, None]  # (C, 1, 1)

        self.model = model
        self._from = column(student.mean), column(student.std)
        self._to = column(model.preprocess.mean), column(model.preprocess.std)
        self._size = model.preprocess.input_size

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        pixels = images.float() * self._from[1] + self._from[0]  # (B, C, H, W)
        if pixels.shape[-2:] != self._size[1:]:
            pixels = F.interpolate(pixels, size=self._size[1:], mode="bicubic", antialias=True)
        return self.model((pixels.expand(-1, self._size[0], -1, -1) - self._to[0]) / self._to[1])
