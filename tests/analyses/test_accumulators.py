"""Histograms and moments against numpy, and the promise that halves add up to the whole."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from vitscope.analyses.accumulators import LogBins, histogram_quantile, log_histogram, mean_std
from vitscope.analyses.intervals import wilson
from vitscope.errors import NumericalError, VitscopeError

values = st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(values, st.integers(1, 40))
def test_histogram_counts_what_numpy_counts(xs, per_decade):
    bins = LogBins(1e-3, 1e3, per_decade)
    ours = log_histogram(torch.tensor(xs, dtype=torch.float64), bins)
    edges = np.concatenate([[-1.0], bins.edges().numpy(), [np.inf]])
    theirs = [sum(lo <= x < hi for x in xs) for lo, hi in pairwise(edges)]
    assert ours.tolist() == theirs


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_histograms_of_two_halves_add_up_to_that_of_the_whole(a, b):
    bins = LogBins()
    halves = log_histogram(torch.tensor(a), bins) + log_histogram(torch.tensor(b), bins)
    assert torch.equal(halves, log_histogram(torch.tensor(a + b), bins))


def test_histogram_treats_leading_dimensions_apart():
    bins = LogBins(1e-2, 1e2, 5)
    x = torch.rand(3, 4, 50, generator=torch.Generator().manual_seed(0))
    ours = log_histogram(x, bins)
    assert ours.shape == (3, 4, bins.size)
    assert torch.equal(ours[2, 1], log_histogram(x[2, 1], bins))
    assert torch.equal(ours.sum(-1), torch.full((3, 4), 50))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-3, 999, allow_nan=False), min_size=1, max_size=200), st.floats(0, 1))
def test_quantile_lies_within_one_bin_of_an_exact_one(xs, q):
    bins = LogBins(1e-3, 1e3, 50)
    ours = float(histogram_quantile(log_histogram(torch.tensor(xs, dtype=torch.float64), bins), bins, q))
    lower = np.quantile(xs, q, method="inverted_cdf")
    higher = np.quantile(xs, q, method="higher")
    step = 10 ** (1 / 50) * (1 + 1e-9)
    assert lower / step <= ours <= max(higher, lower) * step


def test_quantiles_outside_the_bins_are_clamped():
    bins = LogBins(1.0, 10.0, 4)
    assert float(histogram_quantile(log_histogram(torch.tensor([0.0, 0.0, 0.1]), bins), bins, 0.5)) == 1.0
    assert float(histogram_quantile(log_histogram(torch.tensor([50.0, 1e9]), bins), bins, 0.5)) == 10.0


def test_a_histogram_refuses_what_it_cannot_place():
    with pytest.raises(NumericalError, match="negative"):
        log_histogram(torch.tensor([1.0, -1.0]), LogBins())
    with pytest.raises(NumericalError, match="NaN"):
        log_histogram(torch.tensor([math.nan]), LogBins())
    with pytest.raises(NumericalError, match="empty"):
        histogram_quantile(LogBins().zeros(), LogBins(), 0.5)
    with pytest.raises(VitscopeError, match="low < high"):
        LogBins(1.0, 0.5)


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
