from __future__ import annotations

import numpy as np
import pytest

from vitscope.statistics.bootstrap import mean_over_images


def test_the_interval_covers_the_mean_95_times_in_100():
    rng = np.random.default_rng(0)
    covered = 0
    for i in range(300):
        mean = mean_over_images(rng.exponential(size=60), seed=i)
        covered += mean.low <= 1 <= mean.high
    assert 0.88 < covered / 300 < 0.98  # a little below 95 %: percentile intervals of 60 skewed numbers are


def test_it_agrees_with_the_normal_interval_where_that_is_right():
    values = np.random.default_rng(1).normal(size=1000)
    mean = mean_over_images(values)
    half = 1.96 * values.std(ddof=1) / 1000**0.5
    assert (mean.low, mean.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_many_images_get_the_normal_interval():
    values = np.random.default_rng(2).normal(size=6000)
    mean = mean_over_images(values)
    assert mean.high - mean.low == pytest.approx(2 * 1.96 * values.std(ddof=1) / 6000**0.5, rel=1e-4)


def test_one_image_has_no_interval():
    mean = mean_over_images(np.array([3.0]))
    assert (mean.value, mean.low, mean.high) == (3.0, None, None)


def test_the_same_images_give_the_same_interval():
    values = np.arange(20.0)
    assert mean_over_images(values) == mean_over_images(values)
