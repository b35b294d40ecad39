"""Which tar files of a folder are a split: timm's info file says so, a pattern, or else the names of the files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from vitscope.data.splits import ALL, choose_split, normal_split
from vitscope.errors import DataError, VitscopeError
from vitscope.options import read_yaml

INFO_FILES = ("_info.json", "info.json", "_info.yaml", "info.yaml")  # timm's reader looks for the first two
_USUAL = ("train", "val", "test")
_WORD = re.compile(r"[^A-Za-z]+")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_SHARDS = 10**6  # '{0..999999999}' is a slip of the finger


@dataclass
class ShardList:
    """The shards of one split, relative to the folder, in their order."""

    files: list[str]
    split: str  # 'all': nothing says which split they are
    lengths: dict[str, int] = field(default_factory=dict)  # samples in each, where the info file tells
    stray: list[str] = field(default_factory=list)  # tar files of no split, beside those of splits
    alt_label: str = ""  # the label is this entry of the sample's json file instead of its .cls file


def find_shards(folder: Path, asked: str | None) -> ShardList:
    """The shards of a split, as timm chooses them; without an info file by the words in their names.

    `asked`: a split, a pattern such as 'digits-{00..07}.tar', also several joined by '::' and with timm's '|1000' (the
    number of samples, which is counted here) at the end, or None for the held-out part.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give the one that holds the tar files as root=FOLDER (--root).")
    info, source = _read_info(folder)
    splits = {normal_split(str(name)): entry for name, entry in info.items()}
    if asked is not None and (".tar" in asked or ".." in asked):  # a pattern
        files = [name for part in asked.partition("|")[0].split("::") for name in _expand(part)]
        known = {f: n for entry in splits.values() for f, n in _lengths(entry, source).items()}
        return ShardList(_checked(folder, files, asked), asked, {f: n for f, n in known.items() if f in files})
    if splits:
        split = choose_split(asked, list(splits), str(folder))
        entry = splits[split]
        files = _checked(folder, _names(entry, source), source)
        return ShardList(files, split, _lengths(entry, source), alt_label=str(entry.get("alt_label") or ""))
    return _by_names(folder, asked)


def _by_names(folder: Path, asked: str | None) -> ShardList:
    """'set-train-00.tar', 'val/7.tar': a split for each word; tars without such words are a set without a split."""
    found = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.tar") if p.is_file())
    if not found:
        packed = next((p.name for p in folder.rglob("*.tar.*")), None)
        hint = f" {packed} is compressed: unpack the tar itself first." if packed else ""
        raise DataError(f"{folder} has no tar files: expected shards such as digits-00.tar.{hint}")
    splits: dict[str, list[str]] = {}
    for name in found:
        words = [normal_split(word) for word in _WORD.split(name.removesuffix(".tar"))]
        splits.setdefault(next((word for word in reversed(words) if word in _USUAL), ALL), []).append(name)
    if list(splits) == [ALL]:
        return ShardList(found, ALL)
    if asked == ALL:
        raise DataError(f"{folder} has splits ({', '.join(s for s in splits if s != ALL)}): choose one of them.")
    split = choose_split(asked, [name for name in splits if name != ALL], str(folder))
    return ShardList(splits[split], split, stray=splits.get(ALL, []))


def _read_info(folder: Path) -> tuple[Mapping[str, Any], str]:
    """The splits of the info file, if there is one, and how to call that file."""
    file = next((folder / name for name in INFO_FILES if (folder / name).is_file()), None)
    if file is None:
        return {}, ""
    try:
        text = file.read_text(encoding="utf-8")
        info = json.loads(text) if file.suffix == ".json" else read_yaml(text, str(file))
    except (OSError, ValueError, RecursionError, VitscopeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    splits = info.get("splits") if isinstance(info, Mapping) else None
    if not isinstance(splits, Mapping) or not all(isinstance(entry, Mapping) for entry in splits.values()):
        raise DataError(f"{file} does not say which splits there are: expected {{'splits': {{'train': {{...}}}}}}.")
    return splits, str(file)


def _names(entry: Mapping[str, Any], source: str) -> list[str]:
    names = entry.get("filenames")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{source} does not list the files of a split: expected 'filenames', a list of tar files.")
    return names


def _lengths(entry: Mapping[str, Any], source: str) -> dict[str, int]:
    lengths = entry.get("shard_lengths")
    known = lengths if isinstance(lengths, list) and all(isinstance(n, int) for n in lengths) else []
    return dict(zip(_names(entry, source), known))


def _checked(folder: Path, names: list[str], source: str) -> list[str]:
    """All of these are files below the folder. WebDataset would also fetch addresses and run 'pipe:' commands."""
    for name in names:
        if ":" in name or "\0" in name or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DataError(
                f"{source} names the shard {name!r}: only tar files below {folder} are read. Nothing is fetched or "
                "started because of a name."
            )
    missing = [name for name in names if not os.path.isfile(folder / name)]
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(names):,} shards that {source} names are not in {folder}, e.g. "
            f"{missing[0]}. Fetch them, or choose those that are there: split='NAME-{{00..07}}.tar'."
        )
    return list(dict.fromkeys(names))


def _expand(pattern: str) -> Iterator[str]:
    """'a-{08..10}.tar' -> 'a-08.tar', 'a-09.tar', 'a-10.tar'; '{train,val}.tar' -> 'train.tar', 'val.tar'."""
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    numbers = _RANGE.fullmatch(braces[1])
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if not 0 <= last - first < _MOST_SHARDS:
            raise DataError(f"The shards {pattern!r} cannot be counted: expected something like {{00..07}}.")
        width = max(map(len, numbers.groups())) if any(n[0] == "0" and len(n) > 1 for n in numbers.groups()) else 0
        choices = [f"{n:0{width}d}" for n in range(first, last + 1)]
    else:
        choices = braces[1].split(",")
    for choice in choices:
        yield from _expand(pattern[: braces.start()] + choice + pattern[braces.end() :])
