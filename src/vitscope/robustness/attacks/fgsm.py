"""The fast gradient sign method: one step to the edge of the ball.

Goodfellow, Shlens and Szegedy, "Explaining and harnessing adversarial examples", ICLR 2015. In L2 the step goes along
the gradient itself (fast gradient method).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitscope.robustness.attacks.pgd import ascend
from vitscope.robustness.attacks.registry import Attack, Victims, register_attack
from vitscope.robustness.target import Target


@register_attack("fgsm")
@dataclass(frozen=True)
class FGSM(Attack):
    """One forward and one backward pass."""

    norms = ("linf", "l2")

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        return ascend(target, victims, eps, steps=1, step=eps)
