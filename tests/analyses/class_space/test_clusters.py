from __future__ import annotations

import pytest
import torch

from vitscope.analyses.class_space.clusters import COUNTS, FIELDS, cluster_sums, ratio


def summed(values: torch.Tensor, members: torch.Tensor, share: bool = False, group: int = 0):
    counts, fields = cluster_sums(values, members)
    numbers = dict(zip(COUNTS, counts[:, group].tolist())) | dict(zip(FIELDS, fields[:, 0, group].tolist()))
    return ratio(numbers, share=share)


def test_the_standard_error_is_that_of_resampled_images_and_not_of_tokens():
    generator = torch.Generator().manual_seed(0)
    per_image = torch.randn(200, 1, generator=generator)  # all tokens of an image are alike
    values = (per_image + 0.1 * torch.randn(200, 50, generator=generator))[None]
    members = (torch.rand(200, 1, 50, generator=generator) < 0.5).double()
    mean = summed(values, members)
    draws = torch.randint(0, 200, (4000, 200), generator=generator)
    y, m = (values[0] * members[:, 0]).sum(1), members[:, 0].sum(1)
    bootstrap = (y[draws].sum(1) / m[draws].sum(1)).std().item()
    assert (mean.high - mean.low) / 2 / 1.96 == pytest.approx(bootstrap, rel=0.1)
    assert mean.value == pytest.approx((y.sum() / m.sum()).item())
    assert mean.per_image == pytest.approx((y / m).mean().item())
    assert (mean.tokens, mean.images) == (int(members.sum()), 200)


def test_a_share_with_one_token_per_image_has_wilsons_interval():
    from vitscope.analyses.accumulators import wilson

    values = torch.tensor([1.0] * 30 + [0.0] * 70)[None, :, None]
    mean = summed(values, torch.ones(100, 1, 1, dtype=torch.float64), share=True)
    low, high = wilson(30, 100)
    # n/(n-1) of the sample variance is the only difference
    assert (mean.low, mean.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


@pytest.mark.parametrize("images", [1, 5])
def test_zero_of_n_keeps_an_interval(images: int):
    mean = summed(torch.zeros(1, images, 9), torch.ones(images, 1, 9, dtype=torch.float64), share=True)
    assert mean.value == 0
    assert mean.low == 0 < mean.high < 1


def test_images_without_a_member_do_not_count():
    members = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 1.0]]], dtype=torch.float64)
    mean = summed(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), members, group=1)
    assert (mean.value, mean.images, mean.tokens, mean.per_image) == (4, 1, 1, 4)
