from __future__ import annotations

import math

import pytest
import torch

from vitscope.attention.masks import hides_anything, mean_over_visible, merge, visible_keys

X = torch.randn(2, 3, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
MINUS_INFINITY = torch.zeros(6, 6).masked_fill(~CAUSAL, -math.inf)


@pytest.mark.parametrize("lowest", [-math.inf, -1e9, torch.finfo(torch.float16).min])
def test_additive_masks_hide_whatever_their_lowest_value(lowest):
    assert torch.equal(visible_keys(torch.zeros(6, 6).masked_fill(~CAUSAL, lowest)), CAUSAL)


def test_a_finite_bias_hides_nothing():
    assert not hides_anything(torch.randn(3, 6, 6) * 50)
    assert not hides_anything(None)
    assert hides_anything(CAUSAL)


def test_the_mean_over_the_prefix_is_the_mean_of_each_prefix():
    expected = torch.stack([X[:, :, : t + 1].mean((-2, -1)) for t in range(6)], dim=-1)[..., None]
    for got in (
        mean_over_visible(X, is_causal=True),
        mean_over_visible(X, CAUSAL),
        mean_over_visible(X, MINUS_INFINITY),
    ):
        torch.testing.assert_close(got, expected)


def test_padding_counts_for_nothing_in_the_mean():
    padding = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])[:, None, None, :]  # (B, 1, 1, N)
    got = mean_over_visible(X, padding)
    torch.testing.assert_close(got[0, :, 0, 0], X[0, :, :4].mean((-2, -1)))
    torch.testing.assert_close(got[1, :, 0, 0], X[1].mean((-2, -1)))


def test_the_mean_of_many_large_half_precision_numbers_does_not_overflow():
    big = torch.full((1, 1, 300, 64), 100.0, dtype=torch.float16)  # their sum is 1.9 million, float16 ends at 65,504
    assert mean_over_visible(big).item() == pytest.approx(100)
    assert mean_over_visible(big, is_causal=True)[..., -1, :].item() == pytest.approx(100)


@pytest.mark.parametrize("mask", [CAUSAL, MINUS_INFINITY, None], ids=["boolean", "additive", "is_causal"])
def test_bias_and_mask_are_merged_into_the_bias_where_visible_and_minus_infinity_elsewhere(mask):
    bias = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    merged, is_causal = merge(mask, bias, mask is None, X)
    assert not is_causal
    assert torch.equal(merged, torch.where(CAUSAL, bias, torch.tensor(-math.inf)))


def test_causality_stays_a_flag_where_there_is_no_bias():
    assert merge(None, None, True, X) == (None, True)
    assert merge(CAUSAL, None, False, X) == (CAUSAL, False)


@pytest.mark.parametrize("additive", [False, True])
def test_a_causal_call_with_padding_sees_neither_later_tokens_nor_padding(additive):
    padding = torch.tensor([True, True, True, True, False, False]).expand(6, 6)
    mask = torch.zeros(6, 6, dtype=X.dtype).masked_fill(~padding, -math.inf) if additive else padding
    both = CAUSAL & padding
    merged, is_causal = merge(mask, None, True, X)
    assert not is_causal
    assert torch.equal(visible_keys(merged), both)
    torch.testing.assert_close(mean_over_visible(X, mask, is_causal=True), mean_over_visible(X, both))
