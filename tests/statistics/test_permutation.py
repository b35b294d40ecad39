from __future__ import annotations

import itertools

import pytest
import torch

from vitscope.statistics.permutation import (
    group_difference,
    holm,
    image_signs,
    p_greater,
    p_two_sided,
    pooled_test,
)


def test_p_agrees_with_the_test_over_all_sign_patterns():
    d = torch.tensor([0.9, 0.4, -0.3, 0.8, 0.5, 0.2, -0.1, 0.7], dtype=torch.float64)
    exact = [sum(s * x for s, x in zip(signs, d.tolist())) for signs in itertools.product((-1, 1), repeat=8)]
    expected = sum(e >= float(d.sum()) - 1e-12 for e in exact) / len(exact)
    signs = image_signs(range(8), 20_000, seed=0)
    assert p_greater(d.sum(), d @ signs).item() == pytest.approx(expected, abs=0.005)
    assert p_two_sided(d.sum(), d @ signs).item() == pytest.approx(2 * expected, abs=0.01)


def test_p_is_never_zero_and_is_r_plus_one_over_n_plus_one():
    d = torch.ones(60, dtype=torch.float64)
    permuted = d @ image_signs(range(60), 99, seed=3)
    assert p_greater(d.sum(), permuted).item() == 1 / 100
    assert p_greater(-d.sum(), permuted).item() == 1.0


def test_without_an_effect_p_is_uniform():
    generator = torch.Generator().manual_seed(0)
    d = torch.randn(400, 30, generator=generator, dtype=torch.float64)
    p = p_greater(d.sum(1), (d @ image_signs(range(30), 199, seed=1)).T)
    assert (p <= 0.05).double().mean().item() == pytest.approx(0.05, abs=0.03)


def test_signs_belong_to_the_image_and_not_to_its_place():
    together = image_signs([5, 2, 9], 50, seed=4)
    torch.testing.assert_close(image_signs([9], 50, seed=4)[0], together[2])
    assert not torch.equal(image_signs([9], 50, seed=5)[0], together[2])
    assert not torch.equal(together[0], together[1])


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([0.6, 0.9]) == [1.0, 1.0]


def test_difference_of_groups_is_per_image_and_leaves_out_images_that_lack_one():
    values = torch.tensor([[[1.0, 2.0, 6.0], [1.0, 2.0, 3.0]]])
    first = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    difference, valid = group_difference(values, first, 1 - first)
    assert difference.tolist() == [[1.5 - 6.0, 0.0]]
    assert valid.tolist() == [True, False]


@pytest.mark.parametrize(("shift", "skewed"), [(0.0, False), (0.3, False), (0.3, True), (-0.2, False), (5.0, False)])
def test_the_published_test_is_what_shuffling_pooled_tokens_gives(shift, skewed):
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(40, generator=generator, dtype=torch.float64) + shift
    b = torch.randn(90, generator=generator, dtype=torch.float64)
    if skewed:
        a, b = a.exp(), b.exp()
    pool = torch.cat([a, b])
    shuffles = 20_000
    order = torch.rand(shuffles, len(pool), generator=generator).argsort(1)
    permuted = pool[order[:, :40]].mean(1) - pool[order[:, 40:]].mean(1)
    expected = (permuted >= a.mean() - b.mean()).double().mean().item()
    difference, p = pooled_test((40, 90), (float(a.sum()), float(b.sum())), (float(a @ a), float(b @ b)))
    assert difference == pytest.approx(float(a.mean() - b.mean()))
    assert p == pytest.approx(expected, abs=0.02)
    assert p * 300 == pytest.approx(round(p * 300))
    assert p > 0 or shift == 5.0  # as published, it can be zero


def test_pooled_tokens_that_are_all_alike_show_nothing():
    assert pooled_test((3, 4), (6.0, 8.0), (12.0, 16.0)) == (0.0, 1.0)
