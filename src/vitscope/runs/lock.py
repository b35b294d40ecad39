"""One writer per run folder.

The lock is an `flock` on RUN/.lock: the kernel releases it when its holder dies, whatever killed it, so there is no
stale lock to clean up. The file's text (pid, host, start) only serves the error message.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vitscope.errors import RunError
from vitscope.runs.files import explain

LOCK_NAME = ".lock"
_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()
_fork_hook_installed = False


class FolderLock:
    """Held from construction to `release()`, garbage collection or the death of the process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_NAME
        self._fd: int | None = _acquire(self.path)
        _held.add(self)
        _install_fork_hook()

    @property
    def held(self) -> bool:
        return self._fd is not None

    def release(self) -> None:
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
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


def _install_fork_hook() -> None:
    """A data-loader worker that outlives a killed parent must not keep the folder locked."""
    global _fork_hook_installed
    if not _fork_hook_installed:
        os.register_at_fork(after_in_child=_forget_all)
        _fork_hook_installed = True


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


def _acquire(path: Path) -> int:
    import fcntl

    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise explain(error, path) from error
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
    now = datetime.now(UTC).isoformat(timespec="seconds")
    holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now})
    try:
        os.ftruncate(fd, 0)
        os.write(fd, holder.encode())
    except OSError as error:  # a full disk
        os.close(fd)
        raise explain(error, path) from error
    return fd


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
    try:
        holder = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return holder if {"pid", "host", "since"} <= set(holder) else None


def lock_holder(folder: Path) -> dict[str, Any] | None:
    """Who writes this folder right now ({pid, host, since}), or None. Does not take the lock."""
    import fcntl

    try:
        fd = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
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
