"""`attack`, what `vitscope attack` does; `perturb`, one attack on pictures in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitscope.errors import DataError, VitscopeError
from vitscope.robustness.attack_study import Attacks, AttackStudy, make_attacks
from vitscope.robustness.attacks import Attack, Task
from vitscope.robustness.target import Target, attacking, normalised_where
from vitscope.robustness.threat import make_threat

if TYPE_CHECKING:
    from vitscope.data import ImageData
    from vitscope.models import Model
    from vitscope.runs import Run

BATCH = 32  # images per pass: a backward pass keeps activations, about 15 MB per image of ViT-Tiny


def attack(
    model: Model | str | Path | Sequence[Any],
    data: ImageData | str | Path,
    attacks: Attacks = ("fgsm", "pgd"),
    eps: str | float | Sequence[str | float] = ("1/255..6/255",),
    out: str | Path | None = None,
    *,
    norm: str = "linf",
    steps: int | None = None,
    cumulative: bool = False,
    protocol: str = "pixels",
    normalise: str = "auto",
    lens: bool | Sequence[str] = False,
    lens_eps: str | float | None = None,
    split: str | None = None,
    images: int | None = None,
    every: int = 1,
    weights: str | Path | None = None,
    seed: int = 0,
    strict: bool = False,
    device: str = "cpu",
    batch_size: int = BATCH,
    **how: Any,
) -> Run | list[Run]:
    """Attack one or more models on the same pictures: accuracy against budget, per image who fooled it, and a report.

    attacks: names, {name: options} or Attack objects. eps: budgets of pixels in [0, 1], e.g. ["1/255", "2/255"] or
    "1/255..6/255". The other options are those of `vitscope.robustness.attack_study.AttackStudy`, and of `analyze`
    (report, workers, gallery, save_every, overwrite, progress, command). Called again after a kill it goes on.
    """
    from vitscope.analyses.engine import analyze, open_data
    from vitscope.models import Model, open_model

    study = AttackStudy(attacks, eps, norm, steps, cumulative, protocol, normalise, lens, lens_eps)
    data = open_data(data, split, images, every, seed, strict)
    check_labels(data)

    def ready(item: Any) -> Model:
        opened = item if isinstance(item, Model) else open_model(item, weights, device=device)
        return normalised_where(opened, normalise)[0]

    several = isinstance(model, Sequence) and not isinstance(model, str)
    models: Any = [ready(item) for item in model] if several else ready(model)  # type: ignore[union-attr]
    return analyze(models, data, [study], out, seed=seed, batch_size=batch_size, **how)


def check_labels(data: ImageData) -> None:
    """An attack leads away from the true class: without labels there is nothing to lead away from."""
    missing = sum(label < 0 for label in data.labels)
    if 0 < missing < len(data):
        data.warnings.append(f"{missing:,} of {len(data):,} images have no label: they are not attacked.")
    if missing == len(data):
        raise DataError(
            f"None of the {len(data):,} images of {data.name} has a label, and an attack leads away from the true "
            "class. Put the images into class folders, as in DIR/val/CLASS/*.jpg."
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
    task = Task(images.to(ready.device, torch.float32), labels.to(ready.device).long(), numbers, threat, seed)
    with attacking(ready):
        found = chosen.perturb(Target(ready, threat), task, threat.epsilons[0].value)
        if chosen.minimal:
            found = threat.project(found, task.images, threat.epsilons[0].value)
    threat.verify(found, task.images, threat.epsilons[0].value, chosen.name)
    return found.detach()
