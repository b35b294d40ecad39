"""Lists of images: a CSV file in which some column names pictures of a dataset.

A heading `path` says which column it is. Otherwise it is the one whose entries are pictures of the dataset: lists of
published studies have columns of their own (`imagenet_id,index,cat,img_name,img_index`). Where file names repeat from
folder to folder, the column of the folder goes before the name.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vitscope.errors import DataError

# Headings of columns with the names of pictures, preferred where several columns name equally many.
HEADINGS = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_name", "image_path", "img",
    "img_name", "img_path", "imname", "im_name", "stim", "stimulus", "stim_name", "stim_id", "image_id", "name",
)  # fmt: skip


@dataclass(frozen=True)
class Listed:
    """What a list names: its entries as they are written, and the place of each among the pictures, or None."""

    entries: list[str]
    positions: list[int | None]
    header: list[str]  # of all columns; empty where the file has none

    @property
    def hits(self) -> int:
        return sum(position is not None for position in self.positions)


def read_list(path: Path, names: Sequence[str], root: Path | None) -> Listed:
    """The column of a CSV file that names most of the pictures `names`."""
    rows = _rows(path)
    header = [cell.strip() for cell in rows[0]]
    lower = [cell.lower() for cell in header]
    if "path" in lower:
        columns = {lower.index("path"): _column(rows[1:], lower.index("path"))}
        if not columns[lower.index("path")]:
            raise DataError(f"The list {path} has a heading but no paths.")
    else:
        columns = {j: _column(rows, j) for j in range(max(map(len, rows)))}
    found = {j: _found(entries, names, root, header) for j, entries in columns.items() if entries}
    best = max(found, key=lambda j: (found[j].hits, j < len(lower) and lower[j] in HEADINGS, -j))
    chosen = found[best]
    if len(chosen.entries) - chosen.hits > 1 and "path" not in lower:  # more than a heading: names may repeat by folder
        pairs = [
            _found([f"{row[i].strip()}/{row[j].strip()}" for row in rows if max(i, j) < len(row)], names, root, header)
            for i in columns
            for j in columns
            if i != j
        ]
        chosen = max([chosen, *pairs], key=lambda listed: listed.hits)
    if "path" in lower:
        return chosen
    of_first_row = chosen.entries[0] in header or set(chosen.entries[0].split("/")) <= set(header)
    if of_first_row and chosen.positions[0] is None and len(chosen.entries) > 1:  # an unknown first row is a heading
        return Listed(chosen.entries[1:], chosen.positions[1:], header)
    return Listed(chosen.entries, chosen.positions, [])


def _rows(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"The list {path} cannot be read: {error}. Expected a CSV file with a column of image names ('path')."
        ) from error
    rows = [row for row in csv.reader(text.splitlines()) if row and any(cell.strip() for cell in row)]
    if not rows:
        raise DataError(f"The list {path} is empty: expected a CSV file with a column of image names, such as 'path'.")
    return rows


def _column(rows: Sequence[Sequence[str]], column: int) -> list[str]:
    return [row[column].strip() for row in rows if column < len(row) and row[column].strip()]


def _found(entries: list[str], names: Sequence[str], root: Path | None, header: list[str]) -> Listed:
    return Listed(entries, _positions([_relative(entry, root) for entry in entries], names), header)


def _relative(entry: str, root: Path | None) -> str:
    path = Path(entry)
    if root is not None and path.is_absolute():
        for base in (root, root.resolve()):
            if path.is_relative_to(base):
                return path.relative_to(base).as_posix()
    return PurePosixPath(entry.replace("\\", "/")).as_posix()


def _positions(entries: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """Where each entry is among the names: by the whole name, else by a tail of one that occurs once."""
    whole = {name: position for position, name in enumerate(names)}
    unknown = {entry for entry in entries if entry not in whole}
    tails: dict[str, int | None] = {}
    for position, name in enumerate(names) if unknown else ():
        parts = name.split("/")
        for tail in {"/".join(parts[1:]), parts[-1]} & unknown:
            tails[tail] = None if tail in tails else position  # twice: it is unclear which
    return [whole[entry] if entry in whole else tails.get(entry) for entry in entries]
