"""Statistics that add up: means and deviations from counts, sums and sums of squares.

Two halves of a run merge by addition, and nothing is lost.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mean_std(n: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation (divisor n) from count, sum and sum of squares, in float64.

    Entries without observations come back as NaN: leave their rows out of the table.
    """
    n = n.to(torch.float64)
    mean = total / n
    return mean, (squares / n - mean.square()).clamp_min(0).sqrt()
