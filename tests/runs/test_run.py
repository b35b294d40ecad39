"""A run folder: created, resumed, refused, overwritten, read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from vitscope.analyses.base import Headline
from vitscope.errors import NumericalError, RunError
from vitscope.runs import FORMAT, Run

CONFIG = {"model": {"name": "vit_tiny"}, "data": {"name": "mnist5k", "fingerprint": "f00"}, "seed": 3, "workers": 0}


def _create(path: Path, config: dict | None = None, **options: object) -> Run:
    return Run.create(path, CONFIG if config is None else config, **{"kind": "analyze", **options})  # type: ignore[arg-type]


def test_a_new_run_writes_what_it_was_asked_and_where(tmp_path: Path) -> None:
    with _create(tmp_path / "a" / "r", command="vitscope analyze vit_tiny") as run:
        assert run.label == "vit_tiny"
        assert (run.status, run.kind) == ("unfinished", "analyze")
        run.finish()
    read = Run.open(tmp_path / "a" / "r")
    assert read.config == CONFIG
    assert read.status == "finished"
    environment = json.loads((read.path / "environment.json").read_text())
    assert environment["command"] == "vitscope analyze vit_tiny"
    assert (environment["seed"], environment["data_fingerprint"]) == (3, "f00")


def test_tables_summary_timing_warnings_and_skipped_come_back(tmp_path: Path) -> None:
    table = pd.DataFrame({"block": [0, 1], "entropy": [0.1, 1 / 3], "name": ["7", "NA"]})
    with _create(tmp_path) as run:
        run.write_table("attention", table)
        run.write_summary({"top1": Headline(73.5, "%", 1000, "all classes")})
        run.write_summary({"top5": {"value": 92.1, "unit": "%", "n": 1000}})
        run.write_timing({"seconds": 12.5})
        run.log_warning("watch out")
        run.log_warning("watch out")
        run.write_skipped([(5, "b.png", "broken"), (2, "a.png", "empty")])
    read = Run.open(tmp_path)
    pd.testing.assert_frame_equal(read.table("attention"), table, check_exact=True)
    assert read.table("nothing") is None
    assert read.list_tables() == ["attention", "skipped"]
    assert read.summary["top1"] == {"value": 73.5, "unit": "%", "n": 1000, "note": "all classes"}
    assert set(read.summary) == {"top1", "top5"}
    assert read.timing == {"seconds": 12.5}
    assert read.warnings == ["watch out"]
    assert list(read.skipped["image"]) == [2, 5]


def test_a_run_without_skipped_images_has_an_empty_table_of_them(tmp_path: Path) -> None:
    with _create(tmp_path) as run:
        run.write_skipped([])
        assert len(run.skipped) == 0
        assert run.list_tables() == []


def test_nan_never_reaches_a_table_or_the_summary(tmp_path: Path) -> None:
    with _create(tmp_path) as run:
        with pytest.raises(NumericalError):
            run.write_table("t", pd.DataFrame({"x": [float("nan")]}))
        with pytest.raises(NumericalError, match="top1"):
            run.write_summary({"top1": Headline(float("nan"), "%", 3)})
        with pytest.raises(RunError, match="lacks n"):
            run.write_summary({"top1": {"value": 1.0, "unit": "%"}})
        with pytest.raises(RunError, match=r"top1\.n should be a whole number and is 'many'"):
            run.write_summary({"top1": {"value": 1.0, "unit": "%", "n": "many"}})
        run.write_table("t", pd.DataFrame({"x": [float("nan")]}), allow_nan=["x"])
        assert run.list_tables() == ["t"]


def test_the_same_configuration_resumes_and_keeps_what_is_there(tmp_path: Path) -> None:
    with _create(tmp_path) as run:
        run.write_table("t", pd.DataFrame({"x": [1]}))
    with _create(tmp_path) as run:
        assert run.list_tables() == ["t"]
        assert len(run.environment["resumed"]) == 1
        run.finish()
    with _create(tmp_path) as run:
        assert run.status == "finished"
        assert len(run.environment["resumed"]) == 1, "a finished run is looked at, not resumed"


def test_another_configuration_is_refused_with_the_difference_and_nothing_is_touched(tmp_path: Path) -> None:
    with _create(tmp_path) as run:
        run.write_table("t", pd.DataFrame({"x": [1]}))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(RunError, match=r"(?s)data\.name: 'mnist5k' -> 'mnist'.*--overwrite"):
        _create(tmp_path, {**CONFIG, "data": {"name": "mnist", "fingerprint": "f00"}})
    with pytest.raises(RunError, match=r"kind of run: 'analyze' -> 'train'"):
        _create(tmp_path, kind="train")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    _create(tmp_path).close()  # and the lock is free again


def test_free_keys_may_differ_on_resume(tmp_path: Path) -> None:
    _create(tmp_path).close()
    with pytest.raises(RunError, match="workers: 0 -> 4"):
        _create(tmp_path, {**CONFIG, "workers": 4})
    with _create(tmp_path, {**CONFIG, "workers": 4}, free=["workers"]):
        pass
    assert Run.open(tmp_path).config["workers"] == 4


def test_overwrite_removes_the_old_run_but_not_the_user_s_notes(tmp_path: Path) -> None:
    with _create(tmp_path) as run:
        run.write_table("old", pd.DataFrame({"x": [1]}))
        run.write_summary({"a": Headline(1, "", 1)})
        run.finish()
    (tmp_path / "my-notes.txt").write_text("mine")
    with _create(tmp_path, {**CONFIG, "seed": 4}, overwrite=True) as run:
        assert run.list_tables() == []
        assert run.summary == {}
        assert run.status == "unfinished"
    assert (tmp_path / "my-notes.txt").read_text() == "mine"


def test_a_foreign_folder_is_never_used_even_with_overwrite(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "config.yaml").write_text("another: program")
    for overwrite in (False, True):
        with pytest.raises(RunError, match="not a run of vitscope"):
            _create(tmp_path, overwrite=overwrite)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml", "thesis.tex"]


@pytest.mark.parametrize(("version", "word"), [(FORMAT - 1, "older"), (FORMAT + 1, "newer"), (None, "older")])
def test_other_folder_formats_are_refused_and_can_be_overwritten(
    tmp_path: Path, version: int | None, word: str
) -> None:
    _create(tmp_path).close()
    marker = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**marker, "format": version}))
    with pytest.raises(RunError, match=rf"{word} version .*{version} -> {FORMAT}.*--overwrite"):
        _create(tmp_path)
    with pytest.raises(RunError, match=f"{word} version"):
        Run.open(tmp_path)
    _create(tmp_path, overwrite=True).close()
    assert Run.open(tmp_path).config == CONFIG


def test_opening_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run folder"):
        Run.open(tmp_path / "absent")
    _create(tmp_path / "vit_tiny").close()
    with pytest.raises(RunError, match="holds the runs vit_tiny"):
        Run.open(tmp_path)


def test_a_run_opened_to_read_or_closed_cannot_write(tmp_path: Path) -> None:
    run = _create(tmp_path)
    run.close()
    for closed in (run, Run.open(tmp_path)):
        with pytest.raises(RunError, match="opened for reading"):
            closed.write_table("t", pd.DataFrame({"x": [1]}))


def test_two_processes_cannot_write_one_folder_and_a_killed_one_resumes(tmp_path: Path) -> None:
    script = f"""
        import time
        import pandas as pd
        from vitscope.runs import Run
        run = Run.create({str(tmp_path)!r}, {CONFIG!r}, kind="analyze")
        run.write_table("t", pd.DataFrame({{"x": [1]}}))
        print("writing", flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    for overwrite in (False, True):
        with pytest.raises(RunError, match=f"being written by process {process.pid}"):
            _create(tmp_path, overwrite=overwrite)
    reader = Run.open(tmp_path)
    assert reader.writer is not None
    assert reader.writer["pid"] == process.pid
    assert reader.list_tables() == ["t"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with _create(tmp_path) as run:
        assert run.list_tables() == ["t"]


def test_other_ranks_get_the_paths_without_lock_or_writes(tmp_path: Path) -> None:
    with _create(tmp_path) as first:
        before = sorted(tmp_path.rglob("*"))
        other = _create(tmp_path, lock=False)
        assert sorted(tmp_path.rglob("*")) == before
        assert other.state_dir == first.state_dir


@pytest.mark.parametrize("killed_after", ["run.json", "environment.json", "config.yaml"])
def test_a_kill_while_creating_leaves_a_folder_that_is_begun_again(tmp_path: Path, killed_after: str) -> None:
    script = f"""
        import os, signal
        import vitscope.runs.run as module
        write = module.atomic_write
        def write_and_die(path, data):
            write(path, data)
            if path.name == {killed_after!r}:
                os.kill(os.getpid(), signal.SIGKILL)
        module.atomic_write = write_and_die
        module.Run.create({str(tmp_path)!r}, {CONFIG!r}, kind="analyze")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    with _create(tmp_path) as run:
        run.write_table("t", pd.DataFrame({"x": [1]}))
    assert Run.open(tmp_path).config == CONFIG


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("")
    with pytest.raises(RunError, match="already a file"):
        _create(tmp_path / "r")


def test_a_run_prints_as_one_line(tmp_path: Path) -> None:
    with _create(tmp_path) as run:
        assert repr(run) == f"Run({str(tmp_path)!r}, label='vit_tiny', unfinished)"


@pytest.mark.parametrize("damage", ["", "[]", '{"status": 3}', "\x00"])
def test_a_run_that_cannot_be_read_any_more_can_be_overwritten(tmp_path: Path, damage: str) -> None:
    _create(tmp_path).close()
    (tmp_path / "run.json").write_text(damage)
    for opened in (lambda: Run.open(tmp_path), lambda: _create(tmp_path)):
        with pytest.raises(RunError, match=r"run\.json .*--overwrite"):
            opened()
    _create(tmp_path, overwrite=True).close()
    assert Run.open(tmp_path).config == CONFIG
