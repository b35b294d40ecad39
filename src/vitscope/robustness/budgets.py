"""One attack on one batch at every budget: who is fooled, by which epsilon, and by which picture."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitscope.robustness.attacks import Attack, Victims
from vitscope.robustness.norms import sizes
from vitscope.robustness.target import Target
from vitscope.tasks.classification import true_rank


@dataclass(frozen=True)
class Sweep:
    """What an attack did to B images at E epsilons."""

    predictions: Tensor  # (E, B) int64: answers; where an image was not attacked, the answer to its last version
    attacked: Tensor  # (E, B) bool: was it attacked at this epsilon?
    right: Tensor  # (E, B) bool: is the answer right?
    top5: Tensor  # (E, B) bool: is the true class among the first five? False where an image was not attacked
    size: Tensor  # (E, B) float64: of the perturbation, in the threat's norm; 0 where it was not attacked
    least: Tensor  # (B, C, H, W): the picture at the smallest epsilon that fooled, else at the largest tried
    watched: Tensor | None  # (B, C, H, W): the pictures at the epsilon that was asked for

    @property
    def surviving(self) -> Tensor:
        """(E, B) bool: right at this and every smaller epsilon."""
        return self.right.int().cummin(0).values.bool()

    def smallest(self) -> Tensor:
        """(B,): number of the smallest epsilon that fooled; E: none did."""
        return self.surviving.sum(0)


def sweep(
    target: Target,
    victims: Victims,
    attack: Attack,
    truth: Tensor,
    clean: Tensor,
    *,
    five: Tensor | None = None,
    cumulative: bool = False,
    watch: int | None = None,
) -> Sweep:
    """Attack a batch at every epsilon of its threat, ascending. `truth`, `clean`: true classes and clean answers (B,).

    Images that are wrong without an attack stay so and are not attacked, unless the threat attacks answers instead of
    labels. five: who has the true class among the first five without an attack (B,); None: who is right. cumulative:
    nor are images attacked that a smaller epsilon has fooled. watch: the epsilon whose pictures are kept.
    """
    threat = victims.threat
    count, n = len(threat.epsilons), len(victims)
    answers = clean.expand(count, n).clone()
    attacked, top5 = torch.zeros(count, n, dtype=torch.bool), torch.zeros(count, n, dtype=torch.bool)
    size = torch.zeros(count, n, dtype=torch.float64)
    open_ = clean == truth if threat.labels == "true" else torch.ones_like(clean, dtype=torch.bool)
    unfooled = clean == truth
    five = unfooled if five is None else five
    current, least = victims.images.clone(), victims.images.clone()
    watched = None
    nearest: Tensor | None = None  # of an attack that looks for the smallest change
    last = clean
    for e, eps in enumerate(threat.epsilons):
        where = (open_ & unfooled if cumulative else open_).nonzero().flatten()
        if len(where):
            rows = victims.rows(where.to(victims.images.device))
            if attack.minimal:
                if nearest is None:  # epsilons ascend and images only ever drop out: the first has all that follow
                    nearest = victims.images.clone()
                    nearest[where] = attack.perturb(target, rows, float("inf"))
                    threat.verify(nearest, victims.images, float("inf"), attack.name)
                found = threat.project(nearest[where], rows.images, eps.value)
            else:
                found = attack.perturb(target, rows, eps.value)
            threat.verify(found, rows.images, eps.value, attack.name)
            answers[e] = last if cumulative else clean
            asked = (found != rows.images).flatten(1).any(1)  # a picture that was not changed keeps its answer
            top5[e, where] = five[where]
            if asked.any():
                logits, who = target.answer(found[asked]).cpu(), where[asked.cpu()]
                answers[e, who] = logits.argmax(1)
                top5[e, who] = true_rank(logits, truth[who]) <= 5
            attacked[e, where] = True
            size[e, where] = sizes(found - rows.images, threat.norm).cpu()
            current[where] = found
            fresh = unfooled[where]
            least[where[fresh]] = found[fresh.to(found.device)]
        elif cumulative:
            answers[e] = last
        unfooled = unfooled & (answers[e] == truth)
        last = answers[e]
        if e == watch:
            watched = current.clone()
    return Sweep(answers, attacked, answers == truth, top5, size, least, watched)
