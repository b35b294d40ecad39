"""Words that the class-space analyses write into tables, and the shares that panels work out anew without torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsFloat

SOURCES = ("attention", "mlp", "previous")  # bits 1, 2 and 4 of a match code
SHARES = ("attention", "mlp", "previous", "several", "none")
REMOVALS = ("without_context", "without_class")  # perturbations that remove tokens


def exclusive_shares(counts: Iterable[SupportsFloat]) -> dict[str, float]:
    """Counts of the eight match codes (8,) -> percent, summing to 100."""
    values = [float(count) for count in counts]
    total = sum(values)
    c = [value / total * 100 for value in values]
    return dict(zip(SHARES, (c[1], c[2], c[4], c[3] + c[5] + c[6] + c[7], c[0])))
