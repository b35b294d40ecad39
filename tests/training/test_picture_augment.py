from __future__ import annotations

import contextlib
import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from vitscope.data.randomness import preserved_globals, seed_globals
from vitscope.errors import VitscopeError
from vitscope.models import Preprocess
from vitscope.training import TrainOptions
from vitscope.training.picture_augment import PictureAugmentation, picture_augmentation

DEIT = "rand-m9-mstd0.5-inc1"
RECIPE = Preprocess((3, 32, 32), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def picture(seed: int = 0, size: tuple[int, int] = (40, 50)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (*size, 3)).astype(np.uint8))


def drawn(augment: object, seed: int, image: Image.Image) -> torch.Tensor:
    with preserved_globals():
        seed_globals(seed)
        return augment(image, torch.Generator()) if isinstance(augment, PictureAugmentation) else augment(image)


def test_the_deit_augmentation_is_timms_own_pipeline() -> None:
    ours = PictureAugmentation(RECIPE, TrainOptions(augment="resized", randaugment=DEIT, erase=0.25))
    timms = create_transform(
        (3, 32, 32), is_training=True, auto_augment=DEIT, interpolation="bicubic", re_prob=0.25, re_mode="pixel",
        re_count=1, mean=RECIPE.mean, std=RECIPE.std,
    )  # fmt: skip
    for seed in range(20):
        assert torch.allclose(drawn(ours, seed, picture(seed)), drawn(timms, seed, picture(seed)), atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "timms"),
    [
        ({"auto_augment": "original-mstd0.5"}, {"auto_augment": "original-mstd0.5"}),
        ({"auto_augment": "v0"}, {"auto_augment": "v0"}),
        ({"auto_augment": "augmix-m3-w3"}, {"auto_augment": "augmix-m3-w3"}),
        ({"auto_augment": "3a", "color_jitter": 0.3}, {"auto_augment": "3a", "color_jitter": 0.3}),
        ({"randaugment": DEIT, "color_jitter": 0.4}, {"auto_augment": DEIT, "color_jitter": 0.4}),
        ({"color_jitter": 0.4}, {"color_jitter": 0.4}),
        ({"train_interpolation": "random"}, {"interpolation": "random"}),
        ({"train_interpolation": "bilinear", "randaugment": DEIT}, {"interpolation": "bilinear", "auto_augment": DEIT}),
        ({"erase": 0.9, "erase_mode": "rand", "erase_count": 3}, {"re_prob": 0.9, "re_mode": "rand", "re_count": 3}),
        ({"erase": 0.9, "erase_mode": "const"}, {"re_prob": 0.9, "re_mode": "const"}),
    ],
    ids=str,
)
def test_every_option_of_deit_is_timms_own_pipeline(ours: dict, timms: dict) -> None:
    settings: dict = {"interpolation": "bicubic", "color_jitter": None, "mean": RECIPE.mean, "std": RECIPE.std, **timms}
    expected = create_transform((3, 32, 32), is_training=True, **settings)
    options = TrainOptions(augment="resized", **ours)
    compared = 0
    for seed in range(12):
        x = drawn(picture_augmentation(options, RECIPE), seed, picture(seed))
        with contextlib.suppress(ValueError):  # timm posterizes to no bits, which Pillow refuses today
            assert torch.allclose(x, drawn(expected, seed, picture(seed)), atol=1e-6)
            compared += 1
    assert compared > 6


@pytest.mark.parametrize("config", ["autoaugment", "original-q3", "augmix-q3", "-"])
def test_a_wrong_policy_shows_right_ones(config: str) -> None:
    with pytest.raises(VitscopeError, match="original, originalr, v0"):
        PictureAugmentation(RECIPE, TrainOptions(auto_augment=config))


def test_it_is_a_function_of_the_seed_and_differs_between_seeds() -> None:
    augment = PictureAugmentation(RECIPE, TrainOptions(augment="crop", randaugment=DEIT, erase=0.5))
    again = pickle.loads(pickle.dumps(augment))  # as a worker gets it
    values = [drawn(augment, seed, picture()) for seed in range(6)]
    assert all(torch.equal(drawn(again, seed, picture()), value) for seed, value in enumerate(values))
    assert len({value.numpy().tobytes() for value in values}) == 6


def test_crop_moves_the_picture_by_at_most_an_eighth() -> None:
    augment = PictureAugmentation(Preprocess((1, 16, 16), (0.0,), (1.0,)), TrainOptions(augment="crop"))
    dot = np.zeros((16, 16), np.uint8)
    dot[8, 8] = 255
    places = set()
    for seed in range(300):
        x = drawn(augment, seed, Image.fromarray(dot))
        assert x.shape == (1, 16, 16)
        places.add(tuple(int(v) for v in (x[0] == 1).nonzero()[0]))
    rows, columns = {r for r, _ in places}, {c for _, c in places}
    assert rows == set(range(6, 11))
    assert columns == set(range(5, 11))  # mirrored too: 8 becomes 7


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_coloured_pictures_fit_grey_and_coloured_models(mode: str, channels: int) -> None:
    recipe = Preprocess((channels, 28, 28), (0.5,) * channels, (0.5,) * channels)
    for augment in ("none", "crop", "resized"):
        augmentation = PictureAugmentation(recipe, TrainOptions(augment=augment, randaugment=DEIT, erase=0.25))
        for seed in range(5):
            assert drawn(augmentation, seed, picture().convert(mode)).shape == (channels, 28, 28)


def test_without_such_options_pictures_are_left_alone() -> None:
    assert picture_augmentation(TrainOptions(augment="digits"), RECIPE) is None
    assert picture_augmentation(TrainOptions(erase=0.1), RECIPE) is not None


@pytest.mark.parametrize("config", ["augmix-m3", "rand-q9", "m9"])
def test_a_wrong_randaugment_string_shows_a_right_one(config: str) -> None:
    with pytest.raises(VitscopeError, match=DEIT.replace(".", r"\.")):
        PictureAugmentation(RECIPE, TrainOptions(randaugment=config))


def test_the_callers_generators_are_not_touched() -> None:
    random.seed(3)
    before = random.getstate()
    drawn(PictureAugmentation(RECIPE, TrainOptions(augment="resized", randaugment=DEIT, erase=1.0)), 0, picture())
    assert random.getstate() == before


def test_posterizing_to_no_bits_is_black_as_it_was_when_the_recipes_were_made() -> None:
    black = Preprocess((3, 8, 8), (0.0,) * 3, (1.0,) * 3)
    augment = PictureAugmentation(black, TrainOptions(randaugment="rand-m10-n1-p1.0-inc1"))
    values = [drawn(augment, seed, picture(size=(8, 8))) for seed in range(60)]
    assert any((value == 0).all() for value in values)
