"""Noise: no attack, but what any attack has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vitscope.robustness.attacks.registry import Attack, Victims, register_attack, repeated
from vitscope.robustness.target import Target


@register_attack("noise")
@dataclass(frozen=True)
class Noise(Attack):
    """Uniform in the ball."""

    norms = ("linf", "l2", "l1")
    draws: int = 1  # the first of so many that fools counts
    least: ClassVar = {"draws": 1}

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        return repeated(self.draws, target, victims, lambda rows, number: rows.random_start(eps, "noise", number))
