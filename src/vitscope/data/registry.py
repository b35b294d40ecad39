"""Datasets by name: a decorated function is a dataset."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from vitscope.errors import DataError, suggest
from vitscope.outside import is_address
from vitscope.registry import DATASETS

_OFFERED = ("split", "root", "download")  # what a dataset function may ask for, by naming a parameter so

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class DatasetEntry:
    """A dataset function and what it wants to be told."""

    name: str
    function: Callable[..., Any]
    splits: tuple[str, ...] | None  # None: not declared; the function judges
    takes: frozenset[str]

    @property
    def has_splits(self) -> bool:
        return "split" in self.takes

    def default_split(self) -> str | None:
        """The split that the function's own signature prefers."""
        default = inspect.signature(self.function).parameters["split"].default
        if default is inspect.Parameter.empty:
            raise DataError(
                f"Dataset {self.name!r} has splits: say which one (split='train', 'val', 'test'), give the parameter "
                "of the function a default, or declare them: @register_dataset(name, splits=(...))."
            )
        return default

    def __call__(self, **offered: Any) -> Any:
        return self.function(**{k: v for k, v in offered.items() if k in self.takes})


def register_dataset(name: str, *, splits: Sequence[str] | None = None) -> Callable[[F], F]:
    """Function decorator: make a dataset known under `name`.

    The function returns `(images, labels)`, `(images, labels, classes)` or a `Source`. It is given what it has
    parameters for: `split` (normalised: 'train', 'val', 'test'), `root` (a Path or None), `download` (bool). Without
    a `split` parameter it returns everything, and vitscope makes a split when one is asked for. `splits` names those
    that exist; a set that declares them is never used as a whole unless somebody asks for split='all'.
    """

    def register(function: F) -> F:
        DATASETS.add(name, _entry(DATASETS.normal(name), function, splits))
        return function

    return register


def list_datasets() -> list[str]:
    """The registered names."""
    return DATASETS.names()


def check_place(name_or_path: str | Path, root: str | Path | None = None) -> None:
    """Raise where neither a dataset nor a folder is called so. `package.module:function` is judged when it is loaded.

    `root`: the folder from which a relative path is meant.
    """
    name = str(name_or_path)
    if isinstance(name_or_path, str) and (is_address(name) or DATASETS.normal(name) in DATASETS.names()):
        return
    path = Path(root or "").expanduser() / Path(name).expanduser()
    if not os.path.exists(path):  # False, not an error, for a name too long for a file
        known = list_datasets()
        raise DataError(
            f"There is no dataset and no folder {name!r}.{suggest(name, known)} "
            f"Known datasets: {', '.join(known)}; or type the path of a folder, or package.module:function."
        )


def find_dataset(name: str) -> DatasetEntry | None:
    """The dataset of that name, registered or 'package.module:function', or None if it is neither."""
    found = DATASETS.get(name) if is_address(name) else DATASETS.find(name)
    if isinstance(found, DatasetEntry):  # decorated: it may have declared its splits
        return replace(found, name=name) if is_address(name) else found
    return None if found is None else _entry(name, found, None)


def _entry(name: str, function: Callable[..., Any], splits: Sequence[str] | None) -> DatasetEntry:
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unknown = [p for p in required if p not in _OFFERED]
    if unknown:
        raise DataError(
            f"Dataset function {name!r} requires {', '.join(unknown)}: only {', '.join(_OFFERED)} can be given. "
            "Give other parameters a default."
        )
    takes = frozenset(p.name for p in parameters if p.name in _OFFERED)
    return DatasetEntry(name, function, tuple(splits) if splits is not None else None, takes)
