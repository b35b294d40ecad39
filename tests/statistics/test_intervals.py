import numpy as np
import pytest

from vitscope.statistics.intervals import newcombe, paired


def test_newcombes_own_example():
    assert newcombe(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)  # his table II, (a), method 10
    assert newcombe(0, 10, 0, 20) == pytest.approx((-0.1611, 0.2775), abs=5e-5)  # (g): nobody at all


def test_the_interval_of_a_difference_turns_round_with_it():
    low, high = newcombe(30, 40, 10, 50)
    assert newcombe(10, 50, 30, 40) == pytest.approx((-high, -low))
    low, high = paired(3, 20, 100)
    assert paired(20, 3, 100) == pytest.approx((-high, -low))


def test_the_paired_interval_covers_the_truth_in_95_of_100_cases():
    rng = np.random.default_rng(0)
    cells = np.array([0.55, 0.02, 0.18, 0.25])  # both right, gained, lost, both wrong
    covered = 0
    for _, gained, lost, _ in rng.multinomial(80, cells, 2000):
        low, high = paired(int(gained), int(lost), 80)
        covered += low <= 0.02 - 0.18 <= high
    assert 0.935 <= covered / 2000 <= 0.975


def test_nothing_gained_and_nothing_lost_is_not_certainty():
    low, high = paired(0, 0, 50)
    assert low == -high < 0
