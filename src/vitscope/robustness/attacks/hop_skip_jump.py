"""HopSkipJump, from the library `foolbox` (extra `attacks`): answers alone, no gradients and no logits.

Chen, Jordan and Wainwright, "HopSkipJumpAttack: a query-efficient decision-based attack", IEEE S&P 2020: from a picture
that is already called something else, walk along the border between the two answers towards the image. The direction
of a step is estimated from the answers to random neighbours. It is run once; for each epsilon the perturbation found is
cut to fit the ball.

The library is handed one image at a time: it keeps all random neighbours of a batch in memory, and divides its steps by
a length taken over the whole batch. So draws belong to the image here as in our own attacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitscope.data.randomness import derive_seed, preserved_globals
from vitscope.robustness.attacks.registry import Attack, Victims, import_extra, register_attack
from vitscope.robustness.target import Target

STARTS = 20  # noise pictures that are tried before a picture of another class is taken


@register_attack("hopskipjump")
@dataclass(frozen=True)
class HopSkipJump(Attack):
    """Decision-based: about queries x steps^1.5 x 2/3 forward passes per image."""

    norms = ("l2", "linf")
    minimal = True
    needs = "foolbox"
    published = False
    steps: int = 64  # along the border
    queries: int = 100  # random neighbours in the first step; step t asks sqrt(t) times as many
    least: ClassVar = {"steps": 1, "queries": 1}

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        foolbox = import_extra("foolbox", self.name)
        model = foolbox.PyTorchModel(target, bounds=victims.threat.bounds, device=victims.images.device)
        library = foolbox.attacks.HopSkipJumpAttack(
            steps=self.steps, initial_gradient_eval_steps=self.queries, constraint=victims.threat.norm
        )
        found = starts(target, victims)
        for i in (target.fooled(found, victims.labels)).nonzero().flatten().tolist():
            one = victims.images[i : i + 1]
            with preserved_globals(), torch.no_grad():
                torch.manual_seed(derive_seed("attack", victims.seed, self.name, int(victims.indices[i])) % 2**31)
                away = foolbox.criteria.Misclassification(victims.labels[i : i + 1])
                found[i] = library.run(model, one, away, starting_points=found[i : i + 1])[0]
        failed = ~target.fooled(found, victims.labels)
        return torch.where(failed[:, None, None, None], victims.images, found)


def starts(target: Target, victims: Victims) -> Tensor:
    """A picture that fools for each image, of noise or else of another class; the image itself where there is none."""
    found, images = victims.images.clone(), victims.images
    left = ~target.fooled(images, victims.labels)
    generators = victims.generators("hopskipjump")
    for _ in range(STARTS):
        if not left.any():
            break
        noise = torch.stack([torch.rand(images.shape[1:], generator=g) for g in generators]).to(images)
        won = left & (target.fooled(noise, victims.labels))
        found[won] = noise[won]
        left = left & ~won
    for i in left.nonzero().flatten().tolist():
        others = (victims.labels != victims.labels[i]).nonzero().flatten()
        if len(others):
            found[i] = images[others[0]]
    return found
