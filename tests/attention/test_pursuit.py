"""Pursuit with its true low-rank step, singular-value thresholding. The attention step claims none of this."""

from __future__ import annotations

import pytest
import torch

from vitscope.attention.pursuit import pursue, shrink
from vitscope.attention.rpc import SIGNS, VARIANTS, rpc_threshold

SIZE, RANK, OUTLIERS = 80, 4, 0.05


def low_rank_plus_sparse():
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(SIZE, RANK, generator=generator, dtype=torch.float64)
    low = low @ torch.randn(RANK, SIZE, generator=generator, dtype=torch.float64)
    where = torch.rand(SIZE, SIZE, generator=generator) < OUTLIERS
    sparse = where * 10 * torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)
    return low, sparse


def lower_singular_values(x, by):
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    return u * (s - by).clamp_min(0) @ v


def recover(variant, sign, lower_by_mu=False, iterations=200):
    """Relative error of the low-rank part, S as found, S as planted. The threshold of S is that of the variant."""
    low, sparse = low_rank_plus_sparse()
    matrix = (low + sparse)[None, None]
    threshold = rpc_threshold(matrix, SIZE**-0.5, variant)
    mu = 1 / (4 * matrix.abs().mean())

    def step(x):
        return lower_singular_values(x, mu if lower_by_mu else 1 / mu)

    clean, found = pursue(matrix, step, threshold, sign, iterations)
    return ((step(clean) - low).norm() / low.norm()).item(), found[0, 0], sparse


def test_shrink_is_the_proximal_map_of_the_absolute_value():
    """Oracle: argmin_s |s| t + (s - x)^2 / 2 over a fine grid."""
    grid = torch.linspace(-3, 3, 60001, dtype=torch.float64)
    for x in (-2.0, -0.5, 0.0, 0.3, 1.7):
        best = grid[(0.7 * grid.abs() + (grid - x) ** 2 / 2).argmin()].item()
        assert shrink(torch.tensor(x, dtype=torch.float64), torch.tensor(0.7)).item() == pytest.approx(best, abs=1e-4)


def test_exact_recovers_low_rank_plus_sparse():
    error, found, sparse = recover("exact", SIGNS["exact"])
    assert error < 1e-5
    assert (found - sparse).norm() / sparse.norm() < 1e-5


@pytest.mark.parametrize("lower_by_mu", [False, True], ids=["by 1/mu, as the Lagrangian wants", "by mu, as printed"])
def test_paper_does_not_recover_it_but_diverges(lower_by_mu):
    error, _, _ = recover("paper", SIGNS["paper"], lower_by_mu)
    assert error > 1e3


def test_code_does_not_recover_it_but_takes_every_entry_for_an_outlier():
    error, found, _ = recover("code", SIGNS["code"])
    assert error == pytest.approx(1.0)
    assert (found != 0).all()


def test_the_sign_alone_makes_the_paper_recover_and_the_threshold_alone_makes_code_fail():
    assert recover("paper", +1.0)[0] < 1e-5
    assert recover("code", +1.0)[0] == pytest.approx(1.0)


def test_every_variant_has_a_sign():
    assert set(SIGNS) == set(VARIANTS)
