import numpy as np
import pytest

from vitscope.robustness.corruption_error import ALEXNET, clustered_mean, corruption_errors, mce
from vitscope.robustness.corruptions import COMMON


def test_alexnet_itself_scores_100():
    assert mce(ALEXNET) == pytest.approx(100)
    assert set(ALEXNET) == set(COMMON)


def test_mce_is_the_mean_of_fifteen_quotients():
    rng = np.random.default_rng(0)
    errors = dict(zip(ALEXNET, rng.random(15)))
    total = 0.0
    for name in COMMON:
        total += errors[name] / ALEXNET[name] / 15
    assert mce(errors) == pytest.approx(100 * total)
    assert corruption_errors({"fog": 0.5}) == {"fog": pytest.approx(50 / 0.819324)}


def test_mce_of_fewer_corruptions_is_refused():
    with pytest.raises(ValueError, match="fog"):
        mce({name: 0.5 for name in ALEXNET if name != "fog"})


def test_copies_of_an_image_do_not_make_the_mean_surer():
    values = np.random.default_rng(0).random(400)
    mean, low, high = clustered_mean(values)
    assert mean == pytest.approx(values.mean())
    assert high - mean == pytest.approx(mean - low)
    assert high - low == pytest.approx(2 * 1.96 * values.std(ddof=1) / 20, rel=1e-3)
    assert np.isnan(clustered_mean(values[:1])[1])
