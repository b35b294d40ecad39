"""How sure is a mean over images? The percentile bootstrap: images are drawn again, with replacement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitscope.statistics.intervals import Z95

DRAWS = 4000
RESAMPLING = 3  # a stream of random numbers of its own, beside those that analyses draw from the same seed
MANY = 5000  # images: from here on the bootstrap of a mean is the normal interval to all digits shown


@dataclass(frozen=True)
class Mean:
    """A mean over images and its 95 % interval; without an interval where there is a single image."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 0

    @property
    def sure(self) -> bool:
        return self.low is not None and self.high is not None


def mean_over_images(values: np.ndarray, seed: int = 0) -> Mean:
    """The mean of one number per image (n,) with its bootstrap interval. The same images give the same interval."""
    values = np.asarray(values, dtype=np.float64)
    n, mean = len(values), float(values.mean())
    if n < 2:
        return Mean(mean, n=n)
    if n > MANY:
        half = Z95 * float(values.std(ddof=1)) / n**0.5
        return Mean(mean, mean - half, mean + half, n)
    rng = np.random.default_rng([seed, RESAMPLING])
    means = np.concatenate([values[rng.integers(0, n, (200, n))].mean(1) for _ in range(DRAWS // 200)])
    low, high = np.quantile(means, [0.025, 0.975])
    return Mean(mean, float(low), float(high), n)
