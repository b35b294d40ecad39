"""Corruptions of a batch: what they depend on, and what they leave alone."""

import random

import numpy as np
import pytest
import torch

from vitscope.errors import VitscopeError
from vitscope.robustness.corruptions import (
    COMMON,
    corrupt,
    image_seed,
    list_corruptions,
    parse_corruptions,
    parse_severities,
    register_corruption,
)
from vitscope.robustness.corruptions.batched import NAMES
from vitscope.robustness.corruptions.registry import size_remark

RANDOM = set(COMMON) - {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    """Two soft colour pictures, (2, 3, 33, 35)."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(2, 3, 5, 5, generator=generator)
    return (torch.nn.functional.interpolate(coarse, (33, 35), mode="bicubic").clamp(0, 1) * 255).to(torch.uint8)


@pytest.mark.parametrize("name", COMMON)
def test_a_corrupted_picture_depends_on_its_own_seed_alone_and_no_global_generator_moves(name, x):
    if name not in NAMES:
        pytest.importorskip("imagecorruptions", reason="needs vitscope[corruptions]")
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    together = corrupt(x, name, 3, [1, 2])
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])
    np.random.seed(99)  # what the caller draws does not matter either
    alone = torch.cat([corrupt(x[1:], name, 3, [2]), corrupt(x[:1], name, 3, [1])]).flip(0)
    assert torch.equal(together, alone)
    other = corrupt(x, name, 3, [7, 8])
    assert torch.equal(other, together) == (name not in RANDOM)
    assert together.shape == x.shape
    assert together.dtype == torch.uint8
    assert not torch.equal(together, x)


def test_severity_grows_the_damage(x):
    damage = [(corrupt(x, "gaussian_noise", s, [1, 2]).float() - x.float()).abs().mean() for s in range(1, 6)]
    assert damage == sorted(damage)


def test_a_picture_under_32_pixels_is_enlarged_corrupted_and_reduced():
    tiny = torch.randint(0, 256, (1, 3, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    result = corrupt(tiny, "contrast", 5, [0])
    assert result.shape == tiny.shape
    assert result.float().std() < 0.2 * tiny.float().std()
    assert size_remark(28, 28) == "28 x 28 px, enlarged to 32 x 32 and reduced again"
    assert size_remark(224, 224) == "224 x 224 px"


def test_grey_noise_is_as_strong_as_colour_noise_and_other_grey_results_are_the_luma():
    grey = torch.full((1, 1, 64, 64), 128, dtype=torch.uint8)
    colour = corrupt(grey.expand(-1, 3, -1, -1), "gaussian_noise", 2, [3])
    noisy = corrupt(grey, "gaussian_noise", 2, [3])
    assert torch.equal(noisy[:, 0], colour[:, 0])
    assert noisy.float().std() == pytest.approx(0.12 * 255, rel=0.05)
    ramp = torch.arange(64, dtype=torch.uint8).expand(1, 1, 64, 64)
    rgb = corrupt(ramp.expand(-1, 3, -1, -1).contiguous(), "brightness", 1, [0])
    assert torch.equal(corrupt(ramp, "brightness", 1, [0])[:, 0], rgb[:, 0])  # grey stays grey


def test_seeds_differ_between_images_corruptions_severities_and_seeds():
    keys = [(s, i, c, v) for s in (0, 1) for i in ("a", "b") for c in ("fog", "snow") for v in (1, 2)]
    assert len({image_seed(*key) for key in keys}) == len(keys)
    assert all(0 <= image_seed(*key) < 2**32 for key in keys)


@pytest.mark.parametrize(
    ("pixels", "name", "severity", "message"),
    [
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "fogg", 1, "Did you mean fog"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "fog", 6, "from 1 to 5"),
        (torch.zeros(1, 3, 32, 32), "fog", 1, "before they are normalised"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "fog", 1, "1 seeds for 2 pictures"),
    ],
)
def test_what_cannot_be_corrupted_is_refused_with_a_reason(pixels, name, severity, message):
    with pytest.raises(VitscopeError, match=message):
        corrupt(pixels, name, severity, [0])


def test_words_become_corruptions_in_their_usual_order():
    assert parse_corruptions("all") == COMMON
    assert len(COMMON) == 15
    assert parse_corruptions(["fog,noise"]) == ("gaussian_noise", "shot_noise", "impulse_noise", "fog")
    with pytest.raises(VitscopeError, match="Did you mean blur"):
        parse_corruptions("blurr")
    assert parse_severities("1,3-5") == (1, 3, 4, 5)
    assert parse_severities([2]) == (2,)
    for wrong in ("0", "6", "x", "2-9", ""):
        with pytest.raises(VitscopeError, match="everit"):
            parse_severities(wrong)


def test_a_corruption_of_ones_own_is_a_decorated_function():
    @register_corruption("dim")
    def dim(pixels, severity, seeds):
        return pixels // (severity + 1)

    assert list_corruptions()[-1] == "dim"
    assert parse_corruptions("dim") == ("dim",)
    assert corrupt(torch.full((1, 3, 32, 32), 90, dtype=torch.uint8), "dim", 2, [0]).unique().tolist() == [30]


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda pixels: None, "NoneType"),
        (lambda pixels: pixels[:, :1], r"torch.uint8 \(1, 1, 32, 32\)"),
        (lambda pixels: pixels * 0.5, r"torch.float32 \(1, 3, 32, 32\)"),
    ],
)
def test_a_corruption_of_ones_own_returns_pixels_as_it_was_given_them(change, got):
    register_corruption("dim")(lambda pixels, severity, seeds: change(pixels))
    with pytest.raises(VitscopeError, match=rf"'dim' returned {got} for torch.uint8 \(1, 3, 32, 32\): return pixels"):
        corrupt(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "dim", 2, [0])


def test_without_the_package_the_error_names_the_extra_and_what_works_without(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    x = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    with pytest.raises(VitscopeError, match=r"vitscope\[corruptions\].*gaussian_noise,shot_noise"):
        corrupt(x, "fog", 1, [0])
    corrupt(x, "contrast", 1, [0])
