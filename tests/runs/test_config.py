"""The resolved configuration survives YAML, and two of them differ readably."""

from __future__ import annotations

import dataclasses
import enum
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from vitscope.errors import RunError
from vitscope.runs.config import difference, dump_yaml, load_yaml, plain


class Mode(enum.Enum):
    FAST = "fast"


@dataclasses.dataclass(frozen=True)
class Options:
    lr: float = 1e-5
    sizes: tuple[int, ...] = (3, 28)


def test_what_people_put_into_options_becomes_plain_and_comes_back_from_yaml(tmp_path: Path) -> None:
    config = {
        "options": Options(), "path": Path("a/b"), "mode": Mode.FAST, "device": torch.device("cpu"),
        "n": np.int64(7), "x": np.float64(1 / 3), "tricky": ["1e-5", "yes", "null", "007"], "none": None, "on": True,
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    assert load_yaml(tmp_path / "config.yaml") == {
        "options": {"lr": 1e-5, "sizes": [3, 28]}, "path": "a/b", "mode": "fast", "device": "cpu",
        "n": 7, "x": 1 / 3, "tricky": ["1e-5", "yes", "null", "007"], "none": None, "on": True,
    }  # fmt: skip


def test_a_value_that_yaml_cannot_hold_is_named_with_its_place() -> None:
    with pytest.raises(RunError, match=r"config\.model\.weights is a Tensor"):
        plain({"model": {"weights": torch.zeros(2)}})


def test_yaml_on_disk_cannot_run_code(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("x: !!python/object/apply:os.getcwd []")
    with pytest.raises(RunError, match="not valid YAML"):
        load_yaml(tmp_path / "config.yaml")


def test_the_difference_names_each_changed_key() -> None:
    old = {"data": {"split": "val", "n": 10}, "analyses": ["accuracy"], "seed": 0, "gone": {}}
    new = {"data": {"split": "test", "n": 10.0}, "analyses": ["accuracy", "attention"], "seed": True}
    assert difference(old, new) == [
        "data.split: 'val' -> 'test'",
        "seed: 0 -> True",
        "gone: {} -> (absent)",
        "analyses.1: (absent) -> 'attention'",
    ]


def test_equal_configurations_do_not_differ_even_with_nan_and_after_yaml() -> None:
    config = {"a": math.nan, "b": 1e-7, "c": [1, {"d": "ü: #"}]}
    assert difference(yaml.safe_load(dump_yaml(config)), config) == []


def test_free_keys_and_all_below_them_do_not_count() -> None:
    old, new = {"workers": 0, "io": {"a": 1}, "iota": 1}, {"workers": 4, "io": {"a": 2}, "iota": 2}
    assert difference(old, new, free=["workers", "io"]) == ["iota: 1 -> 2"]
