"""Hugging Face datasets, saved by the package itself; TensorFlow's only as far as the answer without their package."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitscope.cli import run
from vitscope.data import ImageData, Source, load_data
from vitscope.data.hugging_face import TablePictures
from vitscope.data.source import as_source
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess
from vitscope.outside import only_named, reading

datasets = pytest.importorskip("datasets")


def encoded(data: ImageData, i: int) -> bytes:
    file = io.BytesIO()
    data[i].image.save(file, "PNG")
    return file.getvalue()


def table_of(data: ImageData, names: tuple[str, str] = ("image", "label")) -> Any:
    image, label = names
    rows = {image: [{"bytes": encoded(data, i), "path": None} for i in range(len(data))], label: data.labels}
    features = datasets.Features({image: datasets.Image(), label: datasets.ClassLabel(names=data.classes)})
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return load_data("mnist5k", "test", images=60, masks=False)


@pytest.fixture(scope="module")
def saved(digits: ImageData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    splits = {"train": table_of(digits.subset(range(40))), "test": table_of(digits.subset(range(40, 60)))}
    datasets.DatasetDict(splits).save_to_disk(str(root / "Digits"))
    return root


def test_a_saved_table_holds_its_pictures_and_labels(digits: ImageData, saved: Path) -> None:
    data = load_data("hfds/Digits", "train", root=saved)
    assert (len(data), data.split, data.name) == (40, "train", "hfds/Digits")
    assert (data.labels, data.classes, data.warnings) == (digits.labels[:40], digits.classes, [])
    assert all(np.array_equal(data[i].image, digits[i].image) for i in range(40))
    held_out = load_data("hfds", root=saved / "Digits")
    assert (len(held_out), held_out.split) == (20, "test")
    assert np.array_equal(held_out[3].image, digits[43].image)


def test_the_fingerprint_of_a_copy_is_the_same(saved: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(saved / "Digits", tmp_path / "copy")
    prints = [load_data("hfds", "test", root=root).fingerprint() for root in (saved / "Digits", tmp_path / "copy")]
    assert prints[0] == prints[1] != load_data("hfds/Digits", "train", root=saved).fingerprint()


def test_other_names_of_columns_and_rows_without_pictures(digits: ImageData, tmp_path: Path, small: Preprocess) -> None:
    table = table_of(digits.subset(range(6)), ("picture", "digit"))
    broken = table.to_dict()
    broken["picture"][4] = broken["digit"][5] = None
    datasets.Dataset.from_dict(broken, features=table.features).save_to_disk(str(tmp_path / "all"))
    data = load_data("hfds/all", root=tmp_path)
    assert (data.split, data.labels) == ("all", [*digits.labels[:5], -1])
    (batch,) = data.batches(small, 8)
    assert [(s.path, s.reason) for s in batch.skipped] == [("all[4]", "empty file (0 bytes)")]


def test_a_picture_that_is_only_an_address_is_not_fetched() -> None:
    rows = {"image": [{"bytes": None, "path": "https://example.invalid/0.png"}]}
    column = datasets.Features({"image": datasets.Image(decode=False)})
    images = TablePictures(datasets.Dataset.from_dict(rows, features=column), "image")
    data = ImageData(as_source(Source(images, [0], ["a"], names=["0"]), "t"), [0], name="t", split="all")
    with pytest.raises(DataError, match="no such file"):
        data[0]


def test_tables_without_labels_or_without_pictures(digits: ImageData, tmp_path: Path) -> None:
    table = table_of(digits.subset(range(4)))
    table.remove_columns("label").save_to_disk(str(tmp_path / "bare"))
    table.remove_columns("image").save_to_disk(str(tmp_path / "blind"))
    data = load_data("hfds/bare", root=tmp_path)
    assert (data.labels, data.warnings) == (
        [-1] * 4,
        ["bare has no column 'label' of whole numbers: labels are unknown."],
    )
    with pytest.raises(DataError, match=r"blind has no column of pictures: it has label"):
        load_data("hfds/blind", root=tmp_path)


def test_a_damaged_folder_is_answered_in_words(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text("{")
    with pytest.raises(DataError, match=r"cannot be opened: .*Save it again"):
        load_data("hfds", root=tmp_path)


def test_pictures_travel_to_worker_processes(saved: Path) -> None:
    data = load_data("hfds/Digits", "test", root=saved)
    preprocess = Preprocess((1, 28, 28), (0.5,), (0.5,), "bilinear", 1.0)
    here, there = ([batch.images for batch in data.batches(preprocess, 8, workers=w)] for w in (0, 1))
    assert len(here) == 3
    assert all(a.equal(b) for a, b in zip(here, there, strict=True))


def test_the_hub_is_asked_only_where_a_download_is_allowed(
    digits: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load_dataset(name: str) -> Any:
        asked.append(name)
        return datasets.DatasetDict({"validation": table_of(digits.subset(range(4)))})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"no Hugging Face dataset 'someone/digits' in .*--download"):
        load_data("hfds/someone/digits", root=tmp_path)
    with only_named(["analyze"]):
        reading("config.yaml")
        with pytest.raises(DataError, match="nothing was fetched because a file says so"):
            load_data("hfds/someone/digits", root=tmp_path, download=True)
    assert asked == []
    assert len(load_data("hfds/someone/digits", root=tmp_path, download=True)) == 4
    again = load_data("hfds/someone/digits", root=tmp_path)  # what came once is there
    assert (asked, again.split, again.labels) == (["someone/digits"], "val", digits.labels[:4])


@pytest.mark.parametrize(
    ("package", "name", "command"),
    [
        ("datasets", "hfds/Digits", r"pip install 'vitscope\[hfds\]'"),
        ("tensorflow_datasets", "tfds/mnist", r"pip install tensorflow-datasets array-record"),
    ],
)
def test_a_missing_package_is_named_before_anything_else(
    package: str, name: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *rest: None if n == package else found(n, *rest))
    with pytest.raises(DataError, match=f"needs {package}, which is not installed: {command}"):
        load_data(name, root="nowhere")
    assert run(["analyze", "no_such_model", "--data", name, "--root", "nowhere"]) == 2
    assert f"needs {package}" in capsys.readouterr().err
