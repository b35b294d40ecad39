from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from vitscope.data import load_data
from vitscope.errors import DataError

datasets = pytest.importorskip("torchvision.datasets")


@pytest.fixture
def fake_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of CIFAR-10's format with ten pictures each; torchvision is told their checksums."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)

    def write(name: str, content: dict[str, object]) -> tuple[str, str]:
        raw = pickle.dumps(content)
        (folder / name).write_bytes(raw)
        return name, hashlib.md5(raw).hexdigest()

    def part(name: str) -> tuple[str, str]:
        return write(name, {"data": rng.integers(0, 256, (10, 3072), dtype=np.uint8), "labels": list(range(10))})

    meta = write("batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [list(part(f"data_batch_{i}")) for i in range(1, 6)])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [list(part("test_batch"))])
    monkeypatch.setattr(datasets.CIFAR10, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    return tmp_path


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_cifar10_is_what_torchvision_reads(fake_cifar10: Path, inside: str) -> None:
    for split, train in (("train", True), ("val", False)):
        theirs = datasets.CIFAR10(fake_cifar10, train=train)
        ours = load_data("cifar10", split, root=fake_cifar10 / inside)
        assert ours.labels == theirs.targets
        assert ours.classes == list("abcdefghij")
        assert np.array_equal(np.asarray(ours[3].image), np.asarray(theirs[3][0]))
        assert not ours.has_masks


def test_a_changed_file_is_not_unpickled(fake_cifar10: Path) -> None:
    path = fake_cifar10 / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DataError, match="CIFAR10 is not complete"):
        load_data("cifar10", root=fake_cifar10)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_missing_files_say_what_to_type(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="root=FOLDER, or download=True") as caught:
        load_data(name, root=tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_failed_download_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(datasets, "CIFAR100", offline)
    with pytest.raises(DataError, match=r"could not be downloaded.*no route to host"):
        load_data("cifar100", root=tmp_path, download=True)
