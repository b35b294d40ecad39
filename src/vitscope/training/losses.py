"""What is minimised: timm's losses, alone or together with a teacher."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.training.distillation import Teacher
from vitscope.training.options import TrainOptions

Outputs = Tensor | tuple[Tensor, Tensor]  # logits (B, classes); a distilled model in training gives those of both heads


class Objective:
    """`objective(outputs, targets, images)`: the loss summed over the images of this process.

    A sum and not a mean, so that the mean over all processes is right also where one has fewer images.
    targets: labels (B,), or (B, classes) where images are mixed.
    """

    def __init__(self, options: TrainOptions, teacher: Teacher | None = None) -> None:
        from timm.loss import AsymmetricLossSingleLabel, BinaryCrossEntropy, SoftTargetCrossEntropy

        self.options, self.teacher = options, teacher
        self._soft = SoftTargetCrossEntropy()
        self._other: Any = {
            # summed over classes: the mean over them would shrink the rate with their number
            "binary": BinaryCrossEntropy(smoothing=options.smoothing, sum_classes=True),
            "asymmetric": AsymmetricLossSingleLabel(eps=options.smoothing),
        }.get(options.loss)

    def __call__(self, outputs: Outputs, targets: Tensor, images: Tensor) -> Tensor:
        logits, second = outputs if isinstance(outputs, tuple) else (outputs, outputs)
        loss = self._of_labels(wide(logits), targets)
        if self.teacher is None:
            return loss
        share, opinion = self.options.distillation_share, self.teacher(images)
        return (1 - share) * loss + share * self._of_teacher(wide(second), opinion)

    def _of_labels(self, logits: Tensor, targets: Tensor) -> Tensor:
        if targets.ndim == 2:
            targets = targets.to(logits.dtype)
        if self._other is not None:
            return self._other(logits, targets) * len(logits)
        if targets.ndim == 2:
            return self._soft(logits, targets) * len(logits)
        return F.cross_entropy(logits, targets, label_smoothing=self.options.smoothing, reduction="none").sum()

    def _of_teacher(self, logits: Tensor, opinion: Tensor) -> Tensor:
        """Touvron et al. 2021, eqs. 2 and 3: soft T^2 KL(teacher/T || student/T), hard the cross-entropy."""
        if self.options.distillation == "hard":
            return F.cross_entropy(logits, opinion.argmax(1), reduction="sum")
        t = self.options.temperature
        student, teacher = F.log_softmax(logits / t, 1), F.log_softmax(opinion.to(logits.dtype) / t, 1)
        return t**2 * F.kl_div(student, teacher, log_target=True, reduction="sum")


def wide(logits: Tensor) -> Tensor:
    """At least float32: losses of half-precision logits would be coarse."""
    return logits if logits.dtype == torch.float64 else logits.float()


def prediction(outputs: Outputs) -> Tensor:
    """The classes that a model answers, (B,): of two heads their mean, as in evaluation."""
    logits = (outputs[0] + outputs[1]) / 2 if isinstance(outputs, tuple) else outputs
    return logits.argmax(1)
