"""Does fuzziness decay, and with which law? Three curves, compared as descriptions of the same numbers.

    constant       D = a                        errors of log D
    log_linear     D = a rho^x                  errors of log D: equi-separation (He & Su 2023), with Pearson's r
    exponential    D = a exp(-b x) + c          errors of D: least squares as published (Varam et al. 2025)
    exponential    D = a exp(-b x) + c          errors of log D: the same curve, judged as log_linear is

R^2 says how much of the variance a curve explains *on its own scale*; with three parameters and seven blocks it is
always high. The curves are therefore compared by AICc (Hurvich & Tsai 1989), whose penalty knows how few points there
are. Gaussian errors of log D are log-normal errors of D, with the Jacobian -sum(log D): all likelihoods are densities
of the same D, and only so may they be compared. With n points and k parameters (the variance is one) AICc exists for
n > k + 1; a curve with too many takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST = 1e-9  # relative error below which a fit counts as exact: rounding must not decide between two exact ones
STEEPEST, FLATTEST = 50.0, 0.02  # b times the range of x: beyond, the curve is a step or a straight line
NAN = float("nan")


@dataclass(frozen=True)
class Fit:
    """One curve through (x, D). `weight`: Akaike weight, how likely the curve is the best of those compared."""

    curve: str  # constant, log_linear, exponential
    errors: str  # 'D' or 'log D': of what the squares are summed
    points: int
    a: float = NAN
    b: float = NAN
    c: float = NAN
    rho: float = NAN  # D shrinks by this factor from x to x + 1
    r: float = NAN  # Pearson correlation of x and log D
    r2: float = NAN
    aicc: float = NAN
    delta: float = NAN  # aicc above the best
    weight: float = NAN

    def __call__(self, x: ArrayLike) -> NDArray[np.float64]:
        """D on the curve."""
        x = np.asarray(x, dtype=float)
        if self.curve == "constant":
            return np.full_like(x, self.a)
        if self.curve == "log_linear":
            return self.a * self.rho**x
        return self.a * np.exp(-self.b * x) + self.c


def compare_fits(x: ArrayLike, d: ArrayLike) -> list[Fit]:
    """All curves through the points, with AICc differences and Akaike weights; [] for fewer than three points.

    Undefined D (NaN) is left out.
    """
    places, values = np.asarray(x, dtype=float), np.asarray(d, dtype=float)
    good = np.isfinite(values) & (values > 0)
    places, values = places[good], values[good]
    if len(places) < 3:
        return []
    curves = (fit_constant, fit_log_linear, fit_exponential, fit_exponential_of_log)
    fits = [curve(places, values) for curve in curves]
    scores = np.array([fit.aicc for fit in fits])
    if np.isfinite(scores).sum() < 2:  # so few points that there is nothing to compare
        return fits
    deltas = scores - np.nanmin(scores)
    weights = np.exp(-deltas / 2) / np.nansum(np.exp(-deltas / 2))
    return [
        Fit(**{**vars(fit), "delta": float(delta), "weight": float(weight)})
        for fit, delta, weight in zip(fits, deltas, weights)
    ]


def determined(b: float, span: float) -> bool:
    """Is b between the bounds of its search? At a bound the points do not say what it is: a step, or no bend at all.

    span: largest x minus smallest.
    """
    return 1.01 * FLATTEST < b * span < 0.99 * STEEPEST


def best_fit(fits: Sequence[Fit]) -> Fit | None:
    """The curve with the smallest AICc."""
    return min((fit for fit in fits if fit.delta == fit.delta), key=lambda fit: fit.delta, default=None)


def fit_constant(x: NDArray[np.float64], d: NDArray[np.float64]) -> Fit:
    """No decay: the geometric mean."""
    middle = np.log(d).mean()
    return Fit("constant", "log D", len(x), a=float(np.exp(middle)), r2=0.0, aicc=_aicc_of_log(d, middle, 2))


def fit_log_linear(x: NDArray[np.float64], d: NDArray[np.float64]) -> Fit:
    """log D = log a + x log rho by least squares."""
    y = np.log(d)
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    start = float(y.mean() - slope * x.mean())
    varies = float(y.std()) > LEAST
    r = float(np.corrcoef(x, y)[0, 1]) if varies else NAN
    return Fit(
        "log_linear", "log D", len(x), a=math.exp(start), b=-slope, c=0.0, rho=math.exp(slope), r=r,
        r2=r * r if varies else NAN, aicc=_aicc_of_log(d, start + slope * x, 3),
    )  # fmt: skip


def fit_exponential(x: NDArray[np.float64], d: NDArray[np.float64]) -> Fit:
    """a exp(-b x) + c by least squares on D.

    For a given b the best a and c are linear, so only b is searched for: no starting value, no divergence.
    """
    from scipy.optimize import minimize_scalar

    span = float(x.max() - x.min())

    def linear(log_b: float) -> tuple[tuple[float, float], float]:
        z = np.exp(-np.exp(log_b) * (x - x.min()))
        z_mean, d_mean = z.mean(), d.mean()
        a = float((z - z_mean) @ (d - d_mean) / ((z - z_mean) @ (z - z_mean)))
        c = float(d_mean - a * z_mean)
        return (a, c), float(((a * z + c - d) ** 2).sum())

    grid = np.log(np.geomspace(FLATTEST, STEEPEST, 60) / span)
    best = int(np.argmin([linear(v)[1] for v in grid]))
    bounds = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = float(minimize_scalar(lambda v: linear(v)[1], bounds=bounds, method="bounded", options={"xatol": 1e-12}).x)
    (a, c), squares = min((linear(v) for v in (found, grid[best])), key=lambda s: s[1])
    b = math.exp(found)
    total = float(((d - d.mean()) ** 2).sum())
    variance = max(squares / len(x), LEAST**2 * float((d**2).mean()))
    return Fit(
        "exponential", "D", len(x), a=float(a * np.exp(b * x.min())), b=b, c=float(c),
        r2=1 - squares / total if total > 0 else NAN, aicc=_aicc(_log_likelihood(variance, len(x)), 4, len(x)),
    )  # fmt: skip


def fit_exponential_of_log(x: NDArray[np.float64], d: NDArray[np.float64]) -> Fit:
    """a exp(-b x) + c with a, b > 0 and c >= 0 by least squares on log D, from several starts."""
    from scipy.optimize import least_squares

    span, lowest, y = float(x.max() - x.min()), float(d.min()), np.log(d)

    def curve(p: NDArray[np.float64]) -> NDArray[np.float64]:  # (log a at the first x, log b, log c)
        return np.logaddexp(p[0] - np.exp(p[1]) * (x - x.min()), p[2])

    def slopes(p: NDArray[np.float64]) -> NDArray[np.float64]:  # (n, 3) derivatives of the curve
        rate = np.exp(p[1])
        share = 1 / (1 + np.exp(np.clip(p[2] - p[0] + rate * (x - x.min()), -500, 500)))  # of the exponential in D
        return np.column_stack([share, -share * rate * (x - x.min()), 1 - share])

    limits = ([-50, math.log(FLATTEST / span), -50 + math.log(lowest)], [50, math.log(STEEPEST / span), y.max()])
    first = fit_exponential(x, d)  # least squares on D, and a geometric fall that is slow or fast
    begin = [(first.a * math.exp(-first.b * x.min()), first.b, first.c), (d[0], 0.5 / span, 0.0), (d[0], 4 / span, 0.0)]
    starts = [np.clip(np.log(np.maximum(p, 1e-6 * lowest)), *limits) for p in begin]
    tries = [least_squares(lambda p: curve(p) - y, start, slopes, bounds=limits, max_nfev=200) for start in starts]
    p = min(tries, key=lambda t: t.cost).x
    b, total = math.exp(p[1]), float(((y - y.mean()) ** 2).sum())
    squares = float(((curve(p) - y) ** 2).sum())
    return Fit(
        "exponential", "log D", len(x), a=math.exp(p[0] + b * x.min()), b=b, c=math.exp(p[2]),
        r2=1 - squares / total if total > LEAST**2 * len(x) else NAN, aicc=_aicc_of_log(d, curve(p), 4),
    )  # fmt: skip


def _aicc_of_log(d: NDArray[np.float64], log_curve: NDArray[np.float64] | float, parameters: int) -> float:
    y = np.log(d)
    variance = max(float(((y - log_curve) ** 2).mean()), LEAST**2)
    return _aicc(_log_likelihood(variance, len(d)) - float(y.sum()), parameters, len(d))


def _log_likelihood(variance: float, n: int) -> float:
    """Of n Gaussian errors with their own mean square as variance."""
    return -n / 2 * (math.log(2 * math.pi * variance) + 1)


def _aicc(log_likelihood: float, k: int, n: int) -> float:
    return -2 * log_likelihood + 2 * k + 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else NAN
