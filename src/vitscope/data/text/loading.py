"""`load_texts`: from a name or a path to the chosen texts."""

from __future__ import annotations

from collections.abc import Sized
from pathlib import Path

import numpy as np

from vitscope.data.finding import Found, find_source
from vitscope.data.selection import OF_PICTURES, Choice
from vitscope.data.splits import ALL, seeded_split
from vitscope.data.text.dataset import TextData
from vitscope.data.text.labelled import LabelledTexts
from vitscope.data.text.options import TextOptions
from vitscope.data.text.source import DOCUMENTS, LINES, TextSource
from vitscope.data.text.texts import Names
from vitscope.errors import DataError


def load_texts(
    name_or_path: str | Path,
    split: str | None = None,
    *,
    root: str | Path | None = None,
    unit: str | None = None,
    min_chars: int = 1,
    column: str | None = None,
    label_column: str | None = None,
    every: int = 1,
    share: float = 1.0,
    texts: int | None = None,
    first: int | None = None,
    context: int | None = None,
    stride: int | None = None,
    joined: bool = False,
    bos: bool = False,
    windows: int | None = None,
    seed: int = 0,
    strict: bool = False,
) -> TextData:
    """Choose texts. One pass through the files notes where they are; they are read when batches are made.

    `name_or_path`: 'wikitext-2', 'wikitext-103', 'pydoc'; a .txt file or a folder of them; .jsonl, .csv or .tsv with a
    `column` of texts; or `package.module:function`, which returns strings or pairs of a name and a string.
    `unit`: 'lines', 'documents' (articles of WikiText, files, rows, topics) or 'windows' of `context` tokens over each
    document, or over all of them `joined`. None: lines of WikiText and of single .txt files, else documents.
    `label_column`: that of their classes, or 'folders' for a folder per class: these are then texts of one class each.
    `min_chars`: texts with at least so many characters, not counting white space at the ends of lines.
    `min_chars`, `every` (texts 0, every, 2 every, ...), `share`, `texts` (so many, chosen by `seed`), `first` (the
    first so many) are applied in this order; for windows they choose documents, and `windows` the first windows.
    `context`: for lines and documents, how many tokens of each are used at most.
    `stride`: tokens from one window to the next, see `sliding_windows`; None: `disjoint_windows`. `bos`: every window
    begins with the token that begins a text.
    `strict`: what is otherwise left out, cut or doubtful raises DataError.
    """
    options = TextOptions(unit, min_chars, column, label_column, context, stride, joined, bos, windows)
    found = find_source(name_or_path, split, root, texts=True, column=column, label=label_column)
    choice = Choice(every=every, share=share, images=texts, first=first, seed=seed)
    return choose_texts(found, options, choice, source=str(name_or_path), root=root, strict=strict)


def choose_texts(
    found: Found,
    options: TextOptions,
    choice: Choice,
    *,
    source: str,
    root: str | Path | None,
    strict: bool = False,
) -> TextData:
    """The texts of a source that are meant."""
    given = found.source
    assert isinstance(given, TextSource)
    split, documents = _split(found, given)
    unit = options.unit or given.unit
    all_texts = given.texts(unit)
    inside = all_texts.chars >= options.min_chars
    if documents is not None:
        inside &= np.isin(all_texts.document, documents)
    order = np.flatnonzero(inside)
    if not len(order):
        what = LINES if unit == LINES else "documents"
        longest = int(all_texts.chars.max()) if len(all_texts) else 0
        raise DataError(
            f"{found.name} ({split}) has no text of {options.min_chars:,} characters: the longest of its "
            f"{len(all_texts):,} {what} has {longest:,}. Choose a smaller min_chars (--min-chars)."
        )
    labels = np.array(_numbers(given, given.documents))[all_texts.document[order]]
    places, shortages = choice.among(Names(all_texts, order), labels.tolist(), None, what="texts")
    order = order[places]
    faults = [*given.warnings, *shortages]
    if strict and faults:
        raise DataError(f"{' '.join(faults[:5])} Leave strict (--strict) out to go on with warnings.")
    told = {name: value for name, value in choice.described(source, root).items() if name not in OF_PICTURES}
    selection = {"texts" if name == "images" else name: value for name, value in told.items()}
    warnings = [*given.warnings, *given.notes, *shortages]
    if given.labels is not None and unit != DOCUMENTS:
        raise DataError(f"The texts of {found.name} have classes, each as a whole: leave out unit={unit!r} (--unit).")
    return (TextData if given.labels is None else LabelledTexts)(
        given,
        order,
        name=found.name,
        split=split,
        options=options,
        selection=selection,
        strict=strict,
        warnings=warnings,
    )


def _split(found: Found, source: TextSource) -> tuple[str, np.ndarray | None]:
    """The split's name, and the documents in it where vitscope makes it: lines of a document stay together."""
    if found.holds != ALL or found.wanted in (None, ALL):
        return found.holds, None
    names = list(Names(source.documents, range(len(source.documents))))
    split, documents = seeded_split(str(found.wanted), names, _numbers(source, names), what="document")
    return split, np.array(documents)


def _numbers(source: TextSource, documents: Sized) -> list[int]:
    """A number for the class of each document, so that all classes are in a choice; -1 where there are none."""
    if source.labels is None:
        return [-1] * len(documents)
    classes = {name: i for i, name in enumerate(sorted(set(source.labels)))}
    return [classes[name] for name in source.labels]
