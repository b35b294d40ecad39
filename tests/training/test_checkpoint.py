from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from vitscope.errors import NumericalError, RunError, WeightsError
from vitscope.training import checkpoint
from vitscope.training.checkpoint import BEST, LAST, PREVIOUS, load_checkpoint, newest_checkpoint, save_checkpoint


def save(folder: Path, number: float, name: str = LAST) -> None:
    save_checkpoint(folder, name, {"w": torch.full((3,), number)}, {"progress": {"epoch": number}})


def epoch_of(path: Path | None) -> float:
    assert path is not None
    loaded = load_checkpoint(path)
    assert loaded.weights["w"].tolist() == [loaded.state["progress"]["epoch"]] * 3
    return loaded.state["progress"]["epoch"]


def test_a_checkpoint_comes_back_and_the_one_before_it_is_kept(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) == (None, [])
    for number in (1.0, 2.0, 3.0):
        save(tmp_path, number)
    assert epoch_of(tmp_path / LAST) == 3
    assert epoch_of(tmp_path / PREVIOUS) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == [LAST, PREVIOUS]


@pytest.mark.parametrize("file", ["model.safetensors", "training_state.pt", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(tmp_path: Path, file: str, damage: str) -> None:
    save(tmp_path, 1.0)
    save(tmp_path, 2.0)
    victim = tmp_path / LAST / file
    content = victim.read_bytes()
    if damage == "truncated":
        victim.write_bytes(content[: len(content) // 2])
    elif damage == "altered":
        middle = len(content) // 2
        victim.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        victim.unlink()
    path, remarks = newest_checkpoint(tmp_path)
    assert epoch_of(path) == 1
    assert len(remarks) == 1
    assert "last" in remarks[0]
    save(tmp_path, 2.0)  # the good one stays the one before
    assert epoch_of(tmp_path / PREVIOUS) == 1


def test_with_both_damaged_training_begins_anew(tmp_path: Path) -> None:
    save(tmp_path, 1.0)
    save(tmp_path, 2.0)
    for name in (LAST, PREVIOUS):
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    path, remarks = newest_checkpoint(tmp_path)
    assert path is None
    assert len(remarks) == 2


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs that a handler for errors would run."""


@pytest.mark.parametrize("moment", range(3))
def test_a_kill_between_any_two_renames_leaves_a_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    save(tmp_path, 1.0)
    save(tmp_path, 2.0)
    calls = iter(range(10))

    def dying(real):
        def step(*args: Path) -> None:
            if next(calls) == moment + 1:  # the first call only clears the place to write in
                raise Killed
            real(*args)

        return step

    for name in ("_rename", "_remove"):
        monkeypatch.setattr(checkpoint, name, dying(getattr(checkpoint, name)))
    with pytest.raises(Killed):
        save(tmp_path, 3.0)
    monkeypatch.undo()
    found = epoch_of(newest_checkpoint(tmp_path)[0])
    assert found == 2
    save(tmp_path, 3.0)
    assert epoch_of(newest_checkpoint(tmp_path)[0]) == 3


def test_weights_that_are_not_finite_never_replace_good_ones(tmp_path: Path) -> None:
    save(tmp_path, 1.0)
    with pytest.raises(NumericalError, match="w"):
        save(tmp_path, float("nan"))
    assert epoch_of(newest_checkpoint(tmp_path)[0]) == 1


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1.0)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="disk is full"):
        save(tmp_path, 2.0)
    monkeypatch.undo()
    assert epoch_of(newest_checkpoint(tmp_path)[0]) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == [LAST]


def test_best_stands_alone(tmp_path: Path) -> None:
    save(tmp_path, 1.0, BEST)
    save(tmp_path, 2.0, BEST)
    assert epoch_of(tmp_path / BEST) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == [BEST]


class RunsCode:
    def __reduce__(self) -> tuple:
        return (os.system, ("echo pwned",))


def test_a_state_that_would_run_code_is_refused(tmp_path: Path) -> None:
    import hashlib
    import json

    save(tmp_path, 1.0)
    evil = pickle.dumps(RunsCode())
    (tmp_path / LAST / "training_state.pt").write_bytes(evil)
    manifest = json.loads((tmp_path / LAST / "checkpoint.json").read_text())
    manifest["sha256"]["training_state.pt"] = hashlib.sha256(evil).hexdigest()
    (tmp_path / LAST / "checkpoint.json").write_text(json.dumps(manifest))
    with pytest.raises(WeightsError):
        load_checkpoint(tmp_path / LAST)
