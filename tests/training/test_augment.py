from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vitscope.training.augment import AUGMENTATIONS, EpochAugmentation, drawn_numbers, mirror, turn_and_shift

BLACK = torch.full((1, 1, 1), -1.0)


def test_what_an_image_gets_does_not_depend_on_its_batch() -> None:
    images = torch.rand(10, 1, 12, 12)
    for name in AUGMENTATIONS:
        augment = EpochAugmentation(name, 10, BLACK, seed=3, epoch=1)
        whole = augment(images, torch.arange(10))
        order = torch.tensor([7, 2, 9])
        assert torch.equal(augment(images[order], order), whole[order])


def test_another_epoch_and_another_seed_draw_other_numbers() -> None:
    a = drawn_numbers(5, 3, seed=0, epoch=0)
    assert not torch.equal(a, drawn_numbers(5, 3, seed=0, epoch=1))
    assert not torch.equal(a, drawn_numbers(5, 3, seed=1, epoch=0))
    assert torch.equal(a, drawn_numbers(5, 3, seed=0, epoch=0))
    assert a.min() >= -1
    assert a.max() < 1


def test_zero_leaves_a_picture_as_it_is() -> None:
    images = torch.rand(3, 1, 14, 14)
    assert torch.allclose(turn_and_shift(images, torch.zeros(3, 5), BLACK), images, atol=1e-5)


def test_a_shift_moves_by_a_fourteenth_and_black_comes_in() -> None:
    images = torch.rand(1, 1, 14, 14)
    moved = turn_and_shift(images, torch.tensor([[0.0, 0, 0, 1, 0]]), BLACK)  # looks one pixel to the right
    assert torch.allclose(moved[..., :-1], images[..., 1:], atol=1e-5)
    assert torch.allclose(moved[..., -1], torch.tensor(-1.0), atol=1e-5)


@pytest.mark.parametrize("turn", [-1.0, 1.0])
def test_a_turn_is_the_one_that_pillow_makes(turn: float) -> None:
    y, x = np.mgrid[:28, :28]
    smooth = (np.exp(-((x - 9) ** 2 + (y - 15) ** 2) / 30) * 255).astype(np.uint8)
    picture = torch.from_numpy(smooth / 127.5 - 1).float()[None, None]
    turned = turn_and_shift(picture, torch.tensor([[turn, 0.0, 0, 0, 0]]), BLACK)[0, 0]
    pillow = Image.fromarray(smooth).rotate(12 * turn, Image.Resampling.BILINEAR)
    oracle = torch.from_numpy(np.array(pillow) / 127.5 - 1).float()
    inside = (slice(4, -4), slice(4, -4))  # Pillow rounds to 1/255, and treats the border pixels in its own way
    assert (turned - oracle)[inside].abs().max() < 2.1 / 255
    assert (turned - picture[0, 0])[inside].abs().max() > 0.3


def test_half_of_the_pictures_are_mirrored() -> None:
    images = torch.rand(400, 1, 4, 4)
    out = mirror(images, drawn_numbers(400, 1, 0, 0), BLACK)
    mirrored = sum(torch.equal(a, b.flip(-1)) for a, b in zip(out, images))
    same = sum(torch.equal(a, b) for a, b in zip(out, images))
    assert mirrored + same == 400
    assert 150 < mirrored < 250
