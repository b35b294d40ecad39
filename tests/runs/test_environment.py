"""environment.json holds what is needed to run again."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from vitscope.runs.environment import command_line, describe_environment, find, git_state


def test_versions_seed_device_command_and_fingerprint_are_recorded() -> None:
    config = {"seed": 3, "device": "cpu", "data": {"seed": 9, "fingerprint": "abc"}}
    found = describe_environment(config, ["vitscope", "analyze", "a b"])
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["versions"]["vitscope"] == metadata.version("vitscope")
    assert (found["seed"], found["device"], found["data_fingerprint"]) == (3, "cpu", "abc")
    assert found["command"] == "vitscope analyze 'a b'"


def test_without_a_command_the_process_s_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["prog", "x y"])
    assert command_line() == "prog 'x y'"
    assert command_line("as given") == "as given"


def test_the_shallowest_value_wins() -> None:
    assert find({"deep": {"deeper": {"seed": 1}, "seed": 2}}, "seed") == 2
    assert find({"a": [1]}, "seed") is None


def test_git_state_of_a_repository_and_of_none(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    assert git_state(outside) is None

    def git(*args: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
        return subprocess.run(
            ["git", *who, *args], cwd=inside, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    (inside / "f").write_text("1")
    git("add", "f")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "HEAD")
    assert git_state(inside) == {"commit": commit, "branch": "main", "changed_files": 0}
    (inside / "f").write_text("2")
    (inside / "g").write_text("2")
    state = git_state(inside)
    assert state is not None
    assert state["changed_files"] == 2
