"""Balls: how large a perturbation is, the nearest one that is allowed, the steepest way to go; all (B, C, H, W)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Norm = Literal["linf", "l2", "l1"]
NORMS: tuple[Norm, ...] = ("linf", "l2", "l1")
TINY = 1e-12  # a gradient of zero has no direction; dividing by this leaves it zero


def sizes(delta: Tensor, norm: Norm) -> Tensor:
    """(B, ...) -> (B,) float64."""
    flat = delta.flatten(1).double()
    if norm == "linf":
        return flat.abs().amax(1)
    return flat.norm(p=2 if norm == "l2" else 1, dim=1)


def project(delta: Tensor, norm: Norm, eps: float) -> Tensor:
    """The nearest perturbation (in L2) of size <= eps."""
    if norm == "linf":
        return delta.clamp(-eps, eps)
    if norm == "l2":
        return delta * (eps / _l2(delta).clamp_min(TINY)).clamp_max(1)
    return project_l1(delta, eps)


def project_l1(delta: Tensor, eps: float) -> Tensor:
    """The nearest point of the L1 ball: soft thresholding by the threshold that makes the sum eps.

    Duchi, Shalev-Shwartz, Singer and Chandra, "Efficient projections onto the l1-ball", ICML 2008.
    """
    flat = delta.flatten(1)
    if eps == 0:
        return torch.zeros_like(delta)
    ordered = flat.abs().sort(1, descending=True).values.double()  # (B, n)
    excess = ordered.cumsum(1) - eps
    count = torch.arange(1, flat.shape[1] + 1, dtype=torch.float64, device=flat.device)
    kept = (ordered > excess / count).sum(1, keepdim=True).clamp_min(1)  # (B, 1): coordinates that stay nonzero
    threshold = (excess.gather(1, kept - 1) / kept).clamp_min(0).to(flat.dtype)  # inside the ball: none
    return (flat.sign() * (flat.abs() - threshold).clamp_min(0)).view_as(delta)


def steepest(gradient: Tensor, norm: Norm) -> Tensor:
    """The direction of size 1 along which a linear function rises most: sign(g), or g / |g|."""
    if norm == "linf":
        return gradient.sign()
    if norm == "l2":
        return gradient / _l2(gradient).clamp_min(TINY)
    return gradient / gradient.abs().sum((1, 2, 3), keepdim=True).clamp_min(TINY)


def random_in_ball(like: Tensor, norm: Norm, eps: float, generators: list[torch.Generator]) -> Tensor:
    """A uniformly drawn perturbation of size <= eps for each image, image by image from its own generator."""
    return eps * torch.stack([_draw(like.shape[1:], norm, g) for g in generators]).to(like)


def _draw(shape: torch.Size, norm: Norm, generator: torch.Generator) -> Tensor:
    if norm == "linf":
        return torch.rand(shape, generator=generator) * 2 - 1
    n = shape.numel()
    if norm == "l2":  # the first n of n + 2 coordinates of a point on the sphere are uniform in the ball
        normal = torch.randn(n + 2, generator=generator)
        return (normal / normal.norm())[:n].view(shape)
    # n + 1 exponentials divided by their sum are uniform in the simplex; the last is what the ball leaves free
    gaps = torch.empty(n + 1, dtype=torch.float64).exponential_(generator=generator)
    signs = torch.randint(0, 2, (n,), generator=generator) * 2 - 1
    return (signs * (gaps / gaps.sum())[:n]).float().view(shape)


def _l2(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1))
