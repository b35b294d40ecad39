"""Files that are either the old or the new version, never half of one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitscope.errors import RunError

_REASONS = {
    errno.ENOSPC: "the disk is full. Free some space, or choose a folder on another disk with --out",
    errno.EDQUOT: "your disk quota is used up. Free some space, or choose a folder on another disk with --out",
    errno.EFBIG: "the file would exceed the allowed file size (see `ulimit -f`)",
    errno.EROFS: "the file system is read-only. Choose a folder that can be written with --out",
    errno.EACCES: "permission denied. Choose a folder that you may write to with --out",
    errno.EPERM: "permission denied. Choose a folder that you may write to with --out",
    errno.ENOTDIR: "a part of this path is a file, not a folder. Choose another folder with --out",
    errno.EEXIST: "there is already a file of that name. Choose another folder with --out",
    errno.EISDIR: "there is a folder of that name",
    errno.ENAMETOOLONG: "the name is too long for this file system",
}


def explain(error: OSError, path: Path) -> RunError:
    """An OSError while writing `path`, in words that say what to do."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    return RunError(f"Cannot write {path}: {reason}.")


def make_folder(path: Path) -> Path:
    """Create a folder and its parents; an existing one is fine."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, path) from error
    return path


def atomic_write(path: str | Path, data: bytes | str) -> Path:
    """Write a file so that a reader, a crash or a full disk never leaves half of it: temporary file, fsync, rename.

    Text is written as UTF-8. Raises RunError with the reason where the disk is full or read-only; an old file is then
    untouched and no temporary file is left.
    """
    path = Path(path)
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            # a name that is not UTF-8 comes as lone surrogates, which JSON and people read as \udcff
            file.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:  # Ctrl-C too must not leave the temporary file
        with suppress(OSError):  # on a read-only disk there is nothing to remove, and unlink itself fails
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise explain(error, path) from error
        raise
    _sync_folder(path.parent)
    return path


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the file system lets us."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files that a killed process of this host left behind (a live one's are in use)."""
    mine = f".{socket.gethostname()}-"
    for file in folder.rglob(".*.tmp"):
        _, found, pid = file.name.removesuffix(".tmp").rpartition(mine)
        if found and pid.isdigit() and not _alive(int(pid)):
            file.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise explain(error, path) from error
