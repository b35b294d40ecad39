from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from vitscope.errors import VitscopeError
from vitscope.interrupt import Interrupted
from vitscope.sweeps import execution, make_plan, sweep
from vitscope.sweeps.job import Job

WORDS = [
    "--recipe", "quick", "--share", "0.025", "--epochs", "3", "--batch-size", "64",
    "--probe-images", "60", "--probe-splits", "test",
    "--model-options", "depth=3", "embed_dim=16", "num_heads=2", "patch_size=14", "--vary", "smoothing=0,0.1",
    "--seeds", "1", "--threads", "1", "--cluster", "local", "--no-progress", "--probe", "separation",
]  # fmt: skip


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vitscope", "sweep", *WORDS, "--workers", "2", "--out", "sweep"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def test_a_sweep_killed_with_all_its_runs_gives_the_same_tables(tmp_path, tiny, here):
    pytest.importorskip("submitit", reason="sweeps need submitit: pip install 'vitscope[sweep]'")
    options = tiny("straight", epochs=3, probe=("separation",))
    straight = sweep(options, {"smoothing": ["0", "0.1"]}, seeds=1, threads=1, cluster="local")
    first = start(tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("sweep/runs/*/checkpoints/last")):  # at least one is in its second epoch
        assert first.poll() is None, first.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = start(tmp_path)
    output, _ = second.communicate(timeout=200)
    assert second.returncode == 0, output
    for name in ("sweep_runs", "sweep_summary", "sweep_profile"):
        killed = (tmp_path / "sweep" / "tables" / f"{name}.csv").read_bytes()
        assert killed == (straight.tables_dir / f"{name}.csv").read_bytes()


def test_told_to_stop_a_sweep_ends_its_runs(tmp_path, tiny, monkeypatch):
    pytest.importorskip("submitit", reason="sweeps need submitit: pip install 'vitscope[sweep]'")
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr(execution, "Job", lambda *_: partial(time.sleep, 300))  # a real process that trains nothing
    monkeypatch.setattr(execution, "FAREWELL", 0.5)  # it hears no SIGTERM
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("the sweep does not listen to SIGTERM"))
    seen: list[psutil.Process] = []
    others = {child.pid for child in psutil.Process().children(recursive=True)}  # of earlier tests

    def stop() -> None:
        while not any("submitit.core._submit" in " ".join(child.cmdline()) for child in seen):
            seen[:] = [child for child in psutil.Process().children(recursive=True) if child.pid not in others]
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop, daemon=True)
    plan = make_plan(tiny(), {}, 2, tmp_path / "runs")
    how = {"cluster": "local", "workers": 1, "threads": 1, "slurm": {}, "command": None, "on_done": lambda *_: None}
    try:
        stopper.start()
        with pytest.raises(Interrupted, match=r"0 of 2 runs are finished\. The same command again goes on from here"):
            execution.carry_out(plan, tmp_path / "logs", **how)
    finally:
        signal.signal(signal.SIGTERM, before)
    stopper.join(5)
    assert seen
    assert [child for child in seen if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []


def test_on_slurm_only_ctrl_c_cancels_jobs():
    cancelled = []
    jobs = [SimpleNamespace(job_id=f"17_{i}", cancel=lambda: cancelled.append(1)) for i in range(2)]
    assert "`scancel 17` ends them" in execution._leave(jobs, signal.SIGTERM)
    assert not cancelled
    execution._leave(jobs, signal.SIGINT)
    assert len(cancelled) == 2


def test_threads_are_divided_between_the_workers(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert [execution.default_threads("local", n) for n in (1, 3, 8, 20)] == [8, 2, 1, 1]
    assert execution.default_threads("slurm", 3) == 1


@pytest.mark.parametrize(("said", "threads"), [("2", 2), ("3,1", 3), ("0", 8), ("many", 8), ("", 8)])
def test_threads_are_those_that_openmp_was_told(monkeypatch, said, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert execution.default_threads("local", 1) == threads


def test_runs_of_a_sweep_get_the_threads_that_openmp_was_told(monkeypatch, tiny, here):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(Job, "__call__", lambda self: None)
    sweep(tiny(), {}, seeds=1, cluster="local")
    sweep(tiny(), {}, seeds=1, cluster="local", threads=2)
    assert [job.threads for executor in here for job in executor.submitted] == [3, 2]


def test_slurm_is_chosen_where_one_answers(monkeypatch):
    monkeypatch.setattr(execution, "_slurm_answers", lambda: True)
    assert execution.choose_cluster("auto") == "slurm"
    assert execution.choose_cluster("local") == "local"
    monkeypatch.setattr(execution.shutil, "which", lambda _: None)
    with pytest.raises(VitscopeError, match="--cluster local"):
        execution.choose_cluster("slurm")
