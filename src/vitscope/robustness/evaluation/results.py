"""The measured arrays of an evaluation, looked up by what a reader asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitscope.robustness.condition import CLEAN, Condition
from vitscope.robustness.evaluation.readings import COUNTED, TOP1, TOP5, Reading


@dataclass(frozen=True, eq=False)
class Outcomes:
    """One reading: an entry per image that counts."""

    images: np.ndarray  # (n,) its number in the condition
    correct: np.ndarray  # (n,) float64, 0 or 1
    top5: np.ndarray
    confidence: np.ndarray

    @property
    def n(self) -> int:
        return len(self.images)

    @property
    def right(self) -> int:
        return int(self.correct.sum())


@dataclass(frozen=True, eq=False)
class Results:
    """Everything that tables are made from."""

    conditions: Sequence[Condition]
    readings: Sequence[Reading]
    outcome: np.ndarray  # (total,) uint8 bits
    confidence: np.ndarray  # (total,)
    size: tuple[int, ...]  # of the model's input, (height, width)
    seed: int = 0

    def of(self, reading: Reading) -> Outcomes:
        part = slice(reading.start, reading.start + reading.n)
        bits = self.outcome[part]
        images = np.flatnonzero(bits & COUNTED)
        correct, top5 = ((bits[images] & bit > 0).astype(np.float64) for bit in (TOP1, TOP5))
        return Outcomes(images, correct, top5, self.confidence[part][images])

    def clean_for(self, reading: Reading) -> Reading | None:
        """The clean reading that this one is compared with: the same classes, the same competing logits."""
        condition = self.conditions[reading.condition]
        if condition.set == CLEAN:
            return None
        beside = condition.set if condition.classes else ""
        found = (r for r in self.readings if self.conditions[r.condition].set == CLEAN)
        return next((r for r in found if r.beside == beside and r.masked == reading.masked), None)

    def is_pair(self, reading: Reading) -> bool:
        """Are its images the clean images themselves, one by one?"""
        clean = next((c for c in self.conditions if c.set == CLEAN), None)
        return clean is not None and self.conditions[reading.condition].data is clean.data
