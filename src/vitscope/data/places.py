"""Where datasets are looked for, and what is said when a download fails."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vitscope.errors import DataError
from vitscope.outside import check_fetch


def places(root: Path | None, extra: Sequence[Path]) -> list[Path]:
    """The given root alone; without one $VITSCOPE_DATA or the user's cache, then well-known places."""
    if root is not None:
        return [root]
    home = os.environ.get("VITSCOPE_DATA") or Path.home() / ".cache" / "vitscope"
    return [Path(home), *extra]


def given_root(root: Path | None, dataset: str, how: str = "") -> Path:
    """Where a data set lies, which nobody but the user knows; `how` says more of it."""
    if root is None:
        raise DataError(f"Dataset {dataset!r} needs to know where it is: give root=FOLDER (--root FOLDER){how}.")
    return root


@contextmanager
def download_errors(name: str, target: Path) -> Iterator[None]:
    """Turn whatever a download raises into one message. A download that only a file asks for is refused."""
    check_fetch("--download", f"a download of {name}", DataError)
    try:
        target.mkdir(parents=True, exist_ok=True)
        yield
    except DataError:
        raise
    except Exception as error:  # urllib, sockets, hashes, disks: a download has many ways to fail
        raise DataError(
            f"{name} could not be downloaded into {target}: {error}. "
            "Fetch it by other means and give its folder as root=FOLDER."
        ) from error
