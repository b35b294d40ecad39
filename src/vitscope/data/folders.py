"""ImageNet-style folders: splits with class folders in them, class folders directly, or just pictures."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitscope.data import synsets
from vitscope.data.images import EXTENSIONS
from vitscope.data.places import given_root
from vitscope.data.registry import register_dataset
from vitscope.data.source import Source
from vitscope.data.splits import ALL, choose_split, normal_split
from vitscope.errors import DataError

_NOT_CLASSES = ("__MACOSX", "lost+found")
_USUAL = ("train", "val", "test")
_NUMBER = re.compile(r"(\d+)")


@dataclass
class Listing:
    """What lies below a folder."""

    files: list[str] = field(default_factory=list)  # pictures, relative to the folder, sorted
    other: Counter[str] = field(default_factory=Counter)  # extensions of what is not a picture
    problems: list[str] = field(default_factory=list)  # what was not followed or could not be listed


@register_dataset("folder")
def folder(root: Path | None, split: str | None = None) -> Source:
    """Class folders with labels in the natural order of their names, whatever the names are."""
    return folder_source(given_root(root, "folder", ", or type the path itself (./folder)"), split, wordnet=False)


@register_dataset("imagenet")
def imagenet(root: Path | None, split: str | None = None) -> Source:
    """Class folders whose names must be WordNet ids of ImageNet-1k."""
    source = folder_source(given_root(root, "imagenet", ", or type the path itself (./imagenet)"), split, wordnet=True)
    if source.class_ids is None or len(source.class_ids) != synsets.NUM_CLASSES:
        raise DataError(
            f"The class folders of {root} are not WordNet ids of ImageNet-1k such as n01440764: "
            "load it as a plain folder, by its path or as 'folder'."
        )
    return source


def folder_source(root: Path, asked: str | None, wordnet: bool | None = None) -> Source:
    """A folder's pictures. `wordnet`: labels among ImageNet's 1,000 (None: if all class folders have such names)."""
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "does not exist"
        raise DataError(
            f"{root} {what}: expected a folder of images, or of class folders with images; or a file of text "
            "(.txt, .jsonl, .csv, .tsv)."
        )
    problems: list[str] = []
    splits = find_splits(root, problems)
    if splits:
        split = choose_split(asked, sorted(splits), str(root))
        base = splits[split]
        class_dirs = {d.name for s in splits.values() for d in subfolders(s, [])}  # the same labels in every split
    else:
        own_name = normal_split(root.name)
        split = own_name if asked is not None and normal_split(asked) == own_name else ALL
        base, class_dirs = root, {d.name for d in subfolders(root, [])}
    ids, names = _classes(sorted(class_dirs, key=natural_order), wordnet, problems)
    folders = subfolders(base, problems)
    files, labels = _labelled(base, folders, ids, problems) if folders else _unlabelled(base, problems)
    unknown = f"{base} has no class folders: the labels of its {len(files):,} images are unknown (-1)."
    prefix = "" if base == root else base.relative_to(root).as_posix() + "/"
    rows = [prefix + f for f in files]
    return Source(
        images=FileList(root, rows),
        labels=labels,
        classes=names,
        class_ids=ids,
        root=root,
        names=rows,
        holds=split,
        warnings=tuple(dict.fromkeys(problems)),  # a folder may have been looked at twice
        notes=() if folders else (unknown,),
    )


def _classes(class_dirs: list[str], wordnet: bool | None, problems: list[str]) -> tuple[list[str], list[str]]:
    """Ids and names of the classes, in the order of the labels."""
    known = synsets.count_known(class_dirs) if wordnet is not False else 0
    if known and known == len(class_dirs):
        return list(synsets.wordnet_ids()), list(synsets.class_names())
    if known:
        others = sorted(set(class_dirs) - set(synsets.wordnet_ids()))
        problems.append(
            f"{known:,} of {len(class_dirs):,} class folders are WordNet ids of ImageNet-1k, the others are not "
            f"(e.g. {others[0]}): labels follow the order of the folders, not ImageNet's."
        )
    return class_dirs, class_dirs


def _labelled(base: Path, folders: list[Path], ids: list[str], problems: list[str]) -> tuple[list[str], list[int]]:
    """Files and labels of class folders."""
    number = {name: i for i, name in enumerate(ids)}
    files: list[str] = []
    labels: list[int] = []
    other: Counter[str] = Counter()
    empty = []
    for class_dir in folders:
        listing = list_images(class_dir)
        files += [f"{class_dir.name}/{name}" for name in listing.files]
        labels += [number[class_dir.name]] * len(listing.files)
        other += listing.other
        problems += listing.problems
        if not listing.files:
            empty.append(class_dir.name)
    stray = list_images(base, deep=False).files
    if not files:
        raise DataError(_no_images(base, other, stray))
    if empty:
        problems.append(f"{len(empty):,} class folders hold no images: {', '.join(empty[:5])}.")
    if stray:
        problems.append(f"{len(stray):,} images lie beside the class folders and are left out, e.g. {stray[0]}.")
    return files, labels


def _unlabelled(base: Path, problems: list[str]) -> tuple[list[str], list[int]]:
    """Files that lie in no class folder."""
    listing = list_images(base)
    problems += listing.problems
    if not listing.files:
        raise DataError(_no_images(base, listing.other, []))
    return listing.files, [-1] * len(listing.files)


@dataclass(frozen=True)
class FileList:
    """Files below a folder, as a sequence of paths that costs no more memory than the names."""

    root: Path
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> str:
        return os.path.join(self.root, self.names[i])


def find_splits(root: Path, problems: list[str]) -> dict[str, Path]:
    """Folders of `root` that are splits, by normalised name; empty if its folders are classes.

    A folder called `train` may also be a class of vehicles. It is a split if it has folders itself, or if all of
    its neighbours have names of splits too.
    """
    folders = [d for d in subfolders(root, problems) if not d.name.endswith("-segmentation")]
    inner = {d: {c.name for c in subfolders(d, [])} for d in folders}
    usual = [d for d in folders if normal_split(d.name) in _USUAL]
    if not usual or not (len(usual) == len(folders) or any(inner[d] for d in usual)):
        return {}
    classes = {name for d in usual for name in inner[d]}
    splits: dict[str, Path] = {}
    for d in folders:
        if d not in usual and not classes & inner[d]:  # 'ood/' beside 'val/' with classes of the same names is a split
            continue
        name = normal_split(d.name)
        if name in splits:
            raise DataError(
                f"{root} has both {splits[name].name}/ and {d.name}/: it is unclear which is meant. Rename one."
            )
        splits[name] = d
    return splits


def natural_order(name: str) -> Any:
    """A key to sort by: 2 before 10, class2 before class10, small and capital letters alike; as timm numbers folders.

    As text, the folders 0 to 999 would be 0, 1, 10, 100, ...: hardly a class would meet its own logit.
    """
    parts = _NUMBER.split(name.lower())  # text and numbers by turns, text first
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def subfolders(folder: Path, problems: list[str]) -> list[Path]:
    """Visible folders in a folder, in natural order, without links that lead back up."""
    above = _ancestors(folder)
    found = []
    for entry in _scan(folder, problems):
        if entry.name.startswith(".") or entry.name in _NOT_CLASSES or not _is_dir(entry):
            continue
        if entry.is_symlink() and _identity(entry.path) in above:
            problems.append(f"The link {entry.path} leads back to a folder above it: not followed.")
            continue
        found.append(folder / entry.name)
    return sorted(found, key=lambda d: natural_order(d.name))


def list_images(folder: Path, deep: bool = True) -> Listing:
    """Pictures below a folder. Links are followed, every folder is listed once, so loops end."""
    listing = Listing()
    seen = _ancestors(folder)
    todo = [(str(folder), "")]
    while todo:
        path, prefix = todo.pop()
        inner: list[os.DirEntry[str]] = []
        for entry in _scan(path, listing.problems):
            if entry.name.startswith("."):
                continue
            if _is_dir(entry):
                inner.append(entry)
            elif _is_file(entry):
                extension = os.path.splitext(entry.name)[1].lower()
                if extension in EXTENSIONS:
                    listing.files.append(prefix + entry.name)
                else:
                    listing.other[extension or "(none)"] += 1
        for entry in sorted(inner, key=lambda e: (e.is_symlink(), e.name)) if deep else []:  # real folders first
            identity = _identity(entry.path)
            if identity in seen:
                listing.problems.append(
                    f"The link {entry.path} leads to a folder that is listed already: not followed."
                )
                continue
            seen.add(identity)
            todo.append((entry.path, f"{prefix}{entry.name}/"))
    listing.files.sort()
    return listing


def _scan(path: str | Path, problems: list[str]) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError as error:
        problems.append(f"The folder {path} cannot be listed ({error.strerror}): its images are missing here.")
        return []


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Regular files and dangling links: the latter shall be listed as broken, not vanish. No pipes, no devices."""
    try:
        return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))
    except OSError:
        return True


def _identity(path: str | Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _ancestors(folder: Path) -> set[tuple[int, int]]:
    """The folder itself and all above it."""
    real = Path(os.path.realpath(folder))
    return {_identity(p) for p in (real, *real.parents)}


def _no_images(folder: Path, other: Counter[str], stray: list[str]) -> str:
    if "mnist" in str(folder).lower() and any("ubyte" in e or e == ".gz" for e in other):
        return f"{folder} holds raw MNIST files: type 'mnist' or 'fashion-mnist' as the dataset, with root={folder}."
    seen = (
        f" There are {other.total():,} other files ({', '.join(e for e, _ in other.most_common(5))})." if other else ""
    )
    beside = f" {len(stray):,} images lie beside empty class folders." if stray else ""
    return (
        f"No images in {folder}.{seen}{beside} Expected pictures (.jpg, .png, ...), or class folders with pictures; or "
        "texts (.txt, .jsonl, .csv, .tsv)."
    )
