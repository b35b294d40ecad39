"""What an attack is, and the attacks by name: `@register_attack`, `list_attacks`, `create_attack`."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from vitscope.data.randomness import derive_seed
from vitscope.errors import VitscopeError
from vitscope.lazy import renamed
from vitscope.registry import ATTACKS
from vitscope.robustness.norms import Norm, random_in_ball
from vitscope.robustness.target import Target
from vitscope.robustness.threat import Threat

VARIANTS = ("exact", "code")


@dataclass(frozen=True)
class Victims:
    """Images to be attacked, all of them still right."""

    images: Tensor  # (B, C, H, W), clean, in the threat's space
    labels: Tensor  # (B,): what the attack leads away from
    indices: Tensor  # (B,): numbers of the images in the data, from which their random draws follow
    threat: Threat
    seed: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, where: Tensor) -> Victims:
        """Some of the images, by mask or numbers."""
        return Victims(self.images[where], self.labels[where], self.indices[where.cpu()], self.threat, self.seed)

    def generators(self, *purpose: str | int) -> list[torch.Generator]:
        """One generator per image, seeded by (seed, purpose, image): the same in any batch and in any process."""
        return [
            torch.Generator().manual_seed(derive_seed("attack", self.seed, *purpose, index))
            for index in self.indices.tolist()
        ]

    def random_start(self, eps: float, *purpose: str | int, project: Callable[..., Tensor] | None = None) -> Tensor:
        """A uniformly drawn point of the ball around each image, clipped to a picture."""
        delta = random_in_ball(self.images, self.threat.norm, eps, self.generators(*purpose))
        return (project or self.threat.project)(self.images + delta, self.images, eps)


__getattr__ = renamed(__name__, {"Task": "Victims"})  # a task is what a model is asked for now


@dataclass(frozen=True)
class Attack:
    """Subclass as a frozen dataclass whose fields are the options, and implement `perturb`."""

    name: ClassVar[str] = ""
    norms: ClassVar[tuple[Norm, ...]] = ("linf",)  # balls it knows how to stay in
    minimal: ClassVar[bool] = False  # looks for the smallest change: run once, its images serve every epsilon
    needs: ClassVar[str] = ""  # a package beyond the core, from the extra `attacks`
    published: ClassVar[bool] = True  # can work without bounds (`--protocol published`)
    least: ClassVar[Mapping[str, float]] = {}  # the smallest values of options
    above: ClassVar[tuple[str, ...]] = ()  # options that are above 0; None stands for a default

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in (*self.least, *self.above)}
        for name, bound in self.least.items():
            if not bound <= values[name] < math.inf:  # NaN is in no range
                raise VitscopeError(f"{self.name}: {name} must be at least {bound} and finite, not {values[name]}.")
        for name in self.above:
            if values[name] is not None and not 0 < values[name] < math.inf:
                raise VitscopeError(f"{self.name}: {name} must be above 0 and finite, not {values[name]}.")

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        """Images (B, C, H, W) within `eps` of the victims'; the caller verifies them. No global randomness."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check(self, threat: Threat) -> None:
        """Raise where this attack cannot serve the threat."""
        if threat.norm not in self.norms:
            raise VitscopeError(
                f"Attack {self.name!r} bounds {' or '.join(self.norms)}, not {threat.norm}: run it by itself with "
                f"--norm {self.norms[0]} and epsilons of that norm."
            )
        if threat.bounds is None and not self.published:
            raise VitscopeError(
                f"Attack {self.name!r} needs bounds, and the published protocol has none: leave it out there."
            )
        if self.needs:
            import_extra(self.needs, self.name)

    def check_pixels(self) -> None:
        """Raise where this attack cannot lead away from a class for every pixel."""
        if self.minimal or self.needs:
            raise VitscopeError(
                f"Attack {self.name!r} looks for another class of a whole image, and here every pixel has one: choose "
                "among noise, fgsm, pgd, spsa and sparse-l1."
            )

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in self.options().items())})"


A = TypeVar("A", bound=type[Attack])


def register_attack(name: str) -> Callable[[A], A]:
    """Class decorator: make an attack known under `name`, in `attack`, on the command line and in runs."""
    return ATTACKS.named(name)


list_attacks = ATTACKS.names


def create_attack(name: str, **options: Any) -> Attack:
    """An attack by its name, or by `package.module:Class` for one outside this package."""
    return ATTACKS.create(name, options)


def import_extra(package: str, attack: str) -> Any:
    """A library behind an attack, or how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise VitscopeError(
            f"Attack {attack!r} needs {package}, which is not installed: pip install 'vitscope[attacks]'."
        ) from error


def check_variant(attack: Attack) -> None:
    """`variant` of an attack: as it should be, or as the published evaluation of RPC-Attention computes it."""
    if (variant := attack.options()["variant"]) not in VARIANTS:
        raise VitscopeError(f"{attack.name}: variant must be {' or '.join(VARIANTS)}, not {variant!r}.")


def repeated(attempts: int, target: Target, victims: Victims, attempt: Callable[[Victims, int], Tensor]) -> Tensor:
    """Attempt 0 on all images, each further one on those that no attempt has fooled yet: (B, C, H, W)."""
    found = attempt(victims, 0).clone()
    if attempts == 1:
        return found
    fooled = target.fooled(found, victims.labels)
    for number in range(1, attempts):
        where = (~fooled).nonzero().flatten()
        if not len(where):
            break
        found[where] = attempt(victims.rows(where), number)
        fooled[where] = target.fooled(found[where], victims.labels[where])
    return found
