"""Names of splits, and a split for sets that have none."""

from __future__ import annotations

from collections.abc import Sequence

from vitscope.data.selection import proportional_order
from vitscope.errors import DataError, suggest

ALL = "all"
HELD_OUT = 0.2  # of a set without a split of its own
_SYNONYMS = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}
_PREFERRED = ("val", "test", "train")  # what is looked at if nobody says


def normal_split(name: str) -> str:
    """'validation' and 'val' are one split; a pattern of file names keeps its capitals."""
    lower = name.strip().lower()
    return _SYNONYMS.get(lower, name.strip() if "." in lower else lower)


def choose_split(asked: str | None, available: Sequence[str], where: str) -> str:
    """Which of the available splits is meant. `available` holds normalised names.

    A set with only one held-out part answers to both of its names: 'val' is 'test' where there is no other.
    """
    if asked is None:
        for name in (*_PREFERRED, *available):
            if name in available:
                return name
        raise DataError(f"{where} has no split at all.")
    wanted = normal_split(asked)
    other = {"val": "test", "test": "val"}.get(wanted, "")
    for name in (wanted, other):
        if name in available:
            return name
    raise DataError(f"{where} has no split {asked!r}.{suggest(wanted, available)} It has: {', '.join(available)}.")


def seeded_split(split: str, names: Sequence[str], labels: Sequence[int], what: str = "image") -> tuple[str, list[int]]:
    """('train' or 'test', its positions): 80 % and 20 % of a set without a split, in proportion to the classes.

    Which picture goes where depends on the pictures' names alone. It does not depend on anybody's seed: whoever
    trains with one seed and measures with another still measures on pictures that were held out.
    """
    name = choose_split(split, ("train", "test"), "A set that vitscope splits itself")
    order = proportional_order(names, labels, "split")
    held_out = max(1, round(HELD_OUT * len(order)))
    if held_out >= len(order):
        raise DataError(f"{len(order)} {what} cannot be split into train and test: ask for split='all'.")
    return name, order[held_out:] if name == "train" else order[:held_out]
