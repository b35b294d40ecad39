"""Data that make their own batches, behind a function: `load_data("package.module:function")` chooses among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitscope.data.batch import Batch
from vitscope.data.protocol import Data
from vitscope.data.selection import Choice
from vitscope.errors import DataError


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


def choose(data: Data, choice: Choice, *, source: str, root: str | Path | None) -> Named:
    """Items by the rules for pictures."""
    check_whole(data)
    names = list(getattr(data, "names", None) or [f"{data.name}[{i}]" for i in range(len(data))])
    order, remarks = choice.among(names, data.labels, None)
    if order != list(range(len(names))):
        data = data.subset(order)
    return Named(data, choice.described(source, root), remarks)
