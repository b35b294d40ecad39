"""Sparse L1 descent: few pixels, changed a lot.

Tramèr and Boneh, "Adversarial training and robustness for multiple perturbations", NeurIPS 2019: each step moves the
pixels of largest gradient that can still move, all by the same amount, and projects on the L1 ball.

`variant=code` is what the published evaluation of RPC-Attention ran (CleverHans): a perturbation outside of the ball is
divided by its size instead, which weakens all of its pixels and drops none; pixels at the edge are not passed over; and
a step moves all entries from the quantile `sparsity` on, that one included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitscope.errors import VitscopeError
from vitscope.robustness.attacks.pgd import ascend
from vitscope.robustness.attacks.registry import Attack, Victims, check_variant, register_attack, repeated
from vitscope.robustness.norms import TINY, sizes
from vitscope.robustness.target import Target


def sparse_direction(gradient: Tensor, images: Tensor, sparsity: float, bounds: tuple[float, float] | None) -> Tensor:
    """Signs of the largest 1 - sparsity of the gradient's entries, divided by their number: L1 size 1."""
    flat = gradient.flatten(1)
    if bounds is not None:  # a pixel at the edge cannot go further
        x = images.flatten(1)
        flat = flat.masked_fill(((x <= bounds[0]) & (flat < 0)) | ((x >= bounds[1]) & (flat > 0)), 0)
    count = max(1, round((1 - sparsity) * flat.shape[1]))
    top = flat.abs().topk(count, dim=1).indices
    chosen = torch.zeros_like(flat).scatter_(1, top, flat.gather(1, top).sign())
    return (chosen / chosen.abs().sum(1, keepdim=True).clamp_min(1)).view_as(gradient)


def published_direction(gradient: Tensor, sparsity: float) -> Tensor:
    """Signs of the entries not below the k-th smallest of n, k = floor(sparsity n), divided by their number."""
    flat = gradient.flatten(1)
    quantile = flat.abs().kthvalue(max(1, int(sparsity * flat.shape[1])), dim=1, keepdim=True).values
    chosen = flat.abs() >= quantile
    return (flat.sign() * chosen / chosen.sum(1, keepdim=True)).view_as(gradient)


def rescale(images: Tensor, clean: Tensor, eps: float, bounds: tuple[float, float] | None) -> Tensor:
    """Into the bounds, then towards the clean image until the L1 ball is reached, and into the bounds again."""
    if bounds is not None:
        images = images.clamp(*bounds)
    delta = images - clean
    factor = (eps / sizes(delta, "l1").clamp_min(TINY)).clamp_max(1).to(delta)
    inside = clean + delta * factor[:, None, None, None]
    return inside if bounds is None else inside.clamp(*bounds)


@register_attack("sparse-l1")
@dataclass(frozen=True)
class SparseL1(Attack):
    """L1 descent along the largest entries of the gradient."""

    norms = ("l1",)
    steps: int = 20  # gradient steps
    step: float | None = None  # size of a step in units of epsilon; none: 2 / steps
    sparsity: float = 0.99  # share of the pixels that a step leaves alone
    restarts: int = 1  # attempts from other random starts, for images that are not fooled yet
    random_start: bool = False  # of the first attempt, too: a random point of an L1 ball is hardly sparse
    variant: str = "exact"  # 'code': rescaled to the ball instead of projected, as in the published evaluation
    least: ClassVar = {"steps": 1, "restarts": 1}
    above = ("step",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.sparsity < 1:
            raise VitscopeError(f"sparse-l1: sparsity is a share from 0 to below 1, not {self.sparsity}.")
        check_variant(self)

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        step = (2 / self.steps if self.step is None else self.step) * eps

        bounds = victims.threat.bounds
        code = self.variant == "code"

        def direction(gradient: Tensor, images: Tensor) -> Tensor:
            if code:
                return published_direction(gradient, self.sparsity)
            return sparse_direction(gradient, images, self.sparsity, bounds)

        def project(images: Tensor, clean: Tensor, eps: float) -> Tensor:
            return rescale(images, clean, eps, bounds) if code else victims.threat.project(images, clean, eps)

        def attempt(rows: Victims, number: int) -> Tensor:
            drawn = self.random_start or number
            start = rows.random_start(eps, "sparse-l1", number, project=project) if drawn else None
            return ascend(
                target, rows, eps, steps=self.steps, step=step, start=start, direction=direction, project=project
            )

        return repeated(self.restarts, target, victims, attempt)
