"""Rank correlations against scipy, and intervals against a bootstrap that is written out."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import spearmanr

from vitscope.statistics.ranks import rank_correlation, rank_correlations, ranks_of_sums


def test_ties_share_their_ranks():
    first, second = torch.tensor([1.0, 2.0, 2.0, 5.0, 0.0]), torch.tensor([3.0, 1.0, 1.0, 9.0, 1.0])
    assert rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert rank_correlation(first, torch.ones(5)) == 0
    both = rank_correlations(torch.stack([first, second]), torch.stack([second, -first]))
    wanted = [spearmanr(first, second).statistic, spearmanr(second, -first).statistic]
    assert both.tolist() == pytest.approx(wanted)


def test_ranks_of_sums_are_those_of_ratios_and_the_interval_that_of_images_drawn_again():
    generator = torch.Generator().manual_seed(0)
    first, noise = (torch.randn(40, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    first = first + torch.linspace(0, 1, 9)
    second, weight = first + 2 * noise, torch.rand(40, 9, generator=generator, dtype=torch.float64) + 0.5
    value, low, high = ranks_of_sums(first, second, weight)
    assert value == pytest.approx(spearmanr(first.sum(0) / weight.sum(0), second.sum(0) / weight.sum(0)).statistic)
    found = []
    for _ in range(1000):
        chosen = torch.randint(0, 40, (40,), generator=generator)
        a, b = (x[chosen].sum(0) / weight[chosen].sum(0) for x in (first, second))
        found.append(rank_correlation(a, b))
    wanted = torch.tensor(found).quantile(torch.tensor([0.025, 0.975]))
    assert (low, high) == (pytest.approx(float(wanted[0]), abs=0.06), pytest.approx(float(wanted[1]), abs=0.06))


def test_one_image_has_no_interval():
    value, low, high = ranks_of_sums(torch.tensor([[1.0, 2, 3]]), torch.tensor([[1.0, 2, 3]]), torch.ones(1, 3))
    assert value == pytest.approx(1)
    assert low != low
    assert high != high
