"""One writer per folder, with real processes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vitscope.errors import RunError
from vitscope.runs.lock import FolderLock, lock_holder

HOLD = """
    import sys, time
    from pathlib import Path
    from vitscope.runs.lock import FolderLock
    lock = FolderLock(Path(sys.argv[1]))
    print("held", flush=True)
    time.sleep(60)
"""


def _holder(folder: Path, script: str = HOLD) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.stdout.close()
    return process


def test_a_second_process_is_refused_with_the_pid_and_a_kill_frees_the_folder(tmp_path: Path) -> None:
    process = _holder(tmp_path)
    try:
        with pytest.raises(RunError, match=rf"process {process.pid} on .*--out"):
            FolderLock(tmp_path)
        holder = lock_holder(tmp_path)
        assert holder is not None
        assert holder["pid"] == process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert lock_holder(tmp_path) is None
    lock = FolderLock(tmp_path)
    assert lock.held
    lock.release()


def test_a_worker_that_outlives_its_killed_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    fork_and_hold = """
        import os, sys, time
        from pathlib import Path
        from vitscope.runs.lock import FolderLock
        lock = FolderLock(Path(sys.argv[1]))
        child = os.fork()
        if child == 0:
            Path(sys.argv[1], "child").write_text(str(os.getpid()))
            print("held", flush=True)
        time.sleep(60)
    """
    process = _holder(tmp_path, fork_and_hold)
    child = int((tmp_path / "child").read_text())
    try:
        with pytest.raises(RunError, match=f"process {process.pid}"):
            FolderLock(tmp_path)  # the child's existence did not free it either
        process.kill()
        process.wait()
        FolderLock(tmp_path).release()
    finally:
        process.kill()
        os.kill(child, signal.SIGKILL)


def test_the_same_process_is_told_that_it_holds_the_lock_itself(tmp_path: Path) -> None:
    first = FolderLock(tmp_path)
    with pytest.raises(RunError, match=f"this very process .pid {os.getpid()}"):
        FolderLock(tmp_path)
    first.release()
    FolderLock(tmp_path).release()


def test_a_forgotten_lock_is_freed_with_its_object(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    del lock
    gc.collect()
    assert lock_holder(tmp_path) is None
