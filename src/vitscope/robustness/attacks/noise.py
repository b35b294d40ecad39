"""Noise: no attack, but what any attack has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitscope.robustness.attacks.registry import Attack, Victims, at_least, register_attack, repeated
from vitscope.robustness.norms import random_in_ball
from vitscope.robustness.target import Target


def noise(victims: Victims, eps: float, draw: int = 0) -> Tensor:
    """A uniformly drawn point of the ball around each image, clipped to a picture."""
    threat = victims.threat
    delta = random_in_ball(victims.images, threat.norm, eps, victims.generators("noise", draw))
    return threat.project(victims.images + delta, victims.images, eps)


@register_attack("noise")
@dataclass(frozen=True)
class Noise(Attack):
    """Uniform in the ball."""

    norms = ("linf", "l2", "l1")
    draws: int = 1  # the first of so many that fools counts

    def __post_init__(self) -> None:
        at_least(self, draws=1)

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        return repeated(self.draws, target, victims, lambda rows, number: noise(rows, eps, number))
