"""Moments against numpy, and Wilson's interval against the test that it inverts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from vitscope.statistics.intervals import wilson
from vitscope.statistics.moments import mean_std


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50))
def test_mean_and_std_are_those_of_numpy(xs):
    x = torch.tensor(xs, dtype=torch.float64)
    mean, std = mean_std(torch.tensor(len(xs)), x.sum(), x.square().sum())
    assert float(mean) == pytest.approx(np.mean(xs), abs=1e-9)
    assert float(std) == pytest.approx(np.std(xs), abs=1e-4)


@pytest.mark.parametrize(("k", "n"), [(735, 1000), (0, 10), (10, 10), (1, 3)])
def test_wilson_ends_are_the_shares_that_a_score_test_just_accepts(k, n):
    low, high = wilson(k, n)
    p, z = k / n, 1.959963984540054

    def score(p0):
        return (p - p0) ** 2 - z**2 * p0 * (1 - p0) / n

    below = optimize.brentq(score, 1e-12, p - 1e-9) if k else 0.0
    above = optimize.brentq(score, p + 1e-9, 1 - 1e-12) if k < n else 1.0
    assert (low, high) == pytest.approx((below, above), abs=1e-9)
