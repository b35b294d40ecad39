from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.kpca.pairs import pair_differences, relative_pair_differences, sort_by_size

numbers = st.lists(st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6), min_size=2, max_size=12)


def brute(values: list[float], relative: bool, added: float = 0.0) -> tuple[float, float]:
    """All pairs, one by one."""
    found = []
    for a, b in combinations(values, 2):
        top = max(abs(a), abs(b)) + added if relative else 1.0
        found.append(abs(a - b) / top if top else 0.0)
    mean = math.fsum(found) / len(found)
    return mean, math.sqrt(max(0.0, math.fsum(x * x for x in found) / len(found) - mean * mean))


@given(numbers)
@settings(deadline=None, max_examples=150)
def test_mean_absolute_differences_by_sorting_are_those_of_all_pairs(values):
    mean, std = (float(x) for x in pair_differences(torch.tensor(values, dtype=torch.float64)))
    expected = brute(values, relative=False)
    top = max(map(abs, values), default=1.0)
    assert mean == pytest.approx(expected[0], rel=1e-9, abs=1e-12 * top)
    assert std == pytest.approx(expected[1], rel=1e-6, abs=1e-6 * top)


@given(numbers)
@settings(deadline=None, max_examples=150)
def test_mean_relative_differences_by_sorting_are_those_of_all_pairs(values):
    mean, std = (float(x) for x in relative_pair_differences(torch.tensor(values, dtype=torch.float64)))
    expected = brute(values, relative=True)
    assert mean == pytest.approx(expected[0], rel=1e-9, abs=1e-12)
    assert std == pytest.approx(expected[1], rel=1e-6, abs=1e-6)
    assert -1e-12 <= mean <= 2 + 1e-12


@given(numbers, st.sampled_from([1e-9, 0.01, 3.0, 1e9]))
@settings(deadline=None, max_examples=150)
def test_something_may_be_added_to_every_denominator(values, added):
    holes = torch.tensor([[*values, math.nan]], dtype=torch.float64)
    mean, std = (float(x) for x in relative_pair_differences(holes, torch.tensor([added]).double()))
    expected = brute(values, relative=True, added=added)
    assert mean == pytest.approx(expected[0], rel=1e-6, abs=1e-12)
    assert std == pytest.approx(expected[1], rel=1e-5, abs=1e-6)


def test_what_is_infinite_beside_all_numbers_leaves_no_difference():
    found = relative_pair_differences(torch.tensor([[1.0, 2.0, 3.0]]).double(), torch.tensor([math.inf]).double())
    assert [float(x) for x in found] == [0, 0]


def test_entries_that_are_not_finite_are_left_out():
    values = [3.0, -1.0, 7.0, 7.5]
    holes = torch.tensor([*values[:2], math.nan, math.inf, *values[2:], -math.inf], dtype=torch.float64)
    for function in (pair_differences, relative_pair_differences):
        for a, b in zip(function(holes), function(torch.tensor(values, dtype=torch.float64))):
            torch.testing.assert_close(a, b)


def test_nothing_left_gives_zero():
    nothing = torch.full((2, 5), math.nan, dtype=torch.float64)
    for function in (pair_differences, relative_pair_differences):
        for found in function(nothing):
            assert torch.equal(found, torch.zeros(2, dtype=torch.float64))


def test_differences_of_nearly_equal_numbers_keep_their_digits():
    base = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64) * 2.0**-40
    assert float(pair_differences(1000 + base)[0]) == pytest.approx(2.0**-40 * 2, rel=1e-2)


def test_sorting_by_size_keeps_every_number_and_its_sign(heads):
    x = heads(n=31)[0].mT
    by_size = sort_by_size(x)
    assert torch.equal(by_size.abs(), x.abs().sort(-1).values)
    assert torch.equal(by_size.sort(-1).values, x.sort(-1).values)


def test_means_are_taken_row_by_row(heads):
    x = heads(b=1, h=2, n=3, d=9)[0]
    mean = pair_differences(x)[0]
    assert mean.shape == (1, 2, 3)
    assert float(mean[0, 1, 2]) == pytest.approx(brute(x[0, 1, 2].tolist(), False)[0])
