from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitscope.errors import VitscopeError
from vitscope.sweeps import execution, sweep

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


def test_threads_are_divided_between_the_workers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert [execution.divided_threads(n) for n in (1, 3, 8, 20)] == [8, 2, 1, 1]


def test_slurm_is_chosen_where_one_answers(monkeypatch):
    monkeypatch.setattr(execution, "_slurm_answers", lambda: True)
    assert execution.choose_cluster("auto") == "slurm"
    assert execution.choose_cluster("local") == "local"
    monkeypatch.setattr(execution.shutil, "which", lambda _: None)
    with pytest.raises(VitscopeError, match="--cluster local"):
        execution.choose_cluster("slurm")
