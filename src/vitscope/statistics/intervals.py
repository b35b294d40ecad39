"""How sure is a share, and a difference of two?"""

from __future__ import annotations

import math

from vitscope.errors import NumericalError

Z95 = 1.959963984540054  # the normal quantile behind every 95 % interval


def wilson(successes: float, n: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval for a share: it stays inside [0, 1] and is right at 0 and n successes, too.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    if n <= 0:
        raise NumericalError("A share of no images has no interval.")
    p, z2 = successes / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # at the ends the exact values, which rounding would miss by an ulp
    return (centre - half if successes > 0 else 0.0), (centre + half if successes < n else 1.0)


def share_columns(name: str, count: float, n: float) -> dict[str, float]:
    """NAME, NAME_low, NAME_high of a table: count of n in per cent, with Wilson's interval."""
    low, high = wilson(count, n)
    return {name: 100 * count / n, f"{name}_low": 100 * low, f"{name}_high": 100 * high}


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
