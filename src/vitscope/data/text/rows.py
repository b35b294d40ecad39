"""Texts in a column of a table: `.jsonl`, `.csv` and `.tsv`, row by row."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitscope.data.text.files import Spans, decode
from vitscope.data.text.source import TextSource
from vitscope.data.text.texts import count_chars
from vitscope.errors import DataError, suggest

DELIMITERS = {".csv": ",", ".tsv": "\t"}
ENDINGS = (".jsonl", *DELIMITERS)
COLUMNS = ("text", "sentence")  # of texts, where nobody says
_LONGEST = 2**31 - 1  # characters of one field; csv's own limit is 131,072
_BLANK, _NO_TEXT = 0, -1


@dataclass
class _Table:
    """What one pass through a table tells."""

    path: Path
    column: str | None  # of the texts; None: one of COLUMNS, found when the first row is read
    label: str | None = None  # of their classes; None: not wanted
    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    size: int = 0  # bytes so far
    offset: array[int] = field(default_factory=lambda: array("q"))
    length: array[int] = field(default_factory=lambda: array("q"))
    chars: array[int] = field(default_factory=lambda: array("q"))  # blank and missing texts too
    number: array[int] = field(default_factory=lambda: array("q"))  # of the row in the file, from 1
    labels: list[Any] = field(default_factory=list)  # of each row, as they stand there

    def lines(self) -> Iterator[str]:
        """The file line by line, hashed; `size` is then where the next one begins."""
        try:
            with open(self.path, "rb") as file:
                for raw in file:
                    text = decode(raw, self.path, self.size)
                    self.digest.update(raw)
                    self.size += len(raw)
                    yield text
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}.") from error

    def add(self, begin: int, number: int, text: Any, label: Any) -> None:
        self.offset.append(begin)
        self.length.append(self.size - begin)
        self.number.append(number)
        self.chars.append(count_chars(text) if isinstance(text, str) else _NO_TEXT)
        if self.label is not None:
            self.labels.append(label)

    def check_columns(self, columns: Any) -> str:
        """Which column the texts are in; an error that lists the columns where there is none, or none of classes."""
        names = [str(c) for c in columns]
        if self.column is None:
            self.column = next((name for name in COLUMNS if name in names), COLUMNS[0])
        for option, column in (("column", self.column), ("label_column", self.label)):
            if column is not None and column not in names:
                raise DataError(
                    f"{self.path} has no column {column!r}.{suggest(column, names)} "
                    f"Its columns are {', '.join(names)}: say {option}='...' (--{option.replace('_', '-')})."
                )
        return self.column

    def classes(self, kept: Sequence[int]) -> list[str] | None:
        """The class of each row that is kept; a row without one is an error."""
        if self.label is None:
            return None
        found = []
        for i in kept:
            label = self.labels[i]
            if label is None or not str(label).strip() or isinstance(label, dict | list):
                raise DataError(
                    f"Row {self.number[i]} of {self.path} has no class in column {self.label!r}: "
                    f"{'it is empty' if label in (None, '') else repr(label)[:60]}. Fill it in, or take the row out."
                )
            found.append(str(label).strip())
        return found


def row_source(path: Path, column: str | None, label: str | None = None) -> TextSource:
    """The rows of a table; a row without text is left out, with a warning where the column has something else."""
    table = _Table(path, column, label)
    understand = _scan_json(table) if path.suffix.lower() == ".jsonl" else _scan_csv(table)
    chars = np.frombuffer(table.chars, dtype=np.int64) if table.chars else np.zeros(0, dtype=np.int64)
    kept, column = np.flatnonzero(chars > _BLANK), table.column
    if not len(kept):
        raise DataError(f"{path} is empty: no row has text in column {column!r}.")
    wrong = np.flatnonzero(chars == _NO_TEXT)
    warnings = []
    if len(wrong):
        first = table.number[int(wrong[0])]
        warnings.append(
            f"{len(wrong):,} rows of {path.name} have no text in column {column!r}, e.g. row {first}: left out."
        )
    documents = Spans(
        [path],
        np.zeros(len(kept), dtype=np.int64),
        np.frombuffer(table.offset, dtype=np.int64)[kept],
        np.frombuffer(table.length, dtype=np.int64)[kept],
        chars[kept],
        np.arange(len(kept)),
        [path.name],
        np.frombuffer(table.number, dtype=np.int64)[kept],
        understand,
    )
    content = f"{table.digest.hexdigest()} {column}"
    labels = table.classes(kept.tolist())
    return TextSource(documents, content, root=path.parent, labels=labels, warnings=tuple(warnings))


def _scan_json(table: _Table) -> partial[str]:
    begin = 0
    for number, line in enumerate(table.lines(), 1):
        if line.strip():
            row = _parse(line, table.path, number)
            if not len(table.number):
                table.check_columns(row)
            table.add(begin, number, row.get(str(table.column)), row.get(str(table.label)))
        begin = table.size
    if not len(table.number):
        raise DataError(f"{table.path} is empty: expected one JSON object per line.")
    return partial(_json_text, column=str(table.column))


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"Line {number} of {path} is not JSON: {error}. Expected one object per line.") from error
    if not isinstance(row, dict):
        raise DataError(f"Line {number} of {path} is no JSON object: expected one per line, such as {{'text': '...'}}.")
    return row


def _json_text(line: str, column: str) -> str:
    return str(json.loads(line)[column])


def _scan_csv(table: _Table) -> partial[str]:
    how: dict[str, Any] = {"delimiter": DELIMITERS[table.path.suffix.lower()]}
    if how["delimiter"] == "\t" and table.label is not None:
        how["quoting"] = csv.QUOTE_NONE  # GLUE's tables: a quotation mark is one of the text
    with _long_fields():
        rows = csv.reader(table.lines(), **how)  # takes as many lines as a row has, and no more
        try:
            header = next(rows, None)
            if not header:
                raise DataError(f"{table.path} is empty: expected the names of its columns in the first line.")
            place, begin = header.index(table.check_columns(header)), table.size
            at = None if table.label is None else header.index(table.label)
            for number, row in enumerate(rows, 1):
                if row:
                    text, label = (None if i is None or i >= len(row) else row[i] for i in (place, at))
                    table.add(begin, number, text, label)
                begin = table.size
        except csv.Error as error:
            raise DataError(f"Line {rows.line_num} of {table.path} cannot be read as a table: {error}.") from error
    return partial(_csv_text, place=place, **how)


def _csv_text(row: str, place: int, **how: Any) -> str:
    with _long_fields():
        return next(csv.reader(io.StringIO(row, newline="\n"), **how))[place]


@contextmanager
def _long_fields() -> Iterator[None]:
    before = csv.field_size_limit(_LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(before)
