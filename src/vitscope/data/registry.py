"""Datasets by name: a decorated function is a dataset."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from vitscope.errors import DataError, suggest
from vitscope.outside import is_address
from vitscope.registry import DATASETS

_OFFERED = ("split", "root", "download", "name", "dataset")  # what a function may ask for, by naming a parameter so

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class DatasetEntry:
    """A dataset function and what it wants to be told."""

    name: str
    function: Callable[..., Any]
    splits: tuple[str, ...] | None  # None: not declared; the function judges
    takes: frozenset[str]
    needs: tuple[str, str] | None = None  # a package that reads it, and what pip is asked for to have it
    rest: str = ""  # what was typed after the dataset's own name and a slash

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

    def check_package(self) -> None:
        """Raise where the package is missing that reads this dataset."""
        package, wanted = self.needs or ("", "")
        if package and importlib.util.find_spec(package) is None:
            raise DataError(f"Dataset {self.name!r} needs {package}, which is not installed: pip install {wanted}.")

    def __call__(self, **offered: Any) -> Any:
        self.check_package()
        offered |= {"name": self.rest, "dataset": self.name}
        return self.function(**{k: v for k, v in offered.items() if k in self.takes})


def register_dataset(
    name: str, *, splits: Sequence[str] | None = None, needs: tuple[str, str] | None = None
) -> Callable[[F], F]:
    """Function decorator: make a dataset known under `name`.

    The function returns `(images, labels)`, `(images, labels, classes)` or a `Source`; or texts: strings, or pairs of a
    name and a string, in a list or one after the other; or `Data` that make their own batches. It is given what it has
    parameters for: `split` (normalised: 'train', 'val', 'test'), `root` (a Path or None), `download` (bool), `name`
    (what stands after the slash where 'wds/digits' was asked for, else ''), `dataset` (the name it was asked for by).
    Without a `split` parameter it returns everything, and vitscope makes a split when one is asked for. `splits` names
    those that exist; a set that declares them is never used as a whole unless somebody asks for split='all'. `needs`:
    a package without which it cannot be read, and what to ask pip for.
    """

    def register(function: F) -> F:
        DATASETS.add(name, _entry(DATASETS.normal(name), function, splits, needs))
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
    if isinstance(name_or_path, str):
        if is_address(name):
            return
        entry = find_dataset(name) if DATASETS.normal(name.partition("/")[0]) in DATASETS.names() else None
        if entry is not None:
            entry.check_package()
            return
    path = Path(root or "").expanduser() / Path(name).expanduser()
    if not os.path.exists(path):  # False, not an error, for a name too long for a file
        known = list_datasets()
        raise DataError(
            f"There is no dataset and no folder {name!r}.{suggest(name, known)} "
            f"Known datasets: {', '.join(known)}; or type the path of a folder or a text, or package.module:function."
        )


def check_labels(labels: str | Path | None, root: str | Path | None = None) -> None:
    """Raise where label maps are asked for and there is no such folder."""
    if labels is None:
        return
    path = Path(root or "").expanduser() / Path(labels).expanduser()
    if not os.path.isdir(path):
        what = "is a file" if os.path.exists(path) else "does not exist"
        raise DataError(f"labels={str(labels)!r} {what}: expected the folder with the label maps of the pictures.")


def find_dataset(name: str) -> DatasetEntry | None:
    """The dataset of that name, registered or 'package.module:function', or None if it is neither."""
    found = DATASETS.get(name) if is_address(name) else DATASETS.find(name)
    head, slash, rest = name.partition("/")
    if found is None and slash and isinstance(prefix := DATASETS.find(head), DatasetEntry) and "name" in prefix.takes:
        return replace(prefix, name=f"{prefix.name}/{rest}".rstrip("/"), rest=rest.strip("/"))
    if isinstance(found, DatasetEntry):  # decorated: it may have declared its splits
        return replace(found, name=name) if is_address(name) else found
    return None if found is None else _entry(name, found, None)


def _entry(
    name: str, function: Callable[..., Any], splits: Sequence[str] | None, needs: tuple[str, str] | None = None
) -> DatasetEntry:
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unknown = [p for p in required if p not in _OFFERED]
    if unknown:
        raise DataError(
            f"Dataset function {name!r} requires {', '.join(unknown)}: only {', '.join(_OFFERED)} can be given. "
            "Give other parameters a default."
        )
    takes = frozenset(p.name for p in parameters if p.name in _OFFERED)
    return DatasetEntry(name, function, tuple(splits) if splits is not None else None, takes, needs)
