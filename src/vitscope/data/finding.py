"""From a name or a path to a source: pictures or texts, before anything is chosen."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitscope.data.folders import find_splits, folder_source
from vitscope.data.imagenet_s import SUFFIX, categories_file, imagenet_s, with_masks
from vitscope.data.own import is_data
from vitscope.data.registry import DatasetEntry, check_place, find_dataset
from vitscope.data.segmentation.pairs import pair_source
from vitscope.data.source import as_source
from vitscope.data.splits import ALL, choose_split, normal_split
from vitscope.data.text.paths import holds_text, path_source
from vitscope.data.text.source import TextSource, are_texts, as_text_source
from vitscope.errors import DataError, VitscopeError


@dataclass(frozen=True)
class Found:
    """A source and what is known of it."""

    source: Any  # Source, TextSource, or data that make their own batches
    name: str
    holds: str  # the split that the source holds
    wanted: str | None  # the one that is wanted; None: any


def find_source(
    name_or_path: str | Path,
    split: str | None,
    root: str | Path | None,
    *,
    download: bool = False,
    plain: bool = False,
    texts: bool = False,
    column: str | None = None,
    labels: str | Path | None = None,
    label: str | None = None,
) -> Found:
    """A registered dataset, `package.module:function`, a file or a folder; `labels`: the folder of its label maps.

    `plain`: masks are not looked for by ImageNet-S's rules. `texts`: nothing but texts will do. `column`: of a table.
    `label`: of texts, the column of their classes, or 'folders'.
    """
    place = None if root is None else Path(root).expanduser()
    if labels is not None:
        return _pair(Path(name_or_path), Path(labels), split, place)
    entry = find_dataset(name_or_path) if isinstance(name_or_path, str) else None
    if entry is not None:
        source, holds = _call(entry, split, place, download)
        wanted = choose_split(split, entry.splits, entry.name) if split is None and entry.splits else split
        found = Found(source, entry.name, holds, wanted and normal_split(wanted))
        for option, value in (("column", column), ("label_column", label)):
            if value is not None:
                raise DataError(f"Dataset {entry.name!r} has no columns: {option} is for .jsonl, .csv and .tsv files.")
    else:
        found = _path(name_or_path, split, place, plain, texts, column, label)
    if texts and not isinstance(found.source, TextSource):
        raise DataError(
            f"{found.name} are pictures, and texts are wanted: load them with load_data, or choose texts such as "
            "'pydoc', a .txt file or a folder of them."
        )
    return found


def _path(
    name_or_path: str | Path,
    split: str | None,
    root: Path | None,
    plain: bool,
    texts: bool,
    column: str | None,
    label: str | None,
) -> Found:
    check_place(name_or_path, root)
    path = Path(name_or_path).expanduser()
    path = root / path if root is not None else path
    path = Path(os.path.abspath(path))  # a name for "."; links stay as they are
    if texts or holds_text(path):
        given = path_source(path, split, column, label)
        return Found(given, path.name, given.holds or ALL, split and normal_split(split))
    if column is not None or label is not None:
        raise DataError(f"{path} has no columns: column and label_column are for .jsonl, .csv and .tsv files.")
    paired = bool(path.name) and path.with_name(path.name + SUFFIX).is_dir() and split in (None, path.name)
    if paired and normal_split(path.name) in find_splits(path.parent, []):
        path, split = path.parent, path.name  # .../ImageNetS919/validation itself
    if categories_file(path) is not None and not plain:
        source = imagenet_s(path, split)
    else:
        source = with_masks(folder_source(path, split), path, plain)
    return Found(as_source(source, path.name), path.name, source.holds or ALL, split and normal_split(split))


def _pair(images: Path, labels: Path, split: str | None, root: Path | None) -> Found:
    images, labels = (Path(os.path.abspath((root or Path()) / folder.expanduser())) for folder in (images, labels))
    source = as_source(pair_source(images, labels, split), images.name)
    return Found(source, images.name, source.holds or ALL, split and normal_split(split))


def _call(entry: DatasetEntry, split: str | None, root: Path | None, download: bool) -> tuple[Any, str]:
    """Run a dataset function, and say which split came back."""
    asked = normal_split(split) if split is not None else None
    if not entry.has_splits:
        wanted: str | None = ALL
    elif entry.splits is not None:
        wanted = choose_split(asked, entry.splits, f"Dataset {entry.name!r}")
    else:
        wanted = asked or entry.default_split()
    try:
        source = entry(split=wanted, root=root, download=download)
        if not is_data(source):
            source = (as_text_source if are_texts(source) else as_source)(source, entry.name)
    except VitscopeError:
        raise
    except Exception as error:  # a user's own function may fail in any way
        raise DataError(f"Dataset {entry.name!r} failed: {type(error).__name__}: {error}") from error
    return source, getattr(source, "holds", None) or wanted or ALL
