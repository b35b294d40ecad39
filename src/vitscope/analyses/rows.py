"""Per-image rows go to disk batch by batch, and come together in image order at the end. Memory stays flat.

Each process appends to its own `state/rows/<table>.rank<r>.csv`. The saved state of the run remembers how long each
file was; after a kill everything beyond that is cut off, so a row is never there twice and never missing.
"""

from __future__ import annotations

import csv
import heapq
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitscope.errors import RunError, VitscopeError
from vitscope.runs.files import explain, make_folder

if TYPE_CHECKING:
    import pandas as pd


def rows_folder(state_dir: Path) -> Path:
    return state_dir / "rows"


class RowWriter:
    """Appends rows of one process. `lengths()` goes into the saved state, `cut(lengths)` returns to it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = make_folder(folder)
        self.rank = rank
        self._headers: dict[str, bytes] = {}  # table -> header line, to notice columns that change on the way

    def append(self, table: str, frames: Iterable[pd.DataFrame]) -> None:
        """Add one batch's rows, sorted by image (an analysis may emit them block by block)."""
        import pandas as pd

        from vitscope.runs.tables import check_name, check_table

        rows = pd.concat(list(frames), ignore_index=True)
        if rows.columns[0] != "image":
            raise VitscopeError(
                f"Per-image table {table!r} must begin with the column 'image', but begins with {rows.columns[0]!r}."
            )
        check_table(check_name(table), rows)
        rows = rows.sort_values("image", kind="stable")
        header, body = (_csv(rows, part) for part in ("header", "body"))
        path = self._path(table)
        known = self._headers.get(table) or _first_line(path)
        if known and known != header:
            raise VitscopeError(
                f"Per-image table {table!r} began with the columns {known.decode().strip()} "
                f"and now gets {header.decode().strip()}. Emit the same columns in every batch."
            )
        self._headers[table] = header
        try:
            with open(path, "ab") as file:
                file.write(body if known else header + body)
        except OSError as error:
            raise explain(error, path) from error

    def lengths(self) -> dict[str, int]:
        """Bytes per table, after bringing them to disk."""
        found = {}
        for path in self._files():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                found[path.name.removesuffix(self._suffix)] = file.seek(0, os.SEEK_END)
        return found

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Go back to an earlier state: shorten files, delete those that were not there yet."""
        self._headers.clear()
        files = {path.name.removesuffix(self._suffix): path for path in self._files()}
        for table, length in lengths.items():
            if table not in files or files[table].stat().st_size < length:
                raise RunError(
                    f"{self._path(table)} is shorter than the saved state of the run says. "
                    "The run cannot go on from here; start it again with --overwrite."
                )
        for table, path in files.items():
            if table in lengths:
                os.truncate(path, lengths[table])
            else:
                path.unlink()

    @property
    def _suffix(self) -> str:
        return f".rank{self.rank}.csv"

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}{self._suffix}"

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{self._suffix}"))


def merge_rows(folder: Path, tables_dir: Path, world: int) -> list[str]:
    """Merge every process's files into `tables/<table>.csv` in image order; one row of each is in memory at a time."""
    if not folder.is_dir():
        return []
    tables = sorted({path.name.rsplit(".rank", 1)[0] for path in folder.glob("*.rank*.csv")})
    make_folder(tables_dir)
    for table in tables:
        parts = [folder / f"{table}.rank{r}.csv" for r in range(world)]
        _merge([p for p in parts if p.exists()], tables_dir / f"{table}.csv")
    return tables


def _merge(parts: list[Path], target: Path) -> None:
    headers = {_first_line(p) for p in parts}
    if len(headers) > 1:
        raise RunError(f"The processes disagree on the columns of {target.stem!r}: {sorted(headers)}.")
    temporary = target.with_name(f".{target.name}.merge")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(headers.pop().decode())
            file.writelines(heapq.merge(*(_records(p) for p in parts), key=_image))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise explain(error, target) from error


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
    shown = rows.iloc[:0] if part == "header" else rows
    text = shown.to_csv(index=False, header=part == "header", quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    return text.encode()
