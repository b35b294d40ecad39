from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import vitscope
from vitscope.data import Source, load_data, register_dataset
from vitscope.errors import DataError

Make = Callable[..., Path]


@pytest.fixture
def root(class_folders: Make) -> Path:
    return class_folders({"a": 20, "b": 10, "c": 5})


def test_load_data_is_the_packages_own_name() -> None:
    assert vitscope.load_data is load_data


def test_choices_are_applied_one_after_the_other(root: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\n" + "\n".join(f"{c}/{i:03d}.png" for c in "ab" for i in range(10)))
    listed = load_data(root, list_file=tmp_path / "list.csv")
    assert len(listed) == 20
    assert load_data(root, list_file=tmp_path / "list.csv", every=5).paths == listed.paths[::5]
    half = load_data(root, list_file=tmp_path / "list.csv", share=0.5)
    assert Counter(half.labels) == {0: 5, 1: 5}
    three = load_data(root, list_file=tmp_path / "list.csv", share=0.5, per_class=3)
    assert Counter(three.labels) == {0: 3, 1: 3}
    four = load_data(root, list_file=tmp_path / "list.csv", share=0.5, per_class=3, images=4)
    assert Counter(four.labels) == {0: 2, 1: 2}
    assert set(four.paths) < set(three.paths) < set(half.paths) < set(listed.paths)
    assert not four.warnings


def test_fewer_images_than_asked_for_is_a_warning_or_with_strict_an_error(root: Path) -> None:
    data = load_data(root, images=50)
    assert len(data) == 35
    assert data.warnings == ["Asked for 50 images, there are 35: all of them are used."]
    data = load_data(root, per_class=8)
    assert len(data) == 21
    assert "1 of 3 classes have fewer: 21 images are used instead of 24" in data.warnings[0]
    for options in ({"images": 50}, {"per_class": 8}):
        with pytest.raises(DataError, match="Asked for"):
            load_data(root, strict=True, **options)  # type: ignore[arg-type]


def empty_class(root: Path) -> None:
    (root / "d").mkdir()


def stray_image(root: Path) -> None:
    (root / "a" / "000.png").rename(root / "stray.png")


def loop(root: Path) -> None:
    (root / "a" / "again").symlink_to(root, target_is_directory=True)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (empty_class, "hold no images: d"),
        (stray_image, r"beside the class folders and are left out, e.g. stray.png"),
        (loop, "not followed"),
    ],
)
def test_what_is_doubtful_in_a_folder_is_a_warning_or_with_strict_an_error(
    root: Path, spoil: Callable[[Path], None], said: str
) -> None:
    assert len(load_data(root, strict=True)) == 35  # nothing to complain about yet
    spoil(root)
    (warning,) = load_data(root).warnings
    assert re.search(said, warning)
    with pytest.raises(DataError, match=said):
        load_data(root, strict=True)


def test_an_own_datasets_warnings_stop_a_strict_load_and_its_notes_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    @register_dataset("remarkable")
    def remarkable(split: str) -> Source:
        remarks = {"train": {"warnings": ("one is missing",)}, "test": {"notes": ("all are small",)}}
        return Source([np.zeros((2, 2), np.uint8)], [0], ["a"], **remarks[split])

    assert load_data("remarkable", "train").warnings == ["one is missing"]
    assert load_data("remarkable", "test", strict=True).warnings == ["all are small"]
    with pytest.raises(DataError, match="one is missing"):
        load_data("remarkable", "train", strict=True)


def test_pictures_without_class_folders_are_no_fault_under_strict(class_folders: Make) -> None:
    data = load_data(class_folders({".": 4}, name="flat"), strict=True)
    assert data.labels == [-1] * 4
    assert "no class folders" in data.warnings[0]


def test_a_path_may_be_relative_to_the_root_and_a_string(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(load_data(root.name, root=root.parent)) == 35
    monkeypatch.chdir(root.parent)
    assert len(load_data(f"./{root.name}")) == 35
    monkeypatch.chdir(root)
    assert load_data(".").name == root.name


def test_the_same_seed_chooses_the_same_pictures(root: Path) -> None:
    assert load_data(root, images=9, seed=4).paths == load_data(root, images=9, seed=4).paths
    assert load_data(root, images=9, seed=4).paths != load_data(root, images=9, seed=5).paths


def test_an_unknown_split_lists_those_there_are(root: Path) -> None:
    with pytest.raises(DataError, match=r"no split 'tset'\. Did you mean test"):
        load_data(root, "tset")
    assert load_data(root, "all").split == "all"


def test_per_class_needs_class_folders(class_folders: Make) -> None:
    root = class_folders({".": 4}, name="flat")
    assert len(load_data(root, images=2)) == 2
    with pytest.raises(DataError, match="per_class needs labels"):
        load_data(root, per_class=1)


def test_every_is_part_of_the_selection_only_where_it_chooses(root: Path) -> None:
    assert "every" not in load_data(root).selection
    assert load_data(root, every=2).selection["every"] == 2
