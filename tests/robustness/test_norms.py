from __future__ import annotations

import pytest
import torch
from scipy.optimize import minimize

from vitscope.robustness.norms import NORMS, project, random_in_ball, sizes, steepest


def generators(n, seed=0):
    return [torch.Generator().manual_seed(seed + i) for i in range(n)]


@pytest.mark.parametrize("norm", NORMS)
def test_a_projection_is_the_nearest_point_of_the_ball_that_an_optimiser_finds(norm):
    x = torch.randn(1, 1, 1, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = project(x, norm, 0.7)
    assert float(sizes(found, norm)) <= 0.7 + 1e-12
    point = x.flatten().numpy()
    limit = {"type": "ineq", "fun": lambda y: 0.7 - float(sizes(torch.tensor(y)[None], norm))}
    best = minimize(lambda y: ((y - point) ** 2).sum(), 0 * point, constraints=[limit], options={"maxiter": 500})
    assert float((found - x).square().sum()) <= best.fun + 1e-6


@pytest.mark.parametrize("norm", NORMS)
def test_what_is_inside_stays_where_it_is_and_zero_budget_leaves_nothing(norm):
    x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    inside = 0.5 * x / sizes(x, norm)[:, None, None, None]
    assert torch.equal(project(inside, norm, 1.0), inside) or torch.allclose(project(inside, norm, 1.0), inside)
    assert not project(x, norm, 0.0).any()


@pytest.mark.parametrize("norm", NORMS)
def test_draws_fill_the_ball_and_belong_to_their_generator(norm):
    like = torch.zeros(200, 1, 1, 3)
    draws = random_in_ball(like, norm, 2.0, generators(200))
    size = sizes(draws, norm)
    assert size.max() <= 2 * (1 + 1e-6)
    assert abs(float((size / 2).pow(3).mean()) - 0.5) < 0.07  # uniform in 3 dimensions: P(size <= r) = r^3
    assert torch.equal(random_in_ball(like[5:7], norm, 2.0, generators(2, seed=5)), draws[5:7])


def test_the_steepest_direction_has_size_one_and_no_gradient_has_none():
    g = torch.randn(2, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    g[1] = 0
    for norm in NORMS:
        assert sizes(steepest(g, norm), norm).tolist() == pytest.approx([1, 0])
