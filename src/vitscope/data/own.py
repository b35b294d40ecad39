"""Data that make their own batches, behind a function: `load_data("package.module:function")` chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscope.data.selection import pick_every, pick_first, pick_images, pick_listed, pick_per_class, pick_share
from vitscope.errors import DataError

if TYPE_CHECKING:
    from vitscope.data.batch import Batch
    from vitscope.data.protocol import Data


def is_data(thing: Any) -> bool:
    """Does it hand out batches itself, and is no list of pictures?"""
    return callable(getattr(thing, "batches", None)) and callable(getattr(thing, "describe", None))


# of `Data`; `task` has a default, and `ordered_as` is asked where a model knows the same classes in another order
_MEMBERS = ("name", "split", "classes", "class_ids", "num_classes", "labels", "warnings", "has_masks", "shards")
_METHODS = ("__len__", "describe", "check_head", "subset", "batches")


def check_whole(data: Any) -> None:
    """Raise DataError at data that lack what everybody asks of data."""
    if missing := [name for name in (*_MEMBERS, *_METHODS) if not hasattr(data, name)]:
        raise DataError(
            f"Data of the class {type(data).__name__} have no {', '.join(missing)}: expected all that "
            "vitscope.data.Data names. What fits into the memory is quickest said as vitscope.data.Tensors."
        )


class Named:
    """Data as they are, and how they were named: what a run needs to find them again."""

    def __init__(self, data: Data, selection: Mapping[str, Any], warnings: Sequence[str] = ()) -> None:
        self._data, self._selection = data, dict(selection)
        self.warnings = [*data.warnings, *warnings]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is copied or unpickled there is nothing behind it yet
            raise AttributeError(name)
        return getattr(self._data, name)

    def __len__(self) -> int:
        return len(self._data)

    def describe(self) -> dict[str, Any]:
        """`own`: whatever else the data say of themselves."""
        told = dict(self._data.describe())
        what = {"name": self.name, "split": self.split, "n": len(self), "masks": self.has_masks}
        known: dict[str, Any] = {key: told.pop(key) for key in ("fingerprint", "num_classes") if key in told}
        own = {key: value for key, value in told.items() if key not in what}
        return {**what, **known, **({"own": own} if own else {}), **self._selection}

    def subset(self, indices: Sequence[int]) -> Named:
        return Named(self._data.subset(indices), self._selection)

    def batches(self, *args: Any, **options: Any) -> Iterator[Batch]:
        return self._data.batches(*args, **options)


def choose(
    data: Data,
    *,
    source: str,
    root: str | Path | None,
    list_file: str | Path | None,
    every: int,
    share: float,
    per_class: int | None,
    images: int | None,
    first: int | None,
    seed: int,
) -> Named:
    """Items by the rules for pictures: `list_file`, `every`, `share`, `per_class`, `images`, `first`, in this order."""
    check_whole(data)
    names = list(getattr(data, "names", None) or [f"{data.name}[{i}]" for i in range(len(data))])
    order, remarks = list(range(len(names))), []
    rules: list[tuple[bool, Callable[[list[str], list[int]], Any]]] = [
        (list_file is not None, lambda n, _: pick_listed(n, str(list_file), None)),
        (every != 1, lambda n, _: pick_every(n, every)),
        (share != 1, lambda n, labels: pick_share(n, labels, share, seed)),
        (per_class is not None, lambda n, labels: pick_per_class(n, labels, per_class or 0, seed)),
        (images is not None, lambda n, labels: pick_images(n, labels, images or 0, seed)),
        (first is not None, lambda n, _: pick_first(len(n), first or 0)),
    ]
    for asked, pick in rules:
        if asked:
            picked = pick([names[i] for i in order], [data.labels[i] for i in order])
            places, remark = picked if isinstance(picked, tuple) else (picked, None)
            order = [order[i] for i in places]
            remarks += [remark] if remark else []
    if order != list(range(len(names))):
        data = data.subset(order)
    selection: dict[str, Any] = {
        "source": source,
        "root": None if root is None else str(root),
        "images": images,
        "seed": seed,
    }
    selection |= {"per_class": per_class, "list_file": None if list_file is None else str(list_file), "share": share}
    selection |= ({"every": every} if every != 1 else {}) | ({"first": first} if first is not None else {})
    return Named(data, selection, remarks)
