"""docs/datasets.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from vitscope.data import list_datasets, load_data
from vitscope.registry import DATASETS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "datasets.md"


def test_the_dataset_of_ten_lines_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(import numpy.*?)```", PAGE.read_text(), re.DOTALL)
    body = code[code.index("@") :].strip().splitlines()
    assert len(body) <= 10
    (tmp_path / "shapes.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    data = load_data("shapes:shapes")
    assert (len(data), data.classes) == (200, ["disk", "square"])
    assert (len(load_data("shapes", "train")), len(load_data("shapes", "test"))) == (160, 40)
    assert data[99].image.getpixel((16, 16)) == 255
    assert data[0].image.getpixel((0, 0)) == 0


def test_the_tensors_of_ten_lines_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(import torch.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "walks.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with DATASETS.restored():
        data, chosen = load_data("walks:walks"), load_data("walks:walks", "train", images=6)
    assert (len(data), data.split, data.classes) == (500, "test", ["down", "up"])
    assert (chosen.split, sorted(chosen.labels)) == ("train", [0, 0, 0, 1, 1, 1])
    (batch,) = chosen.batches(None)
    assert torch.equal(batch.inputs.sum(1) > 0, batch.targets == 1)


def test_every_dataset_of_the_package_is_described() -> None:
    text = PAGE.read_text()
    own = [n for n in list_datasets() if DATASETS.get(n).function.__module__.startswith("vitscope.")]
    assert len(own) >= 8
    assert [name for name in own if f"`{name}`" not in text] == []
