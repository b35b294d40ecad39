"""Attack or corrupt the picture in view. The result is a picture like any other, known by its hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitscope.errors import DataError, VitscopeError
from vitscope.explorer.queue import Ticket
from vitscope.explorer.session import Session
from vitscope.explorer.subjects import Step, is_whole, parse_subject, with_step
from vitscope.robustness import perturb
from vitscope.robustness.corruptions import COMMON, SEVERITIES, corrupt, image_seed

ATTACKS = ("fgsm", "pgd")
MOST_STEPS, MOST_EPSILON = 100, 64  # of PGD, and of the slider in 255ths
SEED = 0


def parse_step(given: Mapping[str, Any], model: int) -> Step:
    """{"attack": "pgd", "eps": 8, "steps": 10} or {"corruption": "fog", "severity": 3}."""
    if "corruption" in given:
        name, severity = given["corruption"], given.get("severity", 0)
        if name not in COMMON or not is_whole(severity, SEVERITIES[0], SEVERITIES[-1]):
            raise VitscopeError(f"Expected one of the {len(COMMON)} corruptions with a severity from 1 to 5.")
        return Step(name, severity=severity)
    attack, eps, steps = given.get("attack"), given.get("eps"), given.get("steps", 10)
    if attack not in ATTACKS:
        raise VitscopeError(f"Expected one of the attacks {', '.join(ATTACKS)}.")
    if not is_whole(eps, 0, MOST_EPSILON):
        raise VitscopeError(f"epsilon is a whole number of 255ths from 0 to {MOST_EPSILON}, not {eps!r}.")
    if not is_whole(steps, 1, MOST_STEPS):
        raise VitscopeError(f"steps is a whole number from 1 to {MOST_STEPS}, not {steps!r}.")
    return Step(attack, eps=f"{eps}/255", steps=steps if attack == "pgd" else 0, model=model)


def break_picture(session: Session, given: Mapping[str, Any], ticket: Ticket) -> dict[str, Any]:
    """Do it -> {"hash": name of the new picture, "words": what was done, "label": what an attack led away from}."""
    asked = session.asked({"model": given.get("model", 0), "subject": parse_subject(given.get("subject"))})
    if session.text:
        raise DataError("Attacks and corruptions are for pictures.")
    subject = session.subject(asked.model, asked.subject)
    step = parse_step(given, asked.model)
    assert subject.pixels is not None
    if step.is_attack:
        label = subject.label
        if label < 0:  # no true class is known: away from what the model says
            label = int(session.passed(asked, ticket.check)[1].logits.argmax())
        step, pixels = _attacked(session, asked.model, subject.pixels, label, step, subject.origin.index, ticket)
    else:
        seed = image_seed(SEED, subject.origin.index, step.name, step.severity)
        levels = subject.pixels.mul(255).round().to(torch.uint8)[None]
        pixels = corrupt(levels, step.name, step.severity, [seed])[0].float().div(255)
        step = Step(step.name, severity=step.severity, index=subject.origin.index)
    name = session.store.take_pixels(pixels.cpu(), with_step(subject.origin, step))
    return {"hash": name, "label": step.label}


def _attacked(
    session: Session, model: int, pixels: Tensor, label: int, step: Step, index: int, ticket: Ticket
) -> tuple[Step, Tensor]:
    """Away from `label`."""
    m = session.models[model]
    step = Step(step.name, eps=step.eps, steps=step.steps, label=label, index=index, model=model)
    if step.eps.startswith("0/"):
        return step, pixels
    options: dict[str, Any] = {"indices": torch.tensor([index]), "seed": SEED}
    options |= {"steps": step.steps} if step.steps else {}
    done, total, busy = 0, step.steps or 1, False

    def before_forward(*_: Any) -> None:
        """Each step begins with a forward pass: there it can be stopped, and others are served."""
        nonlocal done, busy
        if busy:  # a look that is served between two steps
            return
        busy = True
        try:
            ticket.between_steps(done, total)
        finally:
            busy = False
        done += 1

    handle = m.module.register_forward_pre_hook(before_forward)
    try:
        found = perturb(m, pixels[None], torch.tensor([label]), step.name, step.eps, **options)
    finally:
        handle.remove()
    return step, found[0]
