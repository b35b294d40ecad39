"""WikiText-2 and WikiText-103: articles of Wikipedia, one paragraph per line.

Files are `wiki.{train,valid,test}.tokens` as published, or `wiki.*.raw`, the same without replaced words. An article
begins with a heading of level one, ` = Title = `, between two blank lines: formulas have lines that look the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitscope.data.places import places
from vitscope.data.registry import register_dataset
from vitscope.data.splits import choose_split
from vitscope.data.text.files import Scan, Spans, content_of, line_spans, scan_file
from vitscope.data.text.source import LINES, TextSource
from vitscope.errors import DataError

_SPLITS = {"train": "train", "val": "valid", "test": "test"}
_ENDINGS = ("tokens", "raw")  # in this order, where a folder has both


@register_dataset("wikitext-2", splits=tuple(_SPLITS))
def wikitext_2(split: str, root: Path | None) -> TextSource:
    """2 million words to train on; 60 articles each to validate and to test."""
    return _find("wikitext-2", split, root)


@register_dataset("wikitext-103", splits=tuple(_SPLITS))
def wikitext_103(split: str, root: Path | None) -> TextSource:
    """103 million words to train on; 60 articles each to validate and to test."""
    return _find("wikitext-103", split, root)


def wiki_folder(folder: Path, asked: str | None) -> TextSource | None:
    """A folder that holds files of WikiText, whatever its name; None for another one."""
    files = {split: file for split in _SPLITS if (file := _file(folder, split)) is not None}
    return wiki_source(files[split := choose_split(asked, list(files), str(folder))], split) if files else None


def wiki_source(path: Path, split: str | None) -> TextSource:
    """The lines and articles of one file."""
    scan = scan_file(path, _title)
    documents = _articles(scan)
    firsts = documents.offset
    of_lines = np.searchsorted(firsts, np.frombuffer(scan.offset, dtype=np.int64), side="right") - 1
    return TextSource(
        documents,
        content_of([scan], [path.name]),
        lines=line_spans([scan], [path.name], [of_lines]),
        unit=LINES,
        joiner="",
        root=path.parent,
        holds=split,
    )


def _find(name: str, split: str, root: Path | None) -> TextSource:
    folders = [f for place in places(root, ()) for f in (place, place / name, place / f"{name}-raw")]
    found = next((file for folder in folders if (file := _file(folder, split)) is not None), None)
    if found is None:
        stem = f"wiki.{_SPLITS[split]}"
        raise DataError(
            f"{name} ({split}) is not there: looked for {stem}.tokens and {stem}.raw in "
            f"{', '.join(map(str, folders))}. Give the folder as root=FOLDER (--root FOLDER); it is not downloaded."
        )
    return wiki_source(found, split)


def _file(folder: Path, split: str) -> Path | None:
    files = (folder / f"wiki.{_SPLITS[split]}.{ending}" for ending in _ENDINGS)
    return next((file for file in files if file.is_file()), None)


def _title(line: str) -> str | None:
    """'= Du Fu =' -> 'Du Fu'; None for '= = Early life = =' and for text."""
    inner = line[2:-2]
    is_heading = len(line) > 4 and line.startswith("= ") and line.endswith(" =") and inner[0] != "="
    return inner.strip() if is_heading else None


def _articles(scan: Scan) -> Spans:
    """The pieces of a file between headings of level one; what stands before the first belongs to the first."""
    number = scan.number
    begins: list[int] = []
    names: list[str] = []
    for i, title in scan.marked.items():
        alone = (i == 0 or number[i - 1] < number[i] - 1) and (i + 1 == len(number) or number[i + 1] > number[i] + 1)
        if alone:
            begins.append(i)
            names.append(f"{scan.path.name}:{number[i]} {title}")
    if not begins:
        begins, names = [0], [scan.path.name]
    offset = np.frombuffer(scan.offset, dtype=np.int64)[begins].copy()
    offset[0] = 0
    sums = np.add.reduceat(np.frombuffer(scan.chars, dtype=np.int64), [0, *begins[1:]])
    n = len(offset)
    length = np.diff(np.append(offset, scan.size))
    return Spans([scan.path], np.zeros(n, dtype=np.int64), offset, length, sums, np.arange(n), names)
