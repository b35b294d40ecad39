"""SPSA: gradients estimated from the model's answers alone, for models whose own gradients mislead.

Uesato, O'Donoghue, van den Oord and Kohli, "Adversarial risk and the dangers of evaluating against weak attacks", ICML
2018: with v of random signs, (f(x + d v) - f(x - d v)) / 2d * v is on average the gradient of f, the margin by which a
wrong class leads; Adam follows it. A step costs 2 x `samples` forward passes.

`variant=code` is what the published evaluation of RPC-Attention ran (CleverHans, whose loss adds the image to a point
that already holds it): every estimate is made at twice the clean image, wherever the attack has got to. So Adam follows
the gradient of another picture, and of the random start it keeps what the steps leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitscope.robustness.attacks.registry import Attack, Victims, check_variant, register_attack
from vitscope.robustness.target import Target
from vitscope.tasks.classification import margin

BETAS, SMALL = (0.9, 0.999), 1e-8  # Adam's usual ones


def estimate_gradient(
    target: Target, images: Tensor, labels: Tensor, generators: list[torch.Generator], samples: int, delta: float
) -> Tensor:
    """The mean of `samples` two-sided estimates of d margin / d images at `images`: (B, C, H, W)."""
    total = torch.zeros_like(images)
    with torch.no_grad():
        for _ in range(samples):
            signs = torch.stack([torch.randint(0, 2, images.shape[1:], generator=g) for g in generators])
            v = signs.to(images).mul_(2).sub_(1)
            rise = margin(target(images + delta * v), labels) - margin(target(images - delta * v), labels)  # (B,)
            total += rise[:, None, None, None] * v
    return total / (2 * delta * samples)


@register_attack("spsa")
@dataclass(frozen=True)
class SPSA(Attack):
    """Gradient-free: 2 x steps x samples forward passes per image."""

    norms = ("linf", "l2")
    steps: int = 20  # of Adam
    samples: int = 32  # pairs of queries per step; more give a steadier direction
    delta: float = 0.01  # how far the queries are from the image
    rate: float = 0.01  # Adam's learning rate, in pixels: about the change of every pixel in one step
    random_start: bool = False  # a uniformly drawn point of the ball instead of the image itself
    variant: str = "exact"  # 'code': gradients at twice the clean image, as the published evaluation estimated them
    least: ClassVar = {"steps": 1, "samples": 1}
    above = ("delta", "rate")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_variant(self)

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        generators = victims.generators("spsa")
        x, clean = victims.images, victims.images
        if self.random_start:
            x = victims.random_start(eps, "spsa", "start")
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        for t in range(1, self.steps + 1):
            where = 2 * clean if self.variant == "code" else x
            gradient = estimate_gradient(target, where, victims.labels, generators, self.samples, self.delta)
            first = BETAS[0] * first + (1 - BETAS[0]) * gradient
            second = BETAS[1] * second + (1 - BETAS[1]) * gradient.square()
            move = (first / (1 - BETAS[0] ** t)) / ((second / (1 - BETAS[1] ** t)).sqrt() + SMALL)
            x = victims.threat.project(x + self.rate * move, clean, eps)
        return x
