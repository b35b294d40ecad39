"""What a dataset of texts is before anything is chosen or read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitscope.data.text.texts import Texts, cut_lines, listed
from vitscope.errors import DataError

LINES, DOCUMENTS, WINDOWS = UNITS = ("lines", "documents", "windows")


@dataclass(frozen=True, eq=False)
class TextSource:
    """Documents, or one split of them. A function may also return just strings, or pairs of a name and a string."""

    documents: Texts
    content: str  # a hash of all that is in it
    lines: Texts | None = None  # None: cut from the documents when lines are asked for
    unit: str = DOCUMENTS  # what is meant where nobody says: lines where they carry the text
    joiner: str = "\n"  # what stands between documents that are joined; '' where they are pieces of one file
    root: Path | None = None
    labels: Sequence[str] | None = None  # the class of each document, by name; None: they have none
    holds: str | None = None  # the split this really is, if not the one asked for; 'all': nothing is split yet
    warnings: tuple[str, ...] = field(default=())  # what was left out or is doubtful: an error with `strict`
    notes: tuple[str, ...] = field(default=())  # remarks on data that are as they should be: never an error

    def texts(self, unit: str) -> Texts:
        """Lines, or the documents that windows are cut from."""
        if unit != LINES:
            return self.documents
        return self.lines if self.lines is not None else cut_lines(self.documents)

    def __repr__(self) -> str:
        return f"TextSource({len(self.documents):,} documents, holds={self.holds!r})"


def are_texts(returned: Any) -> bool:
    """Is this what a function of texts returns: strings or (name, string) pairs, listed or one after the other?

    `(images, labels)` is a tuple of two; a tuple of strings is texts.
    """
    if isinstance(returned, TextSource):
        return True
    if isinstance(returned, tuple):
        return bool(returned) and all(isinstance(entry, str) for entry in returned)
    if isinstance(returned, (str, bytes, dict)):
        return False
    if hasattr(returned, "__len__") and hasattr(returned, "__getitem__"):
        return len(returned) > 0 and _is_text(returned[0])
    return isinstance(returned, Iterable)


def as_text_source(returned: Any, dataset: str) -> TextSource:
    """Whatever a function of texts returned, checked and complete. What comes one after the other is kept in memory."""
    if isinstance(returned, TextSource):
        return returned
    texts = returned if hasattr(returned, "__len__") and hasattr(returned, "__getitem__") else list(returned)
    if not len(texts):
        raise DataError(f"Dataset {dataset!r} returned no texts.")
    if not _is_text(texts[0]):
        raise DataError(
            f"Dataset {dataset!r} returned {type(texts[0]).__name__} where texts were expected: strings, or pairs of a "
            "name and a string."
        )
    names = [f"{dataset}[{i}]" for i in range(len(texts))]
    if not isinstance(texts[0], str):
        wrong = next((i for i in range(len(texts)) if not _is_text(texts[i]) or isinstance(texts[i], str)), None)
        if wrong is not None:
            raise DataError(f"Text {wrong} of dataset {dataset!r} is no pair of a name and a string, as others are.")
        names, texts = [name for name, _ in texts], [text for _, text in texts]
    if len(set(names)) < len(names):
        raise DataError(f"Two texts of dataset {dataset!r} have the same name: give each its own.")
    documents, content = listed(texts, names, f"dataset {dataset!r}")
    return TextSource(documents, content)


def _is_text(entry: Any) -> bool:
    pair = isinstance(entry, (tuple, list)) and len(entry) == 2 and all(isinstance(part, str) for part in entry)
    return isinstance(entry, str) or pair
