"""Counts and sums in fixed bins: what they say of the ordered numbers, against numpy on the numbers themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.kpca import order
from vitscope.errors import VitscopeError

ANY = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]
inside = st.floats(1e-11, 1e11)


def binned(numbers) -> tuple[torch.Tensor, torch.Tensor]:
    counts, sums = order.empty()
    order.add_numbers(counts, sums, torch.tensor(numbers, dtype=torch.float64))
    return counts, sums


@given(st.lists(inside, min_size=1, max_size=60), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_quantiles_are_numpys_within_the_bound(numbers, q):
    found = float(order.quantile(*binned(numbers), q))
    assert found == pytest.approx(np.quantile(numbers, q), rel=order.BOUND)


def test_numbers_that_are_alone_in_their_bins_come_back_exactly():
    numbers = 1.01 ** np.random.default_rng(0).permutation(300)
    for q in ANY:
        assert float(order.quantile(*binned(numbers), q)) == pytest.approx(np.quantile(numbers, q), rel=1e-12)


@pytest.mark.parametrize("numbers", [[0.0], [1e-200, 0.0, 1e-200], [3e-100, 4e-100], [1e140] * 3, [1e-12], [1e12]])
def test_numbers_beyond_the_fine_bins_have_order_statistics_too(numbers):
    for q in (0.0, 1.0):
        assert float(order.quantile(*binned(numbers), q)) == pytest.approx(
            np.quantile(numbers, q), rel=0.05, abs=1e-199
        )


@given(st.lists(inside, min_size=1, max_size=80, unique=True))
@settings(deadline=None, max_examples=60)
def test_above95_keeps_what_does_not_exceed_the_95th_percentile(numbers):
    kept = [x for x in numbers if x <= np.percentile(numbers, 95)]
    counts, sums = order.cut_outliers(*binned(numbers), "above95")
    assert int(counts.sum()) in (len(kept), len(kept) - 1)  # - 1: rounding of the percentile between two neighbours
    if int(counts.sum()) == len(kept):
        assert float(sums.sum()) == pytest.approx(sum(kept), rel=order.BOUND)


def test_iqr_removes_the_one_that_stands_apart():
    numbers = np.append(np.geomspace(1, 4, 400), 1e9)
    counts, sums = order.cut_outliers(*binned(numbers), "iqr")
    assert int(counts.sum()) == 400
    assert float(sums.sum()) == pytest.approx(numbers[:-1].sum())
    with pytest.raises(VitscopeError, match="expected one of none, above95, iqr"):
        order.check_rule("some")


def test_two_halves_add_up_to_the_whole():
    numbers = np.random.default_rng(1).lognormal(0, 5, 1000)
    (a, x), (b, y), (both, total) = (binned(part) for part in (numbers[:400], numbers[400:], numbers))
    assert torch.equal(a + b, both)
    torch.testing.assert_close(x + y, total)


def test_wider_bins_hold_the_same_numbers():
    numbers = [0.0, 1e-130, 2e-5, 3.0, 3.1, 5e7, 1e130]
    limits, counts = order.decades(binned(numbers)[0], 5)
    expected = np.histogram(np.clip(numbers, 1e-120, 0.99e120), limits.numpy())[0]
    assert counts.tolist() == expected.tolist()


@pytest.mark.parametrize("rule", order.OUTLIERS)
def test_numbers_at_hand_are_described_exactly(rule):
    numbers = np.random.default_rng(2).lognormal(0, 3, (4, 5, 91))
    numbers[..., 7] = 1e40
    found = order.describe(torch.from_numpy(numbers), rule)
    for place in np.ndindex(4, 5):
        kept = own = numbers[place]
        if rule == "above95":
            kept = own[own <= np.percentile(own, 95)]
        elif rule == "iqr":
            q1, q3 = np.quantile(np.log(own), [0.25, 0.75])
            kept = own[np.abs(np.log(own) - (q1 + q3) / 2) <= 2 * (q3 - q1)]
        assert (len(kept) < len(own)) == (rule != "none")
        assert float(found["mean"][place]) == pytest.approx(kept.mean())
        for name, q in order.FIVE.items():
            assert float(found[name][place]) == pytest.approx(np.quantile(kept, q)), name
