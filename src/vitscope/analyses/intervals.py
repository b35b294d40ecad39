"""How sure is a difference of two shares? The interval of one share is `vitscope.analyses.accumulators.wilson`."""

from __future__ import annotations

import math

from vitscope.analyses.accumulators import Z95, wilson


def newcombe(k1: int, n1: int, k2: int, n2: int) -> tuple[float, float]:
    """95 % interval of k1/n1 - k2/n2 for two independent sets of images, from their Wilson intervals.

    R. G. Newcombe, "Interval estimation for the difference between independent proportions", Statistics in Medicine 17
    (1998), method 10.
    """
    p1, p2 = k1 / n1, k2 / n2
    (low1, high1), (low2, high2) = wilson(k1, n1), wilson(k2, n2)
    low = p1 - p2 - math.hypot(p1 - low1, high2 - p2)
    high = p1 - p2 + math.hypot(high1 - p1, p2 - low2)
    return max(-1.0, low), min(1.0, high)


def paired(gained: int, lost: int, n: int) -> tuple[float, float]:
    """95 % interval of (gained - lost) / n where the same n images are right or wrong twice.

    Agresti & Min, "Simple improved confidence intervals for comparing matched proportions", Statistics in Medicine 24
    (2005): Wald's interval after adding 1/2 to each of the four cells.
    """
    total, b, c = n + 2, gained + 0.5, lost + 0.5
    centre = (b - c) / total
    half = Z95 * math.sqrt(max(b + c - (b - c) ** 2 / total, 0.0)) / total
    return max(-1.0, centre - half), min(1.0, centre + half)
