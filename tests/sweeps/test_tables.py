from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from vitscope.sweeps.tables import mean_with_interval


def test_the_interval_is_students():
    values = [0.83, 0.86, 0.84, 0.9]
    expected = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert mean_with_interval(values) == pytest.approx((np.mean(values), *expected))


def test_ratios_are_averaged_as_logarithms():
    mean, low, high = mean_with_interval([2.0, 8.0], geometric=True)
    assert mean == pytest.approx(4)
    assert low * high == pytest.approx(16), "symmetric on a log axis"


def test_one_run_has_no_interval():
    mean, low, high = mean_with_interval([3.0])
    assert mean == 3
    assert math.isnan(low)
    assert math.isnan(high)
