"""One writer per run folder.

The lock is an `flock` on RUN/.lock: the kernel releases it when its holder dies, whatever killed it, so there is no
stale lock to clean up. The file's text (pid, host, start) only serves the error message. A file that is deleted or
replaced locks nothing any more, so whoever writes asks `check()` whether it is still the same one.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import weakref
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from vitscope.errors import RunError
from vitscope.runs.files import explain
from vitscope.runs.shape import read_json

LOCK_NAME = ".lock"
_ATTEMPTS = 5  # at a file that is replaced again and again while it is being locked
_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """Held from construction to `release()`, garbage collection or the death of the process.

    `watch` is for further processes of one run: they take no lock, and notice all the same when it is gone.
    """

    def __init__(self, folder: Path, *, watch: bool = False) -> None:
        self.path, self.watch = folder / LOCK_NAME, watch
        self._fd: int | None = _open(self.path, create=False) if watch else _acquire(self.path)
        _held.add(self)
        _install_fork_hook()

    @property
    def held(self) -> bool:
        return self._fd is not None

    def check(self) -> None:
        """Raise RunError where the folder or its lock is not the one that this process took."""
        if self._fd is None or _same(self._fd, self.path):
            return
        if not self.path.parent.is_dir():
            raise RunError(
                f"The run folder {self.path.parent} was deleted while it was being written, and with it what was "
                "saved. This process stops; the same command again begins anew."
            )
        raise RunError(
            f"{self.path} was deleted or replaced while this process was writing {self.path.parent}: another one may "
            "be writing there now. This process stops and leaves everything as it is. When no other process writes "
            "there, the same command again goes on from what was saved."
        )

    def release(self) -> None:
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        if not self.watch:
            os.ftruncate(fd, 0)
        os.close(fd)  # closing the last descriptor of the open file releases the flock

    def forget(self) -> None:
        """In a forked child: drop the inherited descriptor. Unlocking here would unlock the parent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self.release()


@cache
def _install_fork_hook() -> None:
    """A data-loader worker that outlives a killed parent must not keep the folder locked."""
    os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


def _open(path: Path, *, create: bool) -> int | None:
    """A descriptor of the lock file; None where it is absent and not to be created.

    Links are never followed: what they lead to would be emptied.
    """
    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)  # a pipe of that name must not wait
    except OSError as error:
        if error.errno == errno.ENOENT and not create:
            return None
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            raise RunError(_no_lock(path)) from error
        raise explain(error, path) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RunError(_no_lock(path))
    return fd


def _no_lock(path: Path) -> str:
    return (
        f"{path} is a link, a folder or something else, where a plain file should be that vitscope may empty. Nothing "
        "was changed. Remove it if no process writes there, or choose another folder with --out."
    )


def _same(fd: int, path: Path) -> bool:
    """Is the open file still the one of that name? Its number cannot be given away again while it is open."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def _acquire(path: Path) -> int:
    for _ in range(_ATTEMPTS):
        fd = _open(path, create=True)
        assert fd is not None
        _flock(fd, path)
        if _same(fd, path):  # else it was deleted between the two steps, and locks nothing
            _sign(fd, path)
            return fd
        os.close(fd)
    raise RunError(f"{path} is being deleted again and again: another program is at work in {path.parent}.")


def _flock(fd: int, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise RunError(_refusal(path)) from None
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ENOLCK, errno.ENOTSUP):
            raise RunError(
                f"The file system of {path.parent} has no file locks, so two processes could overwrite each other's "
                "results. Choose a folder on a local disk with --out."
            ) from error
        raise explain(error, path) from error


def _sign(fd: int, path: Path) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now})
    try:
        os.ftruncate(fd, 0)
        os.write(fd, holder.encode())
    except OSError as error:  # a full disk
        os.close(fd)
        raise explain(error, path) from error


def _refusal(path: Path) -> str:
    holder = _holder_text(path)
    if not holder:
        who = "another process"
    elif holder["pid"] == os.getpid() and holder["host"] == socket.gethostname():
        who = f"this very process (pid {holder['pid']}), which has the run open already: close it first"
    else:
        who = f"process {holder['pid']} on {holder['host']} (since {holder['since']})"
    return (
        f"The run folder {path.parent} is being written by {who}. "
        "Wait until it is done, stop that process, or choose another folder with --out."
    )


def _holder_text(path: Path) -> dict[str, Any] | None:
    """What the holder wrote of itself, None where that cannot be read."""
    try:
        holder = read_json(path, {"pid": int, "host": str, "since": str}, "")
    except RunError:
        return None
    return holder if {"pid", "host", "since"} <= set(holder) else None


def lock_holder(folder: Path) -> dict[str, Any] | None:
    """Who writes this folder right now ({pid, host, since}), or None. Does not take the lock."""
    import fcntl

    try:
        fd = _open(folder / LOCK_NAME, create=False)
    except RunError:  # something else of that name: nobody has locked it
        return None
    if fd is None:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder_text(folder / LOCK_NAME) or {"pid": 0, "host": "?", "since": "?"}
    except OSError:
        return None
    finally:
        os.close(fd)
    return None
