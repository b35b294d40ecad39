"""A path that somebody typed: a file of text, a table with a column of texts, or a folder of text files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitscope.data.folders import find_splits, natural_order
from vitscope.data.images import EXTENSIONS
from vitscope.data.splits import ALL, choose_split, normal_split
from vitscope.data.text.files import content_of, line_spans, scan_file, whole_files
from vitscope.data.text.rows import ENDINGS, row_source
from vitscope.data.text.source import DOCUMENTS, LINES, TextSource
from vitscope.data.text.wikitext import wiki_folder, wiki_source
from vitscope.errors import DataError

PLAIN = ".txt"
FOLDERS = "folders"  # label_column: classes are the folders that files lie in
_UNLABELLED = "unsup"  # as IMDB calls its reviews without a class
_WIKI = (".tokens", ".raw")


def holds_text(path: Path) -> bool:
    """Is it a file of text, or a folder of which half of the files or more are such, and none a picture?"""
    endings = (PLAIN, *ENDINGS, *_WIKI)
    if path.is_file():
        return path.suffix.lower() in endings
    counts: Counter[bool] = Counter()
    for _, folders, files in os.walk(path):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        found = [Path(file).suffix.lower() for file in files if not file.startswith(".")]
        if not EXTENSIONS.isdisjoint(found):
            return False
        counts.update(ending in endings for ending in found)
    return counts[True] > 0 and counts[True] >= counts[False]


def path_source(path: Path, split: str | None, column: str | None = None, label: str | None = None) -> TextSource:
    """The texts of a file or folder; `label`: with their classes."""
    if not path.exists():
        raise DataError(f"{path} does not exist: expected a file of text, a table or a folder of .txt files.")
    if path.is_dir():
        return _folder(path, split, column, label)
    return _file(path, column, label)


def _file(path: Path, column: str | None, label: str | None) -> TextSource:
    ending = path.suffix.lower()
    if ending in ENDINGS:
        return row_source(path, column, label)
    if label is not None:
        raise DataError(
            f"{path.name} has no columns, so there are no classes: leave out label_column={label!r} (--label-column)."
        )
    if column is not None:
        raise DataError(f"{path.name} has no columns: leave out column={column!r} (--column).")
    if ending in _WIKI:
        return wiki_source(path, ALL)
    return _plain([path], [path.name], path.parent, LINES)


def _plain(files: Sequence[Path], names: Sequence[str], root: Path, unit: str) -> TextSource:
    scans = [scan_file(file) for file in files]
    lines = line_spans(scans, names, [np.full(len(scan.number), i) for i, scan in enumerate(scans)])
    documents = whole_files(scans, names)
    return TextSource(documents, content_of(scans, names), lines, unit, root=root)


def _folder(root: Path, asked: str | None, column: str | None, label: str | None) -> TextSource:
    """Files of WikiText; a file for each split; folders for splits; or just text files, a document each."""
    wiki = wiki_folder(root, asked)
    if wiki is not None:
        return wiki
    files = [p for p in sorted(root.iterdir()) if p.suffix.lower() in (PLAIN, *ENDINGS) and p.is_file()]
    by_split = {normal_split(file.stem): file for file in files}
    if files and set(by_split) <= {"train", "val", "test"}:
        split = choose_split(asked, list(by_split), str(root))
        return replace(_file(by_split[split], column, label), holds=split)
    splits = find_splits(root, [])
    if splits:
        split = choose_split(asked, sorted(splits), str(root))
        return replace(_text_files(root, splits[split], column, label), holds=split)
    return replace(_text_files(root, root, column, label), holds=ALL)


def _text_files(root: Path, base: Path, column: str | None, label: str | None) -> TextSource:
    """All .txt files below a folder, by name; empty ones are left out."""
    files = sorted((p for p in base.rglob(f"*{PLAIN}") if p.is_file()), key=lambda p: natural_order(p.as_posix()))
    files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(base).parts)]
    tables = [p for p in sorted(base.iterdir()) if p.suffix.lower() in ENDINGS]
    if not files and len(tables) == 1:
        return _file(tables[0], column, label)
    if not files:
        hint = f" It holds {', '.join(t.name for t in tables[:5])}: give the path of one." if tables else ""
        raise DataError(f"{base} has no text: expected .txt files, or a file of WikiText.{hint}")
    if column is not None:
        raise DataError(f"{base} is a folder of .txt files, which have no columns: leave out column (--column).")
    aside: list[Path] = []
    if label is not None:
        files, aside = _in_folders(files, base, label)
    empty = [f for f in files if not f.stat().st_size]
    full = [f for f in files if f.stat().st_size]
    if not full:
        raise DataError(f"All {len(empty):,} .txt files of {base} are empty.")
    names = [file.relative_to(root).as_posix() for file in full]
    source = _plain(full, names, root, DOCUMENTS)
    warnings = [f"{len(empty):,} .txt files are empty and left out, e.g. {empty[0].name}."] if empty else []
    if aside:
        warnings.append(f"{len(aside):,} .txt files are in no class folder and left out, e.g. {aside[0].name}.")
    labels = [file.relative_to(base).parts[0] for file in full] if label is not None else None
    return replace(source, labels=labels, warnings=tuple(warnings))


def _in_folders(files: Sequence[Path], base: Path, label: str) -> tuple[list[Path], list[Path]]:
    """Files of class folders, and those that lie beside them; IMDB's reviews without a class are neither."""
    if label != FOLDERS:
        raise DataError(
            f"{base} is a folder of .txt files: their classes are folders, label_column='{FOLDERS}', not {label!r}."
        )
    parts = {file: file.relative_to(base).parts for file in files}
    labelled = [file for file in files if len(parts[file]) > 1 and parts[file][0] != _UNLABELLED]
    if not labelled:
        raise DataError(f"{base} has no class folders with .txt files in them: expected pos/*.txt, neg/*.txt, ...")
    return labelled, [file for file in files if len(parts[file]) == 1]
