"""The whole example of docs/tasks.md: data, model and task of one's own, by the commands that stand there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

import vitscope
from vitscope.architectures.families import MODELS
from vitscope.cli import run
from vitscope.registry import DATASETS, TASKS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tasks.md").read_text()


def tables(folder: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(folder, "tables").iterdir()}


@pytest.fixture
def ages(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n# ages.py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "ages.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with DATASETS.restored(), TASKS.restored():
        yield
    sys.modules.pop("ages", None)
    MODELS.pop("ages.Encoder", None)


def test_the_example_trains_looks_inside_and_is_done_again(ages, capsys):
    commands = re.findall(r"^    vitscope (.*)$", PAGE, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["train", "analyze", "rerun"]
    for command in commands:
        assert run(shlex.split(command)) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    assert "(128 people)" in told
    assert " tokens " in told  # how far attention travels
    assert " px " not in told
    curve = vitscope.Run.open("runs/ages").table("training")
    assert curve["test_loss"].iloc[-1] < curve["test_loss"].iloc[0] / 2
    assert tables("runs/ages-inside") == tables("runs/ages-inside-rerun")
    for page in ("runs/ages", "runs/ages-inside"):
        assert "people" in Path(page, "report.html").read_text()

    assert run(["rerun", "runs/ages", "--trust", "--no-progress"]) == 0, capsys.readouterr().err
    assert tables("runs/ages") == tables("runs/ages-rerun")
    assert Path("runs/ages-rerun/report.html").is_file()
