"""The class that a map or a gradient is asked for: an image's label, the model's answer, or one class for all."""

from __future__ import annotations

from collections.abc import Sequence

from vitscope.errors import VitscopeError, suggest

TARGETS = ("label", "prediction")


def find_class(target: int | str, classes: int, *names: Sequence[str] | None, option: str = "target") -> int | None:
    """The number of the class that is asked for; None for 'label' and 'prediction', which each image has of its own.

    A name is found among the first list that has one for each class, in full or as one of its synonyms: 'tabby' for
    'tabby, tabby cat'.
    """
    if target in TARGETS:
        return None
    if isinstance(target, int):
        if 0 <= target < classes:
            return target
        raise VitscopeError(f"{option}={target}: the model has the classes 0 to {classes - 1}.")
    known = next((list(found) for found in names if found and len(found) == classes), [])
    fitting = [i for i, name in enumerate(known) if target in (name, *(word.strip() for word in name.split(",")))]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise VitscopeError(f"{option}={target!r} names {len(fitting)} classes: give one of their numbers, {fitting}.")
    hint = suggest(target, [*TARGETS, *known])
    raise VitscopeError(
        f"{option}={target!r} is no class.{hint} Expected label, prediction, a class's number or its name."
    )
