"""What the attacker may do, as one object: every attack works on it, every returned image is held against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vitscope.errors import DataError, NumericalError, VitscopeError, suggest
from vitscope.models.preprocessing import Preprocess
from vitscope.robustness.epsilons import Epsilon, UnitError, parse_epsilons
from vitscope.robustness.norms import NORMS, Norm, project, sizes
from vitscope.robustness.protocols import PROTOCOLS

SLACK, RELATIVE = 1e-6, 1e-4  # a perturbation read back from float32 images is known to about 6e-8 per pixel


@dataclass(frozen=True)
class Threat:
    """Norm, budgets, bounds and labels. The defaults are the only protocol that other libraries' figures follow."""

    norm: Norm = "linf"  # what epsilon bounds: the largest change of a pixel, its length, or its sum
    epsilons: tuple[Epsilon, ...] = ()  # ascending
    bounds: tuple[float, float] | None = (0.0, 1.0)  # of a picture; None only where a published protocol forgot them
    labels: Literal["true", "predicted"] = "true"  # what is attacked: the true class, or whatever the model said
    space: Literal["pixels", "normalised"] = "pixels"  # where epsilon is measured

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise VitscopeError(
                f"norm={self.norm!r} is not known.{suggest(self.norm, NORMS)} Known: {', '.join(NORMS)}."
            )

    @property
    def protocol(self) -> str:
        """In words, for every row of a table."""
        if self == Threat(self.norm, self.epsilons):
            return "pixels in [0, 1], true labels"
        return "PUBLISHED PROTOCOL: normalised space, not clipped, predicted labels"

    def project(self, images: Tensor, clean: Tensor, eps: float) -> Tensor:
        """The nearest images that are allowed: first into the ball, then into the bounds (which stays in the ball)."""
        inside = clean + project(images - clean, self.norm, eps)
        return inside if self.bounds is None else inside.clamp(*self.bounds)

    def check_reach(self, pixels: int) -> None:
        """Refuse budgets within which every picture of so many pixels lies: they are in another unit."""
        farthest = {"linf": 1.0, "l2": math.sqrt(pixels), "l1": float(pixels)}[self.norm]
        worst = self.epsilons[-1] if self.epsilons else None
        if self.bounds is not None and worst is not None and worst.value >= farthest:
            instead = f"{worst.value:g}/255"
            raise UnitError(
                f"An {self.norm} budget of {worst} allows every picture: two of {pixels:,} pixels in [0, 1] are "
                f"{farthest:.4g} apart at most. In units of 1/255 it is --eps {instead}.",
                instead,
            )

    def check_clean(self, images: Tensor) -> None:
        """Refuse what is not a picture: normalised tensors, 0..255, NaN."""
        if not images.is_floating_point():
            raise DataError(
                f"An attack takes pixels in [0, 1] as floating-point numbers, not {images.dtype}: divide by 255."
            )
        if not images.isfinite().all():
            raise NumericalError("The images to be attacked hold NaN or infinity.")
        if self.bounds is None or not images.numel():
            return
        low, high = float(images.min()), float(images.max())
        if low >= self.bounds[0] and high <= self.bounds[1]:
            return
        if low >= 0 and high > 2 and float(images.frac().abs().max()) == 0:
            what, instead = "whole numbers up to 255", "divide them by 255"
        else:
            what = "already normalised, it seems"
            instead = "give the pixels, images * std + mean: normalising belongs to the attacked model"
        raise DataError(
            f"An attack takes pixels in [0, 1], but these images reach from {low:.3g} to {high:.3g} ({what}). "
            f"Epsilon would mean something else: {instead}."
        )

    def verify(self, images: Tensor, clean: Tensor, eps: float, attack: str) -> None:
        """Every image that an attack returns: of the right shape, finite, in the ball, in the bounds."""
        if not isinstance(images, Tensor):
            raise VitscopeError(
                f"Attack {attack!r} returned {type(images).__name__}, no images: does its perturb end with `return`?"
            )
        if images.shape != clean.shape:
            raise VitscopeError(
                f"Attack {attack!r} returned images of shape {tuple(images.shape)} for {tuple(clean.shape)}."
            )
        bad = ~images.isfinite().flatten(1).all(1)
        if bad.any():
            raise NumericalError(
                f"Attack {attack!r} returned NaN or infinity for {int(bad.sum())} of {len(images)} images. Look for a "
                "gradient that overflows (float16?), or for an option of the attack that is too large."
            )
        if self.bounds is not None and (images.min() < self.bounds[0] or images.max() > self.bounds[1]):
            raise NumericalError(
                f"Attack {attack!r} left the pictures' bounds {self.bounds}: its images reach from "
                f"{float(images.min()):.6g} to {float(images.max()):.6g}."
            )
        size = sizes(images.double() - clean.double(), self.norm)
        worst = float(size.max()) if len(size) else 0.0
        if worst > eps * (1 + RELATIVE) + SLACK:
            raise NumericalError(
                f"Attack {attack!r} left the {self.norm} ball of {eps:.6g}: a perturbation has size {worst:.6g}."
            )


def make_threat(eps: str | float | Sequence[str | float], norm: str = "linf", protocol: str = "pixels") -> Threat:
    """A threat from what users type; `protocol` 'published' is the one exception to attacking pixels."""
    if protocol not in PROTOCOLS:
        raise VitscopeError(f"protocol={protocol!r} is not known: expected {' or '.join(PROTOCOLS)}.")
    changes: dict[str, Any] = {"bounds": None, "labels": "predicted", "space": "normalised"}
    return Threat(norm, parse_epsilons(eps, norm), **(changes if protocol == "published" else {}))  # type: ignore[arg-type]


def pixels_of(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Undo the normalisation: (B, C, H, W) normalised -> pixels in [0, 1], exact for 8-bit pictures.

    Pictures have 256 levels, so rounding takes the error of (x - mean) / std away: normalised again, the result is the
    model's own input bit by bit, and an attack with epsilon 0 is the clean run.
    """
    mean, std = channel_values(preprocess, images)
    pixels = images * std + mean
    exact = (pixels * 255).round()
    return exact / 255 if float((pixels * 255 - exact).abs().max()) < 1e-2 else pixels


def normalised(pixels: Tensor, preprocess: Preprocess) -> Tensor:
    """(x - mean) / std, (B, C, H, W), by the very operations of `data.transforms.normalise`."""
    mean, std = channel_values(preprocess, pixels)
    return pixels.sub(mean).div(std)


def channel_values(preprocess: Preprocess, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation as (C, 1, 1)."""
    mean, std = (torch.tensor(v, dtype=like.dtype, device=like.device) for v in (preprocess.mean, preprocess.std))
    return mean[:, None, None], std[:, None, None]
