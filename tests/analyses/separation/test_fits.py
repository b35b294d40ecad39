from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from vitscope.analyses.separation.fits import best_fit, compare_fits

BLOCKS = np.arange(1.0, 9.0)


def by_name(fits):
    return {(fit.curve, fit.errors): fit for fit in fits}


@given(rho=st.floats(0.2, 0.98), start=st.floats(0.1, 1000))
@settings(max_examples=10, deadline=None)
def test_a_geometric_sequence_returns_its_rho_and_wins(rho, start):
    fits = compare_fits(BLOCKS, start * rho**BLOCKS)
    law = by_name(fits)["log_linear", "log D"]
    assert law.rho == pytest.approx(rho, rel=1e-9)
    assert law.r == pytest.approx(-1)
    assert law.r2 == pytest.approx(1)
    assert best_fit(fits) == law


@given(a=st.floats(5, 200), b=st.floats(0.3, 2), c=st.floats(1, 20))
@settings(max_examples=8, deadline=None)
def test_an_exponential_above_a_floor_returns_its_three_numbers_and_wins(a, b, c):
    fits = compare_fits(np.arange(1.0, 13.0), a * np.exp(-b * np.arange(1.0, 13.0)) + c)
    for errors in ("D", "log D"):
        fit = by_name(fits)["exponential", errors]
        assert (fit.a, fit.b, fit.c) == (
            pytest.approx(a, rel=1e-3),
            pytest.approx(b, rel=1e-3),
            pytest.approx(c, rel=1e-3),
        )
    assert best_fit(fits).curve == "exponential"


def test_the_exponential_is_what_curve_fit_finds_from_the_published_start():
    rng = np.random.default_rng(0)
    d = 80 * np.exp(-0.5 * BLOCKS) + 4 + rng.normal(0, 0.5, len(BLOCKS))
    expected, _ = curve_fit(lambda x, a, b, c: a * np.exp(-b * x) + c, BLOCKS, d, p0=(100, 0.1, 0), maxfev=20_000)
    fit = by_name(compare_fits(BLOCKS, d))["exponential", "D"]
    assert (fit.a, fit.b, fit.c) == tuple(pytest.approx(v, rel=1e-4) for v in expected)
    residual = d - fit(BLOCKS)
    assert fit.r2 == pytest.approx(1 - (residual**2).sum() / ((d - d.mean()) ** 2).sum())


def test_all_likelihoods_are_densities_of_the_same_numbers():
    """A log-normal density is a Gaussian of log D over D; scipy's densities are the oracle."""
    from scipy import stats

    rng = np.random.default_rng(1)
    d = 30 * 0.7**BLOCKS * np.exp(rng.normal(0, 0.1, len(BLOCKS)))
    n = len(d)
    for fit, k in zip(compare_fits(BLOCKS, d), (2, 3, 4, 4)):
        curve = fit(BLOCKS)
        if fit.errors == "D":
            density = stats.norm.logpdf(d, curve, np.sqrt(((d - curve) ** 2).mean())).sum()
        else:
            sigma = np.sqrt((np.log(d / curve) ** 2).mean())
            density = stats.lognorm.logpdf(d, sigma, scale=curve).sum()
        assert fit.aicc == pytest.approx(-2 * density + 2 * k + 2 * k * (k + 1) / (n - k - 1))


def test_the_unit_of_fuzziness_does_not_decide_between_curves():
    rng = np.random.default_rng(2)
    d = 30 * 0.8**BLOCKS * np.exp(rng.normal(0, 0.2, len(BLOCKS)))
    for one, other in zip(compare_fits(BLOCKS, d), compare_fits(BLOCKS, 1000 * d)):
        assert one.delta == pytest.approx(other.delta, abs=1e-4)


def test_noise_without_decay_is_called_constant():
    rng = np.random.default_rng(3)
    won = [best_fit(compare_fits(BLOCKS, np.exp(rng.normal(2, 0.2, 8)))).curve for _ in range(15)]
    assert won.count("constant") >= 11


def test_few_points_take_curves_out_of_the_comparison():
    d = 9 * 0.5 ** np.arange(1, 6)
    fits = by_name(compare_fits(np.arange(1, 6), d))
    assert np.isnan(fits["exponential", "D"].aicc), "three parameters, a variance and five points"
    assert np.isfinite(fits["log_linear", "log D"].aicc)
    four = compare_fits([1, 2, 3, 4], [8.0, 4.0, 2.0, 1.0])
    assert all(np.isnan(fit.weight) for fit in four), "only the constant has an AICc: nothing to compare it with"
    assert best_fit(four) is None
    assert compare_fits([1, 2], [3.0, 1.0]) == []
    assert len(compare_fits([1, 2, 3, 4], [3.0, np.nan, 1.0, 0.5])) == 4
    assert np.nansum([fit.weight for fit in fits.values()]) == pytest.approx(1)
