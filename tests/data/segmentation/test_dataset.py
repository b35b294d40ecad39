from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitscope.data import SegmentationData, Source, load_data, register_dataset
from vitscope.data.segmentation.joint import Joint, JointOptions
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess

Pair = Callable[..., tuple[Path, Path]]
RECIPE = Preprocess((3, 16, 16), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bilinear", 0.9)


def test_two_folders_are_data_for_segmentation(pair: Pair):
    images, labels = pair("train/a", "train/b", "val/c")
    data = load_data(images, "train", labels=labels)
    assert isinstance(data, SegmentationData)
    assert (data.task, len(data), data.classes, data.split) == ("segmentation", 2, ["0", "1", "2", "3"], "train")
    item = data[0]
    assert np.array_equal(item.target, np.asarray(Image.open(labels / "train/a.png")))
    assert data.describe()["labels"] == str(labels)
    assert load_data(images, labels=labels).paths == ["val/c.png"]
    (labels / "classes.txt").write_text("sky\nsea\nsand\nship\n")
    assert load_data(images, labels=labels).classes == ["sky", "sea", "sand", "ship"]


def test_a_fingerprint_knows_the_maps(pair: Pair):
    images, labels = pair("a", "b")
    before = load_data(images, labels=labels).fingerprint()
    assert load_data(images, labels=labels).fingerprint() == before
    Image.fromarray(np.zeros((20, 30), np.uint8)).save(labels / "b.png")
    assert load_data(images, labels=labels).fingerprint() != before


def test_pictures_are_chosen_as_elsewhere(pair: Pair):
    images, labels = pair(*"abcdefgh")
    data = load_data(images, labels=labels, every=2)
    assert data.paths == ["a.png", "c.png", "e.png", "g.png"]
    assert len(load_data(images, labels=labels, images=3)) == 3
    some = data.subset([2, 0])
    assert isinstance(some, SegmentationData)
    assert some.paths == ["e.png", "a.png"]
    assert np.array_equal(some[0].target, data[2].target)


def test_whole_pictures_have_maps_of_their_own_size(pair: Pair):
    images, labels = pair("a", "b", "c", sizes=((20, 30), (40, 24)))
    data = load_data(images, labels=labels)
    batches = list(data.batches(RECIPE, 8))
    assert [tuple(b.inputs.shape) for b in batches] == [(1, 3, 16, 24), (1, 3, 26, 16), (1, 3, 16, 24)]
    assert [tuple(b.targets.shape) for b in batches] == [(1, 20, 30), (1, 40, 24), (1, 20, 30)]
    assert [b.number for b in batches] == [0, 1, 2]
    second = list(data.batches(RECIPE, 8, rank=1, world=2))
    assert [b.names for b in second] == [["b.png"]]
    alike = load_data(images, labels=labels, every=2)
    assert [len(b) for b in alike.batches(RECIPE, 8)] == [2]


def test_an_epoch_is_a_function_of_seed_and_epoch(pair: Pair):
    images, labels = pair(*"abcd", sizes=((20, 30), (40, 24)))
    data = load_data(images, labels=labels)
    joint = Joint(RECIPE, JointOptions())

    def epoch(number: int, **how: int) -> list[torch.Tensor]:
        found = list(data.learn(RECIPE, 2, seed=3, epoch=number, augment=joint, **how))
        assert all(b.inputs.shape == (2, 3, 16, 16) and b.targets.shape == (2, 16, 16) for b in found)
        return [torch.cat([b.inputs.flatten(1), b.targets.flatten(1)], 1) for b in found]

    first, again, other, late = epoch(0), epoch(0), epoch(1), epoch(0, start=1)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[1], late[0])
    plain = next(iter(data.learn(RECIPE, 4, seed=0, epoch=0)))
    assert plain.targets.shape == (4, 16, 16)


def test_a_missing_partner_is_listed_and_skipped_and_stops_what_is_strict(pair: Pair):
    images, labels = pair(*"abc")
    (labels / "b.png").unlink()
    data = load_data(images, labels=labels)
    assert data.warnings == ["1 of 3 images have no label map, e.g. b.png: skipped."]
    (batch,) = data.batches(RECIPE, 8)
    assert batch.names == ["a.png", "c.png"]
    assert [(s.path, s.reason) for s in batch.skipped] == [("b.png", "its label map: it is missing")]
    with pytest.raises(DataError, match=r"b.png: skipped. Leave strict"):
        load_data(images, labels=labels, strict=True)
    (images / "c.png").unlink()
    assert "1 label maps" in load_data(images, labels=labels).warnings[0]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (np.zeros((20, 31), np.uint8), r"b.png is 31 x 20 pixels, the image 30 x 20"),
        (np.full((20, 30), 4, np.uint8), r"b.png holds class 4, and there are 4 \(0 to 3; -1: ignored\)"),
        (np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8), "in colour; expected one number"),
    ],
)
def test_a_bad_map_is_skipped_with_its_reason(pair: Pair, wrong: np.ndarray, why: str):
    images, labels = pair("a", "b")
    (labels / "classes.txt").write_text("0\n1\n2\n3\n")
    Image.fromarray(wrong).save(labels / "b.png")
    (batch,) = load_data(images, labels=labels).batches(RECIPE, 8)
    assert batch.names == ["a.png"]
    with pytest.raises(DataError, match=why):
        list(load_data(images, labels=labels, strict=True).batches(RECIPE, 8))
    assert batch.skipped[0].path == "b.png"


def test_sixteen_bits_and_palettes_hold_numbers(pair: Pair):
    images, labels = pair("a", "b", "c")
    (labels / "classes.txt").write_text("\n".join(map(str, range(300))))
    wide = np.full((20, 30), 299, np.uint16)
    wide[0, :3] = (65535, 255, 256)
    Image.fromarray(wide).save(labels / "a.png")
    palette = Image.fromarray(np.arange(600, dtype=np.uint16).astype(np.uint8).reshape(20, 30) % 4, "P")
    palette.putpalette([200, 30, 40] * 256)  # all of one colour: the indices count
    palette.save(labels / "b.png")
    data = load_data(images, labels=labels, strict=True)
    assert data.warnings == ["Label maps have a palette, e.g. b.png: its indices are the classes, not its colours."]
    assert data[0].target[0, :4].tolist() == [-1, 255, 256, 299]
    assert np.array_equal(data[1].target, np.arange(600).reshape(20, 30) % 256 % 4)
    (labels / "classes.txt").write_text("\n".join(map(str, range(200))))
    narrow = np.full((20, 30), 199, np.uint16)
    narrow[0, 0] = 255
    Image.fromarray(narrow).save(labels / "a.png")
    assert load_data(images, labels=labels)[0].target[0, :2].tolist() == [-1, 199]


def test_folders_that_do_not_belong_together_are_refused(pair: Pair, tmp_path: Path):
    images, labels = pair("train/a", "val/b")
    with pytest.raises(DataError, match="does not exist"):
        load_data(images, labels=tmp_path / "nowhere")
    (labels / "train").rename(labels / "learn")
    (labels / "val").rename(labels / "check")
    with pytest.raises(DataError, match="splits are called the same in both"):
        load_data(images, labels=labels)
    with pytest.raises(DataError, match="None of the 1 pictures"):
        load_data(images / "train", labels=labels / "check")


def test_classes_in_another_order_are_renumbered(pair: Pair):
    images, labels = pair("a")
    data = load_data(images, labels=labels)
    turned = data.ordered_as(["3", "1", "0", "2"])
    expected = np.array([2, 1, 3, 0])[data[0].target]
    assert np.array_equal(turned[0].target, expected)
    assert np.array_equal(turned.ordered_as(data.classes)[0].target, data[0].target)


def test_a_function_of_ones_own_gives_maps():
    pictures = np.random.default_rng(0).integers(0, 256, (4, 12, 10, 3), dtype=np.uint8)
    maps = [np.full((12, 10), i) for i in range(3)]

    @register_dataset("own scenes")
    def own() -> Source:
        return Source(pictures, classes=["a", "b", "c"], maps=[*maps, None])

    data = load_data("own scenes")
    assert data.warnings == ["1 of 4 images have no label map, e.g. own scenes[3]: skipped."]
    (batch,) = data.batches(RECIPE, 8)
    assert [m.unique().tolist() for m in batch.targets] == [[0], [1], [2]]

    @register_dataset("few scenes")
    def few() -> Source:
        return Source(pictures, classes=["a"], maps=maps)

    with pytest.raises(DataError, match="expected one map for each image, and the names of all classes"):
        load_data("few scenes")
