"""Numbered texts that are read when they are asked for: in memory, or the lines of others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from vitscope.data.source import Indexed
from vitscope.errors import DataError


class Texts(Protocol):
    """Texts in a fixed order, and what is known of each without reading it. None of them is blank."""

    @property
    def chars(self) -> np.ndarray: ...  # (N,) int64: characters of each, see `count_chars`
    @property
    def document(self) -> np.ndarray: ...  # (N,) int64: number of the document that each belongs to

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> str: ...
    def name(self, i: int) -> str: ...


def count_chars(text: str) -> int:
    """Characters of a text, without the white space at the ends of its lines."""
    return sum(len(line.strip()) for line in text.split("\n"))


class Names(Sequence[str]):
    """The names of some texts, each made when it is asked for."""

    def __init__(self, texts: Texts, order: Sequence[int] | np.ndarray) -> None:
        self.texts, self.order = texts, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]  # a number or a slice, as with any sequence
        return Names(self.texts, self.order[i]) if isinstance(i, slice) else self.texts.name(int(self.order[i]))


@dataclass(frozen=True, eq=False)
class Listed:
    """Whole texts in memory, or in an object of the user's own that gives one at a time."""

    texts: Indexed
    names: Sequence[str]
    places: np.ndarray  # which of them: those that are not blank
    chars: np.ndarray

    @property
    def document(self) -> np.ndarray:
        return np.arange(len(self.places))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, i: int, /) -> str:
        return str(self.texts[int(self.places[i])])

    def name(self, i: int) -> str:
        return self.names[int(self.places[i])]


def listed(texts: Indexed, names: Sequence[str], where: str) -> tuple[Listed, str]:
    """Texts with their names, and a hash of what they say; read once, one after the other."""
    digest = hashlib.blake2b(digest_size=16)
    chars = np.zeros(len(texts), dtype=np.int64)
    for i in range(len(texts)):
        text = texts[i]
        if not isinstance(text, str):
            raise DataError(f"Text {i} of {where} is {type(text).__name__}: expected a string.")
        chars[i] = count_chars(text)
        digest.update(f"{names[i]}\0{len(text)}\0{text}".encode("utf-8", "surrogatepass"))
    places = np.flatnonzero(chars)
    return Listed(texts, names, places, chars[places]), digest.hexdigest()


@dataclass(eq=False)
class CutLines:
    """The lines of other texts, stripped. A text is read once for all of its lines that are asked for in a row."""

    texts: Texts
    document: np.ndarray
    number: np.ndarray  # of the line in its document, from 1
    chars: np.ndarray
    _last: tuple[int, list[str]] = field(default=(-1, []), repr=False)

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, i: int, /) -> str:
        document = int(self.document[i])
        if self._last[0] != document:
            self._last = document, self.texts[document].split("\n")
        return self._last[1][int(self.number[i]) - 1].strip()

    def name(self, i: int) -> str:
        return f"{self.texts.name(int(self.document[i]))}:{self.number[i]}"


def cut_lines(texts: Texts) -> CutLines:
    """All lines that are not blank; one pass through the texts."""
    found: list[tuple[int, int, int]] = []
    for document in range(len(texts)):
        lengths = (len(line.strip()) for line in texts[document].split("\n"))
        found += [(document, number, length) for number, length in enumerate(lengths, 1) if length]
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return CutLines(texts, *table.T)
