"""Picture and labels move together: the picture says where each of its pixels was, the labels follow from that."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vitscope.data.segmentation.joint import Joint, JointOptions, distorted, drawn_piece, filled
from vitscope.data.segmentation.maps import nearest
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess

HEIGHT, WIDTH = 96, 120
COLUMNS, ROWS = 6, 4  # of the pattern: 24 classes, none of which covers much
PLAIN = Preprocess((3, 64, 48), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "bilinear")


def coordinates() -> tuple[Image.Image, np.ndarray]:
    """Red is the column, green the row, in two levels per pixel, and each pixel's class follows from both."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    picture = np.stack([2 * x, 2 * y, np.full_like(x, 100)], -1).astype(np.uint8)
    return Image.fromarray(picture), pattern(x, y)


def pattern(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x * COLUMNS // WIDTH + COLUMNS * (y * ROWS // HEIGHT)).astype(np.int64)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(12))
def test_labels_follow_the_picture_through_size_piece_and_mirror(seed: int):
    picture, labels = coordinates()
    joint = Joint(PLAIN, JointOptions(colours=False))
    x, moved = joint(picture, labels, generator(seed))
    assert (x.shape, moved.shape) == ((3, 64, 48), (64, 48))
    known = moved >= 0
    assert (x[:, ~known] == 0).all()  # what is filled up has the mean colour, and no class
    column, row = (255 * x[c].double().numpy() / 2 for c in (0, 1))
    off = np.abs(column - np.round(column * COLUMNS / WIDTH) * WIDTH / COLUMNS) < 2
    off |= np.abs(row - np.round(row * ROWS / HEIGHT) * HEIGHT / ROWS) < 2
    inside = known.numpy() & ~off & (column < WIDTH - 2)  # between two classes the colour is neither's
    assert inside.sum() > 0.3 * known.numpy().sum()
    expected = pattern(np.round(column).astype(int), np.round(row).astype(int))
    assert (expected[inside] == moved.numpy()[inside]).all()


def test_all_that_is_drawn_is_drawn_somewhere():
    picture, labels = coordinates()
    joint = Joint(PLAIN, JointOptions(colours=False))
    mirrored, ratios, corners = set(), [], set()
    for seed in range(24):
        moved, _ = joint.moved(picture, labels, generator(seed))
        a = np.asarray(moved).astype(float)
        slope = (a[0, -1, 0] - a[0, 0, 0]) / (a.shape[1] - 1) / 2  # original columns per new one
        mirrored.add(slope < 0)
        ratios.append(1 / abs(slope) * HEIGHT / min(PLAIN.input_size[1:]))
        corners.add((a[0, 0, 0], a[0, 0, 1]))
    assert mirrored == {False, True}
    assert 0.45 < min(ratios) < 0.8 < 1.6 < max(ratios) < 2.1
    assert len(corners) > 12


def test_without_options_the_middle_is_taken_at_its_plain_size():
    picture, labels = coordinates()
    x, moved = Joint(PLAIN)(picture, labels, generator(0))
    assert not (moved[:48] < 0).any()  # the short side becomes 48: there are 16 rows too few
    assert (moved[48:] == -1).all()
    assert torch.equal(moved[:48], torch.from_numpy(nearest(labels, (48, 60))[:, 6:54]))
    again = Joint(PLAIN)(picture, labels, generator(1))
    assert torch.equal(x, again[0])


def test_the_same_generator_draws_the_same():
    picture, labels = coordinates()
    joint = Joint(PLAIN, JointOptions())
    first, second, other = (joint(picture, labels, generator(seed)) for seed in (7, 7, 8))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], other[0])


def test_a_piece_that_one_class_covers_is_drawn_again():
    labels = np.zeros((40, 400), np.int64)
    labels[:, 300:320] = 1
    labels[:10] = -1  # what is ignored does not count
    covered = []
    for seed in range(40):
        top, left = drawn_piece(labels, (40, 40), 0.75, generator(seed))
        assert top == 0
        part = labels[:, left : left + 40]
        covered.append((part == 0).sum() / (part >= 0).sum())
    assert np.mean(np.array(covered) < 0.75) > 0.4  # about 8 % of all pieces are such, and ten are drawn
    free = [drawn_piece(labels, (40, 40), 1.0, generator(seed))[1] for seed in range(40)]
    assert np.mean([(labels[10:, left : left + 40] == 0).mean() < 0.75 for left in free]) < 0.3


def test_colours_change_and_places_do_not():
    picture, _ = coordinates()
    changed = [np.asarray(distorted(picture, generator(seed))) for seed in range(8)]
    assert all(c.shape == (HEIGHT, WIDTH, 3) and c.dtype == np.uint8 for c in changed)
    assert sum(not np.array_equal(c, np.asarray(picture)) for c in changed) >= 6
    grey = Image.fromarray(np.full((8, 8, 3), 128, np.uint8))  # no hue, no saturation: grey stays grey
    for seed in range(8):
        flat = np.asarray(distorted(grey, generator(seed))).astype(int)
        assert np.ptp(flat) <= 2
        assert 128 * 0.5 - 34 <= flat.min() <= flat.max() <= 255


def test_what_is_missing_is_filled_up_on_the_right_and_below():
    whole = filled(np.ones((2, 3), np.int64), (4, 5), -1)
    assert whole.sum() == 6 - 14
    assert (whole[:2, :3] == 1).all()


@pytest.mark.parametrize("wrong", [{"smallest": 0.0}, {"smallest": 3.0}, {"most": 1.5}, {"mirror": -1.0}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]):
    with pytest.raises(DataError):
        JointOptions(**wrong)


@pytest.mark.parametrize("size", [(7, 9), (48, 60), (200, 131)])
def test_nearest_takes_the_class_at_the_centre_of_the_new_pixel(size: tuple[int, int]):
    _, labels = coordinates()
    found = nearest(labels, size)
    for i, j in ((0, 0), (size[0] - 1, size[1] - 1), (size[0] // 2, size[1] // 3)):
        y, x = int((i + 0.5) * HEIGHT / size[0]), int((j + 0.5) * WIDTH / size[1])
        assert found[i, j] == labels[y, x]
