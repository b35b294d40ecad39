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


def poisson_weights(seed: int, item: int, draws: int) -> np.ndarray:
    """How often an item is in each of `draws` samples: (draws,) int64, Poisson with mean 1.

    A bootstrap that adds up: no sample has to know how many items there are, so that its sums merge and resume as all
    sums do. The same item weighs the same in every pass: differences between passes are paired.
    """
    return np.random.default_rng([seed, RESAMPLING, item]).poisson(1.0, draws)


def percentiles(drawn: np.ndarray) -> tuple[float, float]:
    """The 95 % interval from values of samples (draws,); those in which the value is not defined (NaN) do not count."""
    known = drawn[~np.isnan(drawn)]
    if len(known) < 2:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


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
