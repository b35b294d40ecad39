"""Per-image rows go to disk batch by batch, and come together in image order at the end. Memory stays flat.

Each process appends to its own `state/rows/<table>.rank<r>.csv`. The saved state of the run remembers how long each
file was, in bytes and rows; after a kill everything beyond that is cut off, so a row is never there twice and never
missing. A file that is not as its process left it was changed by somebody else, and is an error, not a result.
"""

from __future__ import annotations

import csv
import heapq
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from vitscope.errors import RunError, VitscopeError
from vitscope.runs.files import explain, make_folder
from vitscope.runs.tables import check_name, check_table


def rows_folder(state_dir: Path) -> Path:
    return state_dir / "rows"


Lengths = Mapping[str, Sequence[int]]  # table -> (bytes, rows)


class RowWriter:
    """Appends rows of one process. `lengths()` goes into the saved state, `cut(lengths)` returns to it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = make_folder(folder)
        self.rank = rank
        self._headers: dict[str, bytes] = {}  # table -> header line, to notice columns that change on the way
        self._lengths: dict[str, list[int]] = {}  # what this process has written, whatever is on disk

    def append(self, table: str, frames: Iterable[pd.DataFrame]) -> None:
        """Add one batch's rows, sorted by image (an analysis may emit them block by block)."""
        rows = pd.concat(list(frames), ignore_index=True)
        if rows.columns[0] != "image":
            raise VitscopeError(
                f"Per-image table {table!r} must begin with the column 'image', but begins with {rows.columns[0]!r}."
            )
        check_table(check_name(table), rows)
        rows = rows.sort_values("image", kind="stable")
        body, path = _csv(rows, "body"), self._path(table)
        header = _header(tuple(rows.columns))
        known = self._headers.get(table) or _first_line(path)
        if known and known != header:
            raise VitscopeError(
                f"Per-image table {table!r} began with the columns {known.decode().strip()} "
                f"and now gets {header.decode().strip()}. Emit the same columns in every batch."
            )
        self._headers[table] = header
        text, length = (body if known else header + body), self._lengths.setdefault(table, [0, 0])
        try:
            with open(path, "ab") as file:
                _check_size(path, file.tell(), length[0])
                file.write(text)
        except OSError as error:
            raise explain(error, path) from error
        self._lengths[table] = [length[0] + len(text), length[1] + len(rows)]

    def lengths(self) -> dict[str, list[int]]:
        """Bytes and rows per table, after bringing them to disk."""
        for table, (size, _) in self._lengths.items():
            path = self._path(table)
            try:
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
                    _check_size(path, file.seek(0, os.SEEK_END), size)
            except OSError as error:
                raise explain(error, path) from error
        return {table: list(length) for table, length in self._lengths.items()}

    def cut(self, lengths: Lengths) -> None:
        """Go back to an earlier state: shorten files, delete those that were not there yet."""
        self._headers.clear()
        files = {path.name.removesuffix(self._suffix): path for path in self._files()}
        for table, (size, _) in lengths.items():
            if table not in files or files[table].stat().st_size < size:
                raise RunError(
                    f"{self._path(table)} is shorter than the saved state of the run says. "
                    "The run cannot go on from here; start it again with --overwrite."
                )
        for table, path in files.items():
            if table in lengths:
                os.truncate(path, lengths[table][0])
            else:
                path.unlink()
        self._lengths = {table: list(length) for table, length in lengths.items()}

    @property
    def _suffix(self) -> str:
        return f".rank{self.rank}.csv"

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}{self._suffix}"

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{self._suffix}"))


def merge_rows(folder: Path, tables_dir: Path, written: Sequence[Lengths]) -> list[str]:
    """Merge every process's files into `tables/<table>.csv` in image order; one row of each is in memory at a time.

    `written` is what each process has written: a table with other rows than these is an error.
    """
    tables = sorted({table for lengths in written for table in lengths})
    if tables:
        make_folder(tables_dir)
    for table in tables:
        parts = {folder / f"{table}.rank{r}.csv": w[table] for r, w in enumerate(written) if table in w}
        for path, (size, _) in parts.items():
            _check_size(path, path.stat().st_size if path.exists() else 0, size)
        _merge(list(parts), tables_dir / f"{table}.csv", sum(rows for _, rows in parts.values()))
    return tables


def _merge(parts: list[Path], target: Path, rows: int) -> None:
    headers = {_first_line(p) for p in parts}
    if len(headers) > 1:
        raise RunError(f"The processes disagree on the columns of {target.stem!r}: {sorted(headers)}.")
    temporary = target.with_name(f".{target.name}.merge")
    merged = 0
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(headers.pop().decode())
            for record in heapq.merge(*(_records(p) for p in parts), key=_image):
                file.write(record)
                merged += 1
            file.flush()
            os.fsync(file.fileno())
        if merged != rows:
            raise RunError(
                f"The table {target.stem!r} would have {merged:,} rows, but {rows:,} were measured. {_CHANGED}"
            )
        os.replace(temporary, target)
    except OSError as error:
        raise explain(error, target) from error
    except ValueError as error:  # no image number, or not UTF-8
        raise RunError(f"The rows of {target.stem!r} in {parts[0].parent} are damaged ({error}). {_CHANGED}") from error
    finally:
        temporary.unlink(missing_ok=True)


_CHANGED = "They were changed from outside. Start the run again with --overwrite."


def _check_size(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise RunError(
            f"{path} has {found:,} bytes, but this run has written {expected:,}: another process or program has "
            "changed it. When no other process writes there, the same command again goes on from what was saved."
        )


def _records(path: Path) -> Iterator[str]:
    """CSV records as they are written, without the header. A line break inside quotes belongs to the record."""
    with open(path, encoding="utf-8", newline="") as file:
        next(file)
        record = ""
        for line in file:
            record += line
            if record.count('"') % 2 == 0:
                yield record
                record = ""


def _image(record: str) -> int:
    return int(record.split(",", 1)[0])


def _first_line(path: Path) -> bytes:
    if not path.exists():
        return b""
    with open(path, "rb") as file:
        return file.readline()


def _csv(rows: pd.DataFrame, part: str) -> bytes:
    """Text quoted and numbers bare, as in `runs.tables.to_csv`; the first line or all others."""
    text = rows.to_csv(index=False, header=part == "header", quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    return text.encode()


@cache
def _header(columns: tuple[str, ...]) -> bytes:
    """The first line of a table: pandas takes a millisecond for it, and every batch asks."""
    return _csv(pd.DataFrame(columns=columns), "header")
