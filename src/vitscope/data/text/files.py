"""Plain text files: one pass notes where lines and documents begin, and each is read when it is asked for."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitscope.data.images import BadFileError
from vitscope.errors import DataError

_BLOCK = 1 << 24  # bytes that are in memory at once


@dataclass
class Scan:
    """What one pass through a file tells: its hash, and where its lines are that are not blank."""

    path: Path
    size: int = 0  # in bytes
    digest: str = ""
    offset: array[int] = field(default_factory=lambda: array("q"))  # of each line, in bytes
    length: array[int] = field(default_factory=lambda: array("q"))  # in bytes, with its end
    chars: array[int] = field(default_factory=lambda: array("q"))  # in characters, stripped
    number: array[int] = field(default_factory=lambda: array("q"))  # from 1, blank lines counted
    marked: dict[int, str] = field(default_factory=dict)  # place in these arrays -> what `mark` made of the line


def scan_file(path: Path, mark: Callable[[str], str | None] = lambda line: None) -> Scan:
    """Go through a file once. A line ends with a line feed; `mark` may pick out some stripped lines by their words."""
    scan, digest, number = Scan(path), hashlib.blake2b(digest_size=16), 0
    try:
        with open(path, "rb") as file:
            while lines := file.readlines(_BLOCK):  # whole ones
                for line in lines:
                    number += 1
                    digest.update(line)
                    _note(scan, line, number, mark)
                    scan.size += len(line)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not scan.number:
        raise DataError(f"{path} is empty: there is no text in it.")
    scan.digest = digest.hexdigest()
    return scan


def _note(scan: Scan, line: bytes, number: int, mark: Callable[[str], str | None]) -> None:
    text = decode(line, scan.path, scan.size).strip()
    if not text:
        return
    if (told := mark(text)) is not None:
        scan.marked[len(scan.number)] = told
    scan.offset.append(scan.size)
    scan.length.append(len(line))
    scan.chars.append(len(text))
    scan.number.append(number)


def decode(raw: bytes, path: Path, offset: int = 0) -> str:
    """The text in bytes that begin at `offset` of a file, without the mark that some editors put before it."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8: byte {offset + error.start:,} is 0x{raw[error.start]:02x}. "
            f"Convert it, e.g. iconv -f latin1 -t utf-8 {path.name} > utf8-{path.name}."
        ) from error
    return text.removeprefix("\ufeff") if offset == 0 else text


@dataclass(frozen=True, eq=False)
class Spans:
    """Pieces of files: lines, articles, rows or whole files, each read when it is asked for."""

    files: Sequence[Path]
    file: np.ndarray  # (N,) int64: which file, and where in it
    offset: np.ndarray
    length: np.ndarray  # in bytes
    chars: np.ndarray
    document: np.ndarray
    names: Sequence[str]  # of the files, or of the pieces where `number` is None
    number: np.ndarray | None = None  # of the line or row in its file, from 1
    understand: Callable[[str], str] = str  # from what stands in the file to the text

    def __len__(self) -> int:
        return len(self.offset)

    def __getitem__(self, i: int, /) -> str:
        path, offset, length = self.files[int(self.file[i])], int(self.offset[i]), int(self.length[i])
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                raw = file.read(length)
        except OSError as error:
            raise BadFileError(path, f"{path.name} cannot be read: {error.strerror or error}") from error
        if len(raw) < length:
            raise BadFileError(path, f"{path.name} has become shorter since it was opened")
        return self.understand(decode(raw, path, offset))

    def name(self, i: int) -> str:
        return self.names[i] if self.number is None else f"{self.names[int(self.file[i])]}:{self.number[i]}"


def line_spans(scans: Sequence[Scan], names: Sequence[str], documents: Sequence[np.ndarray]) -> Spans:
    """The lines of some files; `documents`: for each file, the numbers of its lines' documents."""
    return Spans(
        [scan.path for scan in scans],
        file=np.repeat(np.arange(len(scans)), [len(scan.number) for scan in scans]),
        offset=_joined([scan.offset for scan in scans]),
        length=_joined([scan.length for scan in scans]),
        chars=_joined([scan.chars for scan in scans]),
        document=np.concatenate(documents),
        names=names,
        number=_joined([scan.number for scan in scans]),
        understand=str.strip,
    )


def whole_files(scans: Sequence[Scan], names: Sequence[str]) -> Spans:
    """One document per file."""
    n = len(scans)
    sizes = np.array([scan.size for scan in scans], dtype=np.int64)
    chars = np.array([sum(scan.chars) for scan in scans], dtype=np.int64)
    paths = [scan.path for scan in scans]
    return Spans(paths, np.arange(n), np.zeros(n, dtype=np.int64), sizes, chars, np.arange(n), names)


def content_of(scans: Sequence[Scan], names: Sequence[str]) -> str:
    """A hash of files by name and content."""
    lines = [f"{name}\0{scan.digest}\n" for name, scan in zip(names, scans)]
    return hashlib.blake2b("".join(lines).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _joined(parts: Sequence[array[int]]) -> np.ndarray:
    return np.concatenate([np.frombuffer(part, dtype=np.int64) for part in parts])
