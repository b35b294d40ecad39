from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitscope.data import load_data
from vitscope.data.digits import embedded_digits
from vitscope.data.segmentation.ade20k import CLASSES
from vitscope.data.segmentation.digit_scenes import INK, LARGEST, SMALLEST, Scenes, draw_scene, held_apart
from vitscope.errors import DataError


def save(file: Path, numbers: np.ndarray, mode: str | None = None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(numbers.astype(np.uint8), mode)
    if mode == "P":
        picture.putpalette(list(range(256)) * 3)
    picture.save(file)


def test_ade20k_counts_from_one_and_ignores_the_rest(tmp_path: Path):
    numbers = np.array([[0, 1, 150, 2], [0, 0, 3, 4]])
    for split, start in (("training", "ADE_train"), ("validation", "ADE_val")):
        save(tmp_path / "images" / split / f"{start}_1.jpg", np.zeros((2, 4, 3)))
        save(tmp_path / "annotations" / split / f"{start}_1.png", numbers)
    data = load_data("ade20k", "val", root=tmp_path)
    assert (data.num_classes, data.classes[0], data.classes[149]) == (150, "wall", "flag")
    assert data[0].target.tolist() == [[-1, 0, 149, 1], [-1, -1, 2, 3]]
    assert load_data("ade20k", "train", root=tmp_path).paths == ["training/ADE_train_1.jpg"]
    assert len(set(CLASSES)) == 150
    with pytest.raises(DataError, match=r"ADE20K is not there: looked for images/ and annotations/"):
        load_data("ade20k", root=tmp_path / "images")


def test_the_layout_of_ade20k_with_other_classes(shared: Path):
    data = load_data("ade20k", root=shared / "data" / "ade20k_layout")
    assert (len(data), data.num_classes) == (48, 11)
    assert len(load_data("ade20k", "train", root=shared / "data" / "ade20k_layout")) == 160
    assert (data[0].target.min(), data[0].target.max()) == (-1, 10)


def test_samples_of_ade20k_have_150_classes(shared: Path):
    data = load_data("ade20k", root=shared / "data" / "ade20k_samples")
    assert (len(data), data.num_classes) == (3, 150)
    item = data[2]
    stored = np.asarray(Image.open(shared / "data/ade20k_samples/annotations/validation/ADE_val_00000003.png"))
    assert np.array_equal(item.target, stored.astype(int) - 1)


def test_voc_has_palettes_and_borders(tmp_path: Path):
    home = tmp_path / "VOCdevkit" / "VOC2012"
    (home / "ImageSets" / "Segmentation").mkdir(parents=True)
    (home / "ImageSets" / "Segmentation" / "train.txt").write_text("a\nb\n")
    for name in "ab":
        save(home / "JPEGImages" / f"{name}.jpg", np.zeros((2, 3, 3)))
        save(home / "SegmentationClass" / f"{name}.png", np.array([[0, 20, 255], [1, 2, 3]]), "P")
    data = load_data("voc2012", "train", root=tmp_path)
    assert (len(data), data.num_classes, data.classes[20]) == (2, 21, "screen")
    assert data[1].target.tolist() == [[0, 20, -1], [1, 2, 3]]
    with pytest.raises(DataError, match=r"Pascal VOC 2012 is not there: looked for ImageSets/Segmentation/"):
        load_data("voc2012", root=tmp_path / "none")


def test_pets_are_told_from_their_background(tmp_path: Path):
    home = tmp_path / "oxford-iiit-pet"
    (home / "annotations").mkdir(parents=True)
    (home / "annotations" / "trainval.txt").write_text("Abyssinian_1 1 1 1\n")
    (home / "annotations" / "test.txt").write_text("beagle_7 2 2 1\n")
    for name in ("Abyssinian_1", "beagle_7"):
        save(home / "images" / f"{name}.jpg", np.zeros((1, 3, 3)))
        save(home / "annotations" / "trimaps" / f"{name}.png", np.array([[1, 2, 3]]))
    data = load_data("oxford-pet", root=tmp_path)
    assert (data.split, data.paths, data.classes) == ("test", ["images/beagle_7.jpg"], ["pet", "background"])
    assert data[0].target.tolist() == [[0, 1, -1]]


def test_imagenet_s_has_a_class_for_every_pixel(shared: Path):
    data = load_data("imagenet-s-maps", root=shared / "data" / "ImageNetS919", images=24)
    assert (data.num_classes, data.classes[0]) == (920, "other")
    for i in range(0, 24, 8):
        item = data[i]
        assert set(np.unique(item.target).tolist()) <= {-1, 0, item.label}
        assert item.label in item.target


def test_scenes_are_drawn_from_the_seed_and_from_digits_of_their_own_part():
    first, again, other = load_data("digit-scenes"), load_data("digit-scenes"), load_data("digit-scenes/7")
    assert (len(first), first.num_classes, first.split) == (500, 11, "test")
    assert np.array_equal(np.asarray(first[3].image), np.asarray(again[3].image))
    assert not np.array_equal(first[3].target, other[3].target)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    assert not set(held_apart("train")) & set(held_apart("test"))
    assert len(held_apart("train")) + len(held_apart("test")) == 5000
    with pytest.raises(DataError, match="expected a seed, as in digit-scenes/7"):
        load_data("digit-scenes/x")


def test_the_map_of_a_scene_says_which_ink_is_whose():
    digits, labels = embedded_digits()
    chosen = held_apart("test")[:4]
    picture, classes = draw_scene(digits[chosen], labels[chosen], np.random.default_rng(1))
    assert np.array_equal(classes > 0, picture >= INK)
    assert set(np.unique(classes)) <= {0, *(labels[chosen] + 1)}
    alone, whose = draw_scene(digits[chosen[:1]], labels[chosen[:1]], np.random.default_rng(2))
    rows, columns = (np.flatnonzero((whose > 0).any(axis)) for axis in (1, 0))
    height, width = rows[-1] + 1 - rows[0], columns[-1] + 1 - columns[0]
    assert SMALLEST <= max(height, width) <= LARGEST
    ink = digits[chosen[0]][np.ix_(*(np.flatnonzero((digits[chosen[0]] > 0).any(axis)) for axis in (1, 0)))]
    expected = Image.fromarray(ink).resize((int(width), int(height)), Image.Resampling.BILINEAR)
    assert np.array_equal(alone[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], np.asarray(expected))
    counts = [len(np.unique(Scenes("train")[i][1])) for i in range(40)]
    assert min(counts) >= 2  # background and a digit, or two of the same
    assert np.mean(counts) > 3
