"""Which pictures of a dataset: every so many, a share, so many in all, so many per class, or those of a list.

Choices are made by hashing (seed, name of the picture), not by a random generator: they do not depend on how many
other pictures there are, on their order, or on a library's version, and smaller choices are part of larger ones.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitscope.data.lists import read_list
from vitscope.errors import DataError


def balanced_order(names: Sequence[str], labels: Sequence[int], salt: int | str) -> list[int]:
    """All positions, so that every beginning of the list is spread over the classes as evenly as can be.

    First one picture of each class, then a second one of each, and so on, as long as the classes last.
    """
    keys, rank, _ = _ranks(names, labels, salt)
    return np.lexsort((keys, _class_keys(labels, salt), rank)).tolist()


def proportional_order(names: Sequence[str], labels: Sequence[int], salt: int | str) -> list[int]:
    """All positions, so that every beginning of the list has the classes in the proportions of the whole."""
    keys, rank, size = _ranks(names, labels, salt)
    return np.lexsort((keys, _class_keys(labels, salt), (rank + 0.5) / size)).tolist()


def pick_every(names: Sequence[object], every: int) -> list[int]:
    """The pictures 0, every, 2 every, ..."""
    if every < 1:
        raise DataError(f"every must be at least 1 (all of them), not {every}.")
    return list(range(0, len(names), every))


def pick_share(names: Sequence[str], labels: Sequence[int], share: float, seed: int) -> list[int]:
    """A share of the pictures, at least one, in proportion to the classes."""
    if not 0 < share <= 1:
        raise DataError(f"share must lie between 0 (excluded) and 1, not {share}.")
    if share == 1:
        return list(range(len(names)))
    return proportional_order(names, labels, seed)[: max(1, round(share * len(names)))]


def pick_first(n: int, first: int, what: str = "images") -> tuple[list[int], str | None]:
    """The first so many of `n` in their order, and a remark if there are not that many."""
    if first < 1:
        raise DataError(f"first must be at least 1, not {first}.")
    short = f"Asked for the first {first:,} {what}, there are {n:,}: all of them are used."
    return list(range(min(first, n))), short if first > n else None


def pick_images(
    names: Sequence[str], labels: Sequence[int], images: int, seed: int, what: str = "images"
) -> tuple[list[int], str | None]:
    """`images` pictures spread over the classes, and a remark if there are not that many."""
    if images < 1:
        raise DataError(f"{what} must be at least 1, not {images}.")
    short = f"Asked for {images:,} {what}, there are {len(names):,}: all of them are used."
    return balanced_order(names, labels, seed)[:images], short if images > len(names) else None


def pick_per_class(
    names: Sequence[str], labels: Sequence[int], per_class: int, seed: int
) -> tuple[list[int], str | None]:
    """`per_class` pictures of every class that is there, and a remark if a class has fewer."""
    if per_class < 1:
        raise DataError(f"per_class must be at least 1, not {per_class}.")
    if all(label < 0 for label in labels):
        raise DataError("per_class needs labels, but the classes of these images are unknown: use images=N instead.")
    _, rank, _ = _ranks(names, labels, seed)
    order = [i for i in balanced_order(names, labels, seed) if rank[i] < per_class and labels[i] >= 0]
    counts = Counter(labels[i] for i in order)
    short = sum(count < per_class for count in counts.values())
    remark = (
        f"Asked for {per_class:,} images of each class, {short:,} of {len(counts):,} classes have fewer: "
        f"{len(order):,} images are used instead of {per_class * len(counts):,}."
    )
    return order, remark if short else None


def pick_listed(names: Sequence[str], list_file: str | Path, root: Path | None) -> tuple[list[int], str | None]:
    """The pictures that a CSV file names, in its order, and a remark if it names others too.

    The column `path`, or the one whose entries are pictures of the dataset (`lists.py`). A path is relative to the
    dataset or to the folder of the split, absolute, or a bare file name that occurs once.
    """
    listed = read_list(Path(list_file), names, root)
    found: dict[int, None] = {}  # a set that keeps the order
    missing: list[str] = []
    repeated = 0
    for entry, position in zip(listed.entries, listed.positions):
        if position is None:
            missing.append(entry)
        elif position in found:
            repeated += 1
        else:
            found[position] = None
    if not found:
        columns = f" Its columns are {', '.join(listed.header)}." if len(listed.header) > 1 else ""
        raise DataError(
            f"None of the {len(listed.entries):,} paths in {list_file} is in the dataset.{columns} The first one reads "
            f"{listed.entries[0]!r}; expected a column, best called 'path', with entries like {names[0]!r}."
        )
    remarks = []
    if missing:
        sample = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        remarks.append(f"{len(missing):,} of the images listed in {Path(list_file).name} are not there: {sample}.")
    if repeated:
        remarks.append(f"{repeated:,} repeated lines of {Path(list_file).name} count once.")
    return list(found), " ".join(remarks) or None


OF_PICTURES = ("per_class", "list_file")  # rules that texts do not know


@dataclass(frozen=True)
class Choice:
    """Which items of a dataset are meant: these rules in their order; `seed` chooses among equals."""

    list_file: str | Path | None = None  # those that a CSV file names
    every: int = 1  # 0, every, 2 every, ...
    share: float = 1.0
    per_class: int | None = None
    images: int | None = None
    first: int | None = None
    seed: int = 0

    def among(
        self, names: Sequence[str], labels: Sequence[int], root: Path | None, what: str = "images"
    ) -> tuple[list[int], list[str]]:
        """Places among items with these names and labels, and remarks where there are fewer than asked for."""

        def told(places: list[int]) -> tuple[list[str], list[int]]:
            return [names[i] for i in places], [labels[i] for i in places]

        rules: list[tuple[bool, Callable[[list[int]], Any]]] = [
            (self.list_file is not None, lambda o: pick_listed(told(o)[0], str(self.list_file), root)),
            (self.every != 1, lambda o: pick_every(o, self.every)),
            (self.share != 1, lambda o: pick_share(*told(o), self.share, self.seed)),
            (self.per_class is not None, lambda o: pick_per_class(*told(o), self.per_class or 0, self.seed)),
            (self.images is not None, lambda o: pick_images(*told(o), self.images or 0, self.seed, what)),
            (self.first is not None, lambda o: pick_first(len(o), self.first or 0, what)),
        ]
        order, remarks = list(range(len(names))), list[str]()
        for asked, pick in rules:
            if asked:
                picked = pick(order)
                places, remark = picked if isinstance(picked, tuple) else (picked, None)
                order = [order[i] for i in places]
                remarks += [remark] if remark else []
        return order, remarks

    def described(self, source: str, root: str | Path | None) -> dict[str, Any]:
        """What a run keeps of it: the two last only where they say something, as absent as in older runs."""
        found: dict[str, Any] = {"source": source, "root": None if root is None else str(root), "images": self.images}
        found |= {"per_class": self.per_class, "list_file": None if self.list_file is None else str(self.list_file)}
        found |= {"share": self.share, "seed": self.seed} | ({"every": self.every} if self.every != 1 else {})
        return found | ({"first": self.first} if self.first is not None else {})


def _hash(salt: int | str, name: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(f"{salt}/{name}".encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big"
    )


def _ranks(names: Sequence[str], labels: Sequence[int], salt: int | str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each picture: its hash, its place within its class by hash, and the size of its class."""
    keys = np.fromiter((_hash(salt, n) for n in names), dtype=np.uint64, count=len(names))
    classes = np.asarray(labels, dtype=np.int64)
    order = np.lexsort((keys, classes))
    _, first, size = np.unique(classes[order], return_index=True, return_counts=True)
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names)) - np.repeat(first, size)
    sizes = np.empty(len(names), dtype=np.int64)
    sizes[order] = np.repeat(size, size)
    return keys, rank, sizes


def _class_keys(labels: Sequence[int], salt: int | str) -> np.ndarray:
    """A hash per class, so that an uneven choice does not always favour the first classes."""
    table = {label: _hash(salt, f"class {label}") for label in set(labels)}
    return np.fromiter((table[label] for label in labels), dtype=np.uint64, count=len(labels))
