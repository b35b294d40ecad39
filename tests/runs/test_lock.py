"""One writer per folder, with real processes."""

from __future__ import annotations

import gc
import os
import shutil
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


def test_a_link_named_lock_is_refused_and_what_it_leads_to_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    lock = tmp_path / "run" / ".lock"
    lock.parent.mkdir()
    for make in (lambda: lock.symlink_to(tmp_path / "thesis.tex"), lambda: lock.symlink_to("nowhere"), lock.mkdir):
        make()
        with pytest.raises(RunError, match=r"\.lock is a link, a folder .*Nothing was changed.*--out"):
            FolderLock(lock.parent)
        assert lock_holder(lock.parent) is None
        lock.unlink() if lock.is_symlink() else lock.rmdir()
    os.mkfifo(lock)
    with pytest.raises(RunError, match="a plain file should be"):
        FolderLock(lock.parent)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert not (lock.parent / "nowhere").exists()


ODD = [
    b"[]", b"3", b"null", b'"pid host since"', b'["pid", "host", "since"]', b"{}",
    b'{"pid": [], "host": 3, "since": 0}',
    b'{"pid": 1, "host": null, "since": ""}', b"\xff\xfe", b"[" * 100_000, b'{"pid": 1',
]  # fmt: skip


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_text_in_the_lock_costs_only_the_name_of_its_holder(tmp_path: Path, text: bytes) -> None:
    (tmp_path / ".lock").write_bytes(text)
    assert lock_holder(tmp_path) is None
    first = FolderLock(tmp_path)
    (tmp_path / ".lock").write_bytes(text)
    assert lock_holder(tmp_path) == {"pid": 0, "host": "?", "since": "?"}
    with pytest.raises(RunError, match="is being written by another process"):
        FolderLock(tmp_path)
    first.check()
    first.release()


def test_whoever_loses_the_lock_notices_and_leaves_the_next_holder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    first = FolderLock(folder)
    other_rank = FolderLock(folder, watch=True)
    for lock in (first, other_rank):
        lock.check()
    (folder / ".lock").unlink()
    for lock in (first, other_rank):
        with pytest.raises(RunError, match=r"\.lock was deleted or replaced"):
            lock.check()
    second = FolderLock(folder)
    for lock in (first, other_rank):
        with pytest.raises(RunError, match="another one may be writing there now"):
            lock.check()
        lock.release()
    second.check()
    holder = lock_holder(folder)
    assert holder is not None
    assert holder["pid"] == os.getpid()
    shutil.rmtree(folder)
    with pytest.raises(RunError, match=f"The run folder {folder} was deleted"):
        second.check()
