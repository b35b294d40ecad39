"""Arrays that grow image by image on disk, in `.npy` files of bounded size that numpy can map into memory.

A file is valid after every flush: its header has room for a longer shape (numpy reserves it), so rows are appended and
the header is rewritten in place. After a kill, `cut` goes back to the number of rows that the saved state vouches for.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np

from vitscope.errors import RunError
from vitscope.runs.files import explain, make_folder


class ShardWriter:
    """Appends rows of one shape to `<folder>/r<rank>-<shard>.npy`, `rows_per_shard` rows in each."""

    def __init__(self, folder: Path, rank: int, shape: tuple[int, ...], dtype: np.dtype, rows_per_shard: int) -> None:
        self.folder, self.rank, self.shape, self.dtype = make_folder(folder), rank, shape, np.dtype(dtype)
        self.rows_per_shard = rows_per_shard
        self.row_bytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self._dirty: dict[int, int] = {}  # shard -> rows in it, since the last flush

    def write(self, first: int, values: np.ndarray) -> None:
        """Put rows first, first + 1, ... where they belong. Rows come in order."""
        values = np.ascontiguousarray(values, dtype=self.dtype)
        if values.shape[1:] != self.shape:
            raise RunError(f"{self.folder.name} has rows of shape {self.shape}, but got {values.shape[1:]}.")
        while len(values):
            shard, row = divmod(first, self.rows_per_shard)
            part = values[: self.rows_per_shard - row]
            self._append(shard, row, part)
            first, values = first + len(part), values[len(part) :]

    def _append(self, shard: int, row: int, part: np.ndarray) -> None:
        path = self.path(shard)
        try:
            with open(path, "r+b" if row else "wb") as file:
                if row == 0:
                    file.write(self._header(0))
                file.seek(len(self._header(row)) + row * self.row_bytes)
                file.write(part.tobytes())
        except OSError as error:
            raise explain(error, path) from error
        self._dirty[shard] = row + len(part)

    def flush(self) -> None:
        """Write the headers of what grew, and bring it to disk."""
        for shard, rows in self._dirty.items():
            path = self.path(shard)
            try:
                with open(path, "r+b") as file:
                    file.write(self._header(rows))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise explain(error, path) from error
        self._dirty.clear()

    def path(self, shard: int) -> Path:
        return self.folder / shard_name(self.rank, shard)

    def _header(self, rows: int) -> bytes:
        out = io.BytesIO()
        layout = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(out, {**layout, "shape": (rows, *self.shape)})
        return out.getvalue()


def shard_name(rank: int, shard: int) -> str:
    return f"r{rank}-{shard:05d}.npy"


def cut_shards(folder: Path, rank: int, rows: int, rows_per_shard: int) -> None:
    """Leave exactly the first `rows` rows of one process: shorten the last file, delete those after it."""
    for path in sorted(folder.glob(f"r{rank}-*.npy")):
        keep = min(max(rows - int(path.stem.split("-")[1]) * rows_per_shard, 0), rows_per_shard)
        if keep == 0:
            path.unlink()
            continue
        with open(path, "r+b") as file:
            try:
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            except ValueError as error:
                raise RunError(f"{path} is damaged ({error}). Start the run again with --overwrite.") from error
            start = file.tell()
            length = start + keep * int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
            if file.seek(0, os.SEEK_END) < length:
                raise RunError(f"{path} is shorter than the saved state says. Start the run again with --overwrite.")
            file.truncate(length)
            file.seek(0)
            layout = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
            np.lib.format.write_array_header_1_0(file, {**layout, "shape": (keep, *shape[1:])})
