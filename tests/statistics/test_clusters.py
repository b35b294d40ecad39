from __future__ import annotations

import math

import pytest
import torch

from vitscope.statistics.clusters import COUNTS, FIELDS, cluster_sums, mean_over_images, ratio


def summed(values: torch.Tensor, members: torch.Tensor, kind: str = "number", group: int = 0):
    counts, fields = cluster_sums(values, members)
    numbers = dict(zip(COUNTS, counts[:, group].tolist())) | dict(zip(FIELDS, fields[:, 0, group].tolist()))
    return ratio(numbers, kind)


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
    from vitscope.statistics.intervals import wilson

    values = torch.tensor([1.0] * 30 + [0.0] * 70)[None, :, None]
    mean = summed(values, torch.ones(100, 1, 1, dtype=torch.float64), "share")
    low, high = wilson(30, 100)
    # n/(n-1) of the sample variance is the only difference
    assert (mean.low, mean.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


@pytest.mark.parametrize("images", [1, 5])
def test_zero_of_n_keeps_an_interval(images: int):
    mean = summed(torch.zeros(1, images, 9), torch.ones(images, 1, 9, dtype=torch.float64), "share")
    assert mean.value == 0
    assert mean.low == 0 < mean.high < 1


def test_images_without_a_member_do_not_count():
    members = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 1.0]]], dtype=torch.float64)
    mean = summed(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), members, group=1)
    assert (mean.value, mean.images, mean.tokens, mean.per_image) == (4, 1, 1, 4)


@pytest.mark.parametrize("kind", ["number", "fraction", "change"])
def test_one_image_has_no_interval(kind: str):
    mean = summed(torch.tensor([[[0.2, 0.6]]]), torch.ones(1, 1, 2, dtype=torch.float64), kind)
    assert mean.value == pytest.approx(0.4)
    assert math.isnan(mean.low)
    assert math.isnan(mean.high)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_images_that_agree_have_wilsons_interval_and_not_a_point(value: float):
    n, z = 12, 1.959963984540054
    mean = mean_over_images(n, n * value, n * value**2, "fraction")
    # the shares p with |value - p| = z sqrt(p (1 - p) / n), by their definition
    for p in (mean.low, mean.high):
        assert abs(value - p) == pytest.approx(z * math.sqrt(p * (1 - p) / n), abs=1e-9)
    assert mean.low <= value <= mean.high
    assert mean.high - mean.low > 0.1


def test_no_image_that_changes_has_the_interval_of_agresti_and_min():
    mean = summed(torch.zeros(1, 10, 4), torch.ones(10, 1, 4, dtype=torch.float64), "change")
    # half an image in each of four cells: gained 1/2, lost 1/2 of 12
    half = 1.959963984540054 * math.sqrt(0.5 + 0.5) / 12
    assert (mean.value, mean.low, mean.high) == (0, pytest.approx(-half), pytest.approx(half))
    always = mean_over_images(10, -10, 10, "change")
    assert always.low == -1 < always.high < -0.5


def test_one_value_per_image_has_the_interval_of_its_mean():
    values = torch.randn(50, generator=torch.Generator().manual_seed(0)).double()
    mean = mean_over_images(50, float(values.sum()), float(values.square().sum()))
    assert mean.value == pytest.approx(float(values.mean()))
    assert (mean.high - mean.low) / 2 == pytest.approx(1.959963984540054 * float(values.std()) / 50**0.5)
