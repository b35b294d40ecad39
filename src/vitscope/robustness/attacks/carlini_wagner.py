"""Carlini and Wagner's L2 attack, from the library `foolbox` (extra `attacks`).

Carlini and Wagner, "Towards evaluating the robustness of neural networks", IEEE S&P 2017: looks for the *smallest*
perturbation that fools, by Adam in tanh space and a binary search over the weight of being fooled. It is run once; for
each epsilon the perturbation found is shortened to fit the ball, where it is longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitscope.data.randomness import preserved_globals
from vitscope.robustness.attacks.registry import Attack, Victims, import_extra, register_attack
from vitscope.robustness.target import Target


@register_attack("cw")
@dataclass(frozen=True)
class CarliniWagner(Attack):
    """searches x steps forward and backward passes per image."""

    norms = ("l2",)
    minimal = True
    needs = "foolbox"
    published = False
    steps: int = 200  # of Adam in each search
    searches: int = 6  # steps of the binary search
    rate: float = 0.01  # Adam's learning rate in tanh space
    confidence: float = 0.0  # by how much a wrong class must lead
    least: ClassVar = {"steps": 1, "searches": 1, "confidence": 0}
    above = ("rate",)

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        foolbox = import_extra("foolbox", self.name)
        model = foolbox.PyTorchModel(target, bounds=victims.threat.bounds, device=victims.images.device)
        library = foolbox.attacks.L2CarliniWagnerAttack(
            binary_search_steps=self.searches, steps=self.steps, stepsize=self.rate, confidence=self.confidence
        )
        with preserved_globals(), torch.enable_grad():
            found = library.run(model, victims.images, foolbox.criteria.Misclassification(victims.labels)).detach()
        failed = ~target.fooled(found, victims.labels)  # the library hands back black pictures for these
        return torch.where(failed[:, None, None, None], victims.images, found)
