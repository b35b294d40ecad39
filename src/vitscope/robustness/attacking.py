"""`attack`, what `vitscope attack` does; `perturb`, one attack on pictures in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitscope.analyses.request import call
from vitscope.data import ImageData
from vitscope.errors import DataError, VitscopeError
from vitscope.models import Model
from vitscope.robustness.attack_options import AttackOptions
from vitscope.robustness.attack_study import Attacks, AttackStudy, make_attacks
from vitscope.robustness.attacks import Attack, Victims
from vitscope.robustness.target import Target, attacking, normalised_where
from vitscope.robustness.threat import make_threat
from vitscope.runs import Run
from vitscope.tasks import task_of


def attack(
    model: Model | str | Path | nn.Module | Sequence[Any] | None = None,
    data: ImageData | str | Path | None = None,
    attacks: Attacks | None = None,
    eps: str | float | Sequence[str | float] | None = None,
    out: str | Path | None = None,
    *,
    options: AttackOptions | None = None,
    command: str | Sequence[str] | None = None,
    **given: Any,
) -> Run | list[Run]:
    """Attack one or more models on the same pictures: accuracy against budget, per image who fooled it, and a report.

    model, data, out, command: as for `analyze`.
    attacks: names, {name: options} or Attack objects. eps: budgets of pixels in [0, 1], e.g. ["1/255", "2/255"] or
    "1/255..6/255". Without them those of the options.
    options, given: `AttackOptions`, whole or as keywords (norm="l2", steps=20, images=100, batch_size=8); keywords win.
    Called again after a kill it goes on.
    """
    if isinstance(given.get("lens_eps"), float):  # as `eps`, which is text on the command line, too
        given["lens_eps"] = str(given["lens_eps"])
    request = AttackOptions.called_with(options, given, out)
    if attacks is not None and request.set:
        raise VitscopeError("`attacks` are given, and `set` as well: write {name: options} for the attacks.")
    asked = {name: value for name, value in (("attacks", attacks), ("eps", eps)) if value is not None}
    return call(request, model, data, [AttackStudy(**{**request.study(), **asked})], command=command)


def check_labels(data: ImageData) -> None:
    """An attack leads away from the true class: without labels there is nothing to lead away from."""
    task = task_of(data)
    if task.attack:
        return
    if not task.one_class:
        raise DataError(
            f"Attacks change pictures, and {data.name} has none of one class each: `vitscope evaluate MODEL --data "
            f"{data.name}` judges a language model."
        )
    missing = sum(label < 0 for label in data.labels)
    if 0 < missing < len(data):
        data.warnings.append(f"{missing:,} of {len(data):,} images have no label: they are not attacked.")
    if missing == len(data):
        raise DataError(
            f"None of the {len(data):,} images of {data.name} has a label, and an attack leads away from the true "
            "class. Put the images into class folders, as in DIR/val/CLASS/*.jpg; label maps for a segmenter: --labels "
            "DIR."
        )


def perturb(
    model: Model,
    images: Tensor,
    labels: Tensor,
    attack: str | Attack = "pgd",
    eps: str | float = "4/255",
    *,
    norm: str = "linf",
    indices: Tensor | None = None,
    normalise: str = "auto",
    seed: int = 0,
    **options: Any,
) -> Tensor:
    """Attacked versions of pictures (B, C, H, W) in [0, 1] with true classes (B,), verified to lie in the ball.

    indices: numbers of the images, from which their random draws follow; by default 0, 1, ... `options` are the
    attack's. Mode, gradients, hooks and random state are afterwards as they were.
    """
    threat = make_threat(eps, norm)
    if len(threat.epsilons) != 1:
        raise VitscopeError("`perturb` takes one epsilon; `attack` takes several.")
    (chosen,) = make_attacks({attack: options} if isinstance(attack, str) else [attack])
    chosen.check(threat)
    if labels is None or len(labels) != len(images) or labels.is_floating_point() or bool((labels < 0).any()):
        raise DataError("An attack needs the true class of every image: a whole number from 0, one per image.")
    if len(labels) and int(labels.max()) >= model.num_classes:
        raise DataError(f"Class {int(labels.max())} is none of the model's {model.num_classes} (0 is the first).")
    ready, _ = normalised_where(model, normalise)
    threat.check_clean(images)
    threat.check_reach(images[:1].numel() or 1)
    numbers = torch.arange(len(images)) if indices is None else indices
    victims = Victims(images.to(ready.device, torch.float32), labels.to(ready.device).long(), numbers, threat, seed)
    with attacking(ready):
        found = chosen.perturb(Target(ready, threat), victims, threat.epsilons[0].value)
        if chosen.minimal:
            found = threat.project(found, victims.images, threat.epsilons[0].value)
    threat.verify(found, victims.images, threat.epsilons[0].value, chosen.name)
    return found.detach()
