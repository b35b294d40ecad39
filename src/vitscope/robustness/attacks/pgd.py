"""Projected gradient descent, and the loop that FGSM and sparse L1 descent share with it.

    x <- project(x + step * direction(d loss / d x)),    loss: that of the task, the cross-entropy of the label

Madry, Makelov, Schmidt, Tsipras and Vladu, "Towards deep learning models resistant to adversarial attacks", ICLR 2018;
momentum: Dong et al., "Boosting adversarial attacks with momentum", CVPR 2018. One step costs one forward and one
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitscope.robustness.attacks.registry import Attack, Victims, register_attack, repeated
from vitscope.robustness.norms import TINY, steepest
from vitscope.robustness.target import Target

Direction = Callable[[Tensor, Tensor], Tensor]  # gradient, images -> a direction of size 1, (B, C, H, W)
Project = Callable[[Tensor, Tensor, float], Tensor]  # images, clean images, epsilon -> images that are allowed


def ascend(
    target: Target,
    victims: Victims,
    eps: float,
    *,
    steps: int,
    step: float,
    start: Tensor | None = None,
    momentum: float = 0.0,
    direction: Direction | None = None,
    project: Project | None = None,
    stop: bool = False,
) -> Tensor:
    """`steps` steps of size `step` (in the norm) uphill from `start`, each projected: (B, C, H, W).

    stop: an image that fools the model is left as it is. The forward pass of the next step shows it, at no cost.
    """
    threat = victims.threat
    project = project or threat.project
    x = victims.images if start is None else start
    velocity = torch.zeros_like(x) if momentum else None
    found, where = x.clone(), torch.arange(len(x), device=x.device)  # the images that x holds
    for _ in range(steps):
        gradient, logits = target.gradient(x, victims.labels)
        if stop and (fooled := target.task.fooled(logits, victims.labels)).any():
            found[where[fooled]] = x[fooled]
            go_on = ~fooled
            x, gradient, where, victims = x[go_on], gradient[go_on], where[go_on], victims.rows(go_on)
            velocity = velocity if velocity is None else velocity[go_on]
            if not len(where):
                return found
        if velocity is not None:  # gradients of different steps count alike
            mean = gradient.abs().mean((1, 2, 3), keepdim=True).clamp_min(TINY)
            gradient = velocity = momentum * velocity + gradient / mean
        move = steepest(gradient, threat.norm) if direction is None else direction(gradient, x)
        x = project(x + step * move, victims.images, eps)
    found[where] = x
    return found


@register_attack("pgd")
@dataclass(frozen=True)
class PGD(Attack):
    """Many small steps from a random start."""

    norms = ("linf", "l2")
    steps: int = 20  # gradient steps; each costs a forward and a backward pass
    step: float | None = None  # size of a step in units of epsilon; none: 2.5 / steps, which can cross the ball
    restarts: int = 1  # attempts from other random starts, for images that are not fooled yet
    momentum: float = 0.0  # of the gradients; 1.0 is usual where it is used
    random_start: bool = True  # else from the image itself, as in the basic iterative method
    stop: bool = False  # leave an image alone once it fools the model: faster and, if anything, stronger
    least: ClassVar = {"steps": 1, "restarts": 1, "momentum": 0}
    above = ("step",)

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        step = (2.5 / self.steps if self.step is None else self.step) * eps

        def attempt(rows: Victims, number: int) -> Tensor:
            start = rows.random_start(eps, "pgd", number) if self.random_start or number else None
            return ascend(
                target, rows, eps, steps=self.steps, step=step, start=start, momentum=self.momentum, stop=self.stop
            )

        return repeated(self.restarts, target, victims, attempt)
