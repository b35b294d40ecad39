"""What is read off each condition: which logits compete, which images count, and one outcome per image.

| reading | images | logits |
|---|---|---|
| `all` | all of the condition | all classes |
| `own` | all of the condition | those of the set's own classes (ImageNet-A, -R, -O) |
| `all`, `own` of `clean` beside a set with own classes | clean images of those classes | all, own |

The last two are what a set of 200 classes has to be compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitscope.robustness.condition import CLEAN, Condition
from vitscope.tasks.classification import true_rank

COUNTED, TOP1, TOP5 = 1, 2, 4  # bits of an outcome


@dataclass(frozen=True)
class Reading:
    """One way of judging one condition. Its images occupy `start` to `start + n` of the outcomes."""

    condition: int  # its number
    beside: str = ""  # a clean reading for this set: only images of its classes count
    masked: bool = False  # only the logits of `classes` compete
    classes: tuple[int, ...] = ()
    start: int = 0
    n: int = 0


def plan_readings(conditions: Sequence[Condition]) -> list[Reading]:
    """All readings of all conditions, in the order of the table."""
    wanted: list[tuple[int, str, bool, tuple[int, ...]]] = []
    narrow = {c.set: c.classes for c in conditions if c.classes}
    for number, condition in enumerate(conditions):
        wanted.append((number, "", False, ()))
        if condition.set == CLEAN:
            wanted += [(number, name, masked, own) for name, own in narrow.items() for masked in (False, True)]
        elif condition.classes:
            wanted.append((number, "", True, condition.classes))
    readings, start = [], 0
    for number, beside, masked, classes in wanted:
        n = len(conditions[number].data)
        readings.append(Reading(number, beside, masked, classes, start, n))
        start += n
    return readings


def judge(reading: Reading, logits: Tensor, labels: Tensor, labelled: bool) -> tuple[Tensor, Tensor]:
    """Outcome (B,) uint8 and confidence (B,) float64 of a batch: (B, C) float64 logits, (B,) labels.

    An image counts if its label is known and among the classes of the reading; without labels (ImageNet-O) all count.
    """
    if reading.classes:
        own = torch.tensor(reading.classes)
        place = torch.full((logits.shape[1],), -1)
        place[own] = torch.arange(len(own))
        among = torch.where(labels >= 0, place[labels.clamp_min(0)], -1)
        labels, logits = (among, logits[:, own]) if reading.masked else (torch.where(among >= 0, labels, -1), logits)
    confidence = (logits.amax(1) - logits.logsumexp(1)).exp()
    known = labels >= 0
    rank = true_rank(logits, labels.clamp_min(0))
    outcome = COUNTED * known + TOP1 * (known & (rank == 1)) + TOP5 * (known & (rank <= 5))
    if not labelled:
        outcome = torch.full_like(labels, COUNTED)
    return outcome.to(torch.uint8), confidence
