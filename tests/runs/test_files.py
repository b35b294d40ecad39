"""atomic_write: the old file or the new one, never half, and a clear word when the disk says no."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from vitscope.errors import RunError
from vitscope.runs.files import atomic_write, make_folder, remove_leftovers


def test_text_and_bytes_arrive_and_parents_are_made(tmp_path: Path) -> None:
    assert atomic_write(tmp_path / "a" / "b.txt", "grün").read_bytes() == "grün".encode()
    assert atomic_write(tmp_path / "a" / "b.txt", b"\x00\xff").read_bytes() == b"\x00\xff"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b.txt"]


def test_a_name_that_is_not_utf8_is_written_as_json_reads_it(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    text = json.dumps({"split": name}, ensure_ascii=False)
    assert json.loads(atomic_write(tmp_path / "a.json", text).read_text(encoding="utf-8")) == {"split": name}


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RunError, match=r"out.*(file, not a folder|already a file).*--out"):
        atomic_write(tmp_path / "out" / "table.csv", "x")
    with pytest.raises(RunError, match="already a file"):
        make_folder(tmp_path / "out")


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission denied")],
)
def test_disk_errors_are_explained_and_the_old_file_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    target = atomic_write(tmp_path / "t.csv", "old")

    def refuse(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunError, match=words):
        atomic_write(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_really_does_not_fit_leaves_the_old_one_and_no_temporary(tmp_path: Path) -> None:
    target = atomic_write(tmp_path / "t.csv", "old")
    script = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        from vitscope.errors import RunError
        from vitscope.runs import atomic_write
        try:
            atomic_write({str(target)!r}, "x" * 5000)
        except RunError as error:
            raise SystemExit(f"refused: {{error}}")
    """
    done = _python(script)
    assert done.returncode == 1
    assert "refused: Cannot write" in done.stderr
    assert "file size" in done.stderr
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_really_full_disk_says_so(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f"""
        import subprocess, sys
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", {str(disk)!r}]).returncode:
            raise SystemExit("no mount")
        from pathlib import Path
        from vitscope.errors import RunError
        from vitscope.runs import Run, atomic_write
        target = atomic_write({str(disk / "t.csv")!r}, "old")
        try:
            atomic_write(target, "x" * 200_000)
        except RunError as error:
            print("refused:", error, "| left:", [p.name for p in Path({str(disk)!r}).iterdir()], target.read_text())
        Path({str(disk / "filler")!r}).write_bytes(b"x" * (16 * 4096 - 2 * 4096))  # 64 k in pages, two are in use
        try:
            Run.create({str(disk / "run")!r}, {{}}, kind="analyze")
        except RunError as error:
            print("refused:", error)
        subprocess.run(["mount", "-o", "remount,ro", {str(disk)!r}], check=True)
        try:
            atomic_write(target, "new")
        except RunError as error:
            print("refused:", error)
    """
    try:  # a mount of its own, invisible outside and gone with the process
        done = subprocess.run(
            ["unshare", "--mount", "--user", "--map-root-user", sys.executable, "-c", textwrap.dedent(script)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("no `unshare` command to mount a tiny disk with")
    if "no mount" in done.stderr or done.stderr.startswith("unshare:"):
        pytest.skip("this user may not mount a tiny disk")
    assert done.returncode == 0, done.stderr
    full, no_run, read_only = done.stdout.splitlines()
    assert "disk is full" in full
    assert "left: ['t.csv'] old" in full
    assert "disk is full" in no_run
    assert "read-only" in read_only


def test_a_killed_writer_leaves_the_old_file_and_the_next_run_sweeps_up(tmp_path: Path) -> None:
    target = atomic_write(tmp_path / "t.csv", "old")
    script = f"""
        import os, time
        from vitscope.runs import atomic_write
        os.fsync = lambda fd: (print("half", flush=True), time.sleep(60))
        atomic_write({str(target)!r}, "new")
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    leftovers = set(tmp_path.iterdir()) - {target}
    assert len(leftovers) == 1
    remove_leftovers(tmp_path)
    assert leftovers < set(tmp_path.iterdir()), "a live process's temporary file is in use"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert target.read_text() == "old"
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [target]


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    target = atomic_write(tmp_path / "t", "0" * 300_000)
    script = f"""
        from vitscope.runs import atomic_write
        for i in range(40):
            atomic_write({str(target)!r}, str(i % 10) * 300_000)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    while process.poll() is None:
        text = target.read_text()
        assert len(text) == 300_000
        assert len(set(text)) == 1
        time.sleep(0.001)
    assert process.returncode == 0


def _python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
