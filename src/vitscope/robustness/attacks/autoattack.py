"""AutoAttack and two of its parts, from the library `pyautoattack` (extra `attacks`).

Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free attacks", ICML
2020: APGD on the cross-entropy, targeted APGD on the DLR loss (9 classes), targeted FAB (9 classes) and Square (5,000
queries), each on the images that are still right. It is the protocol of RobustBench.

The library seeds and draws from torch's global generator, once for a whole batch: it is seeded here from the first
image of the batch and put back afterwards. So a result depends on the batch size, unlike those of our own attacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from vitscope.data.randomness import derive_seed, preserved_globals
from vitscope.errors import VitscopeError
from vitscope.robustness.attacks.registry import Attack, Victims, import_extra, register_attack
from vitscope.robustness.target import Target

NAMES = {"linf": "Linf", "l2": "L2", "l1": "L1"}
VERSIONS = ("standard", "plus", "rand")
PARTS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
TARGETS = 9  # classes that the targeted parts try


class LibraryAttack(Attack):
    """What the three share."""

    norms = ("linf", "l2", "l1")
    needs = "pyautoattack"
    published = False

    def build(self, target: Target, **common: Any) -> Any:
        """The library's object with `perturb(images, labels)`."""
        raise NotImplementedError

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        if eps == 0:  # its step sizes divide by epsilon
            return victims.images
        seed = derive_seed("attack", victims.seed, self.name, *victims.indices[:1].tolist()) % 2**31
        common = {"eps": eps, "norm": NAMES[victims.threat.norm], "seed": seed, "device": victims.images.device}
        with preserved_globals():
            found = self.build(target, **common).perturb(victims.images, victims.labels)
        # it rounds to float32 once more often than we
        return victims.threat.project(found.detach(), victims.images, eps)


@register_attack("apgd-ce")
@dataclass(frozen=True)
class APGD(LibraryAttack):
    """PGD on the cross-entropy whose step size adapts itself."""

    steps: int = 100  # iterations, each a forward and a backward pass
    restarts: int = 1  # from other random starts
    least: ClassVar = {"steps": 1, "restarts": 1}

    def build(self, target: Target, **common: Any) -> Any:
        library = import_extra("pyautoattack.autopgd_base", self.name)
        return library.APGDAttack(target, n_iter=self.steps, n_restarts=self.restarts, verbose=False, **common)


@register_attack("square")
@dataclass(frozen=True)
class Square(LibraryAttack):
    """Random search with squares: no gradients at all."""

    queries: int = 5000  # forward passes per image, at most
    least: ClassVar = {"queries": 1}

    def build(self, target: Target, **common: Any) -> Any:
        library = import_extra("pyautoattack.square", self.name)
        return library.SquareAttack(target, n_queries=self.queries, p_init=0.8, verbose=False, **common)


@register_attack("autoattack")
@dataclass(frozen=True)
class AutoAttack(LibraryAttack):
    """The standard ensemble of four; some thousand passes per image."""

    version: str = "standard"  # 'standard' is RobustBench's; 'plus' adds untargeted parts, 'rand' is for random models
    parts: Sequence[str] = ()  # instead of a version: some of apgd-ce, apgd-dlr, apgd-t, fab, fab-t, square

    def __post_init__(self) -> None:
        wrong = [word for word in self.parts if word not in PARTS]
        if wrong or self.version not in VERSIONS:
            raise VitscopeError(
                f"autoattack: {(wrong or [self.version])[0]!r} is not known. Versions: {', '.join(VERSIONS)}; parts: "
                f"{', '.join(PARTS)}."
            )
        object.__setattr__(self, "parts", list(self.parts))  # as it comes back from a saved configuration

    def build(self, target: Target, **common: Any) -> Any:
        library = import_extra("pyautoattack.autoattack", self.name)
        classes = target.model[0].num_classes
        targeted = "apgd-t" in self.parts if self.parts else self.version != "rand"
        if classes < 4 and targeted:
            raise VitscopeError(
                f"autoattack: its targeted part (apgd-t) needs four classes, and the model has {classes}. Leave it "
                "out: --set autoattack.parts=[apgd-ce,fab-t,square]."
            )
        if self.parts:
            ensemble = library.AutoAttack(target, version="custom", attacks=self.parts, **common)
            ensemble.apgd.n_restarts = ensemble.fab.n_restarts = 1
        else:
            ensemble = library.AutoAttack(target, version=self.version, **common)
        ensemble.verbose = False
        targets = min(TARGETS, target.model[0].num_classes - 1)
        ensemble.apgd_targeted.n_target_classes = ensemble.fab.n_target_classes = targets
        return _Evaluation(ensemble)


@dataclass(frozen=True)
class _Evaluation:
    """The ensemble as one attack."""

    ensemble: Any

    def perturb(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.ensemble.run_standard_evaluation(images, labels, batch_size=len(images))[0]
