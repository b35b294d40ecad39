from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitscope.data.batch import IGNORED
from vitscope.data.transforms import build_transform, plan
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess

timm_data = pytest.importorskip("timm.data")
Noise = Callable[..., Image.Image]

SIZES = [(40, 40), (37, 53), (64, 31), (20, 90), (225, 224), (12, 300)]  # (height, width)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def recipe(size: tuple[int, int] = (32, 32), **changes: object) -> Preprocess:
    return Preprocess(**{"input_size": (3, *size), "mean": MEAN, "std": STD, **changes})  # type: ignore[arg-type]


def timms(p: Preprocess) -> Callable[[Image.Image], torch.Tensor]:
    return timm_data.create_transform(
        input_size=p.input_size,
        mean=p.mean,
        std=p.std,
        interpolation=p.interpolation,
        crop_pct=p.crop_pct,
        crop_mode=p.crop_mode,
        is_training=False,
    )


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest", "lanczos"])
@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 0.95, 1.0, 1.1])
def test_tensors_are_timms_bit_for_bit(noise: Noise, interpolation: str, crop_mode: str, crop_pct: float) -> None:
    p = recipe(interpolation=interpolation, crop_mode=crop_mode, crop_pct=crop_pct)
    ours, theirs = build_transform(p), timms(p)
    for height, width in SIZES:
        picture = noise(height, width)
        assert torch.equal(ours(picture)[0], theirs(picture)), (height, width)


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("target", [(32, 48), (45, 30)])
def test_inputs_that_are_not_square_are_timms_too(noise: Noise, crop_mode: str, target: tuple[int, int]) -> None:
    p = recipe(target, crop_mode=crop_mode, crop_pct=0.9, interpolation="bicubic")
    for height, width in SIZES[:5]:
        picture = noise(height, width)
        assert torch.equal(build_transform(p)(picture)[0], timms(p)(picture))


@pytest.mark.parametrize("crop_mode", ["center", "border"])
def test_grey_and_colour_pictures_fit_models_of_one_and_three_channels(noise: Noise, crop_mode: str) -> None:
    one = Preprocess((1, 28, 28), (0.13,), (0.31,), "bicubic", 0.9, crop_mode)
    three = recipe(crop_mode=crop_mode, crop_pct=0.9)
    for mode in ("L", "RGB"):
        picture = noise(33, 41, mode=mode)
        assert torch.equal(build_transform(one)(picture)[0], timms(one)(picture.convert("L")))
        assert torch.equal(build_transform(three)(picture)[0], timms(three)(picture.convert("RGB")))


@pytest.mark.parametrize(("interpolation", "crop_pct"), [("bicubic", 0.9), ("bilinear", 0.875), ("bicubic", 1.0)])
def test_real_pictures_are_timms_bit_for_bit(shared: Path, interpolation: str, crop_pct: float) -> None:
    p = recipe((224, 224), interpolation=interpolation, crop_pct=crop_pct)
    for path in sorted((shared / "data/imagenet/val").glob("n014*/*.JPEG"))[:4]:
        picture = Image.open(path).convert("RGB")
        assert torch.equal(build_transform(p)(picture)[0], timms(p)(picture))


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("crop_pct", [0.9, 1.0, 1.2])
def test_a_mask_goes_where_its_image_goes(noise: Noise, crop_mode: str, crop_pct: float) -> None:
    """Oracle: a black-and-white image that is its own mask, resized by the same (nearest) filter."""
    p = Preprocess((1, 32, 32), (0.0,), (1.0,), "nearest", crop_pct, crop_mode)
    for height, width in [(40, 40), (37, 53), (64, 31), (25, 26)]:
        mask = Image.fromarray((np.asarray(noise(height, width, mode="L")) > 127).astype(np.uint8))
        picture = mask.point(lambda v: 255 * v)
        x, follows = build_transform(p)(picture, mask)
        assert follows is not None
        assert follows.dtype == torch.uint8
        inside = follows != IGNORED
        assert torch.equal(x[0][inside], follows[inside].float())
        assert (x[0][~inside] == 0).all()  # padding, black
        padded = sum(plan((height, width), p).padding) > 0
        assert bool((~inside).any()) == padded


def test_a_mask_is_never_blended(noise: Noise) -> None:
    mask = Image.fromarray(np.random.default_rng(0).choice([0, 1, 255], (57, 83)).astype(np.uint8))
    _, follows = build_transform(recipe(interpolation="bicubic"))(noise(57, 83), mask)
    assert follows is not None
    assert set(follows.unique().tolist()) == {0, 1, 255}


def test_a_mask_of_another_size_is_refused(noise: Noise) -> None:
    with pytest.raises(DataError, match="mask is 40 x 40 pixels, the image 48 x 40"):
        build_transform(recipe())(noise(40, 48), Image.new("L", (40, 40)))


def test_a_strip_of_absurd_shape_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(DataError, match="strip of 100000 x 5"):
        build_transform(recipe((224, 224)))(Image.new("L", (100_000, 5)))


def test_a_strip_may_vanish_in_a_border_crop_but_not_to_zero_pixels() -> None:
    assert plan((1, 1000), recipe(crop_mode="border")).resized == (1, 32)


def test_the_transform_can_be_sent_to_other_processes(noise: Noise) -> None:
    ours = build_transform(recipe())
    assert torch.equal(pickle.loads(pickle.dumps(ours))(noise())[0], ours(noise())[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_size": (2, 32, 32)}, "2 input channels"),
        ({"mean": (0.5,)}, "1 means"),
        ({"interpolation": "bicubik"}, "Did you mean bicubic"),
        ({"crop_mode": "middle"}, "center, squash, border or short"),
        ({"crop_pct": 0.0}, "positive"),
        ({"crop_pct": math.nan}, "positive"),
    ],
)
def test_impossible_recipes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_transform(recipe(**changes))
