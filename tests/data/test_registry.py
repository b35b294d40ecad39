from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from vitscope.data import list_datasets, load_data, register_dataset
from vitscope.errors import DataError

MODULE = """
import numpy as np
from vitscope.data import register_dataset

def plain():
    return np.zeros((10, 4, 4), np.uint8), [0, 1] * 5

def with_splits(split, root=None):
    return np.zeros((4, 4, 4), np.uint8), [0] * 4, [split]

@register_dataset("declared-by-module", splits=("train", "test"))
def declared(split):
    return np.zeros((4, 4, 4), np.uint8), [0] * 4, [split]

def broken():
    raise KeyError("oops")

def greedy(size):
    pass

CONSTANT = 3
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    for name in [m for m in sys.modules if m.startswith("my_datasets")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def my_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"my_datasets_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / "broken_one.py").write_text("import a_module_that_does_not_exist")
    monkeypatch.chdir(tmp_path)
    return name


def test_the_datasets_of_the_package_are_listed() -> None:
    expected = {"mnist5k", "mnist", "fashion-mnist", "cifar10", "cifar100", "folder", "imagenet", "imagenet-s"}
    assert expected <= set(list_datasets())


def test_a_decorated_function_is_a_dataset() -> None:
    @register_dataset("My_Squares")
    def squares():  # type: ignore[no-untyped-def]
        return np.full((10, 4, 4), 255, np.uint8), [0] * 10, ["square"]

    assert "my-squares" in list_datasets()
    data = load_data("my_squares")
    assert (len(data), data.classes, data.split) == (10, ["square"], "all")
    assert (len(load_data("my-squares", "train")), len(load_data("my-squares", "test"))) == (8, 2)


def test_a_function_of_a_module_in_the_current_directory_is_a_dataset(my_datasets: str) -> None:
    data = load_data(f"{my_datasets}:plain")
    assert (len(data), data.num_classes, data.name) == (10, 2, f"{my_datasets}:plain")
    assert load_data(f"{my_datasets}:with_splits", "validation").classes == ["val"]
    assert load_data(f"{my_datasets}:declared").classes == ["test"]
    assert load_data("declared-by-module", "train").classes == ["train"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package.module:function", "no module 'no_such_package'"),
        ("broken_one:function", "needs 'a_module_that_does_not_exist'"),
        ("{module}:plane", "no 'plane' in .* Did you mean plain"),
        ("{module}:CONSTANT", "is not a dataset: expected a function"),
        ("{module}:broken", "failed: KeyError: 'oops'"),
        ("{module}:greedy", "requires size"),
        ("{module}:with_splits", "has splits: say which one"),
    ],
)
def test_what_is_wrong_with_a_users_dataset_is_said(my_datasets: str, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_data(name.format(module=my_datasets))


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(DataError, match=r"no dataset and no folder 'fashionmnist'\. Did you mean fashion-mnist"):
        load_data("fashionmnist")


def test_a_folder_of_label_maps_that_is_none_is_refused_by_the_name_of_its_option(tmp_path):
    from vitscope.data.registry import check_labels

    (tmp_path / "maps").mkdir()
    (tmp_path / "file.png").write_bytes(b"")
    check_labels("maps", tmp_path)
    check_labels(None)
    with pytest.raises(DataError, match=r"labels='map' does not exist: expected the folder with the label maps"):
        check_labels("map", tmp_path)
    with pytest.raises(DataError, match="is a file"):
        check_labels(tmp_path / "file.png")
