"""Datasets by name: a decorated function is a dataset."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from vitscope.errors import DataError, suggest

_BUILT_IN = ("digits", "cifar", "folders", "imagenet_s", "imagenet_v2")
_OFFERED = ("split", "root", "download")  # what a dataset function may ask for, by naming a parameter so
_MODULE_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

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


_DATASETS: dict[str, DatasetEntry] = {}


def register_dataset(name: str, *, splits: Sequence[str] | None = None) -> Callable[[F], F]:
    """Function decorator: make a dataset known under `name`.

    The function returns `(images, labels)`, `(images, labels, classes)` or a `Source`. It is given what it has
    parameters for: `split` (normalised: 'train', 'val', 'test'), `root` (a Path or None), `download` (bool). Without
    a `split` parameter it returns everything, and vitscope makes a split when one is asked for. `splits` names those
    that exist; a set that declares them is never used as a whole unless somebody asks for split='all'.
    """

    def register(function: F) -> F:
        _DATASETS[normal_name(name)] = _entry(normal_name(name), function, splits)
        return function

    return register


def list_datasets() -> list[str]:
    """The registered names."""
    _import_built_in()
    return sorted(_DATASETS)


def find_dataset(name: str) -> DatasetEntry | None:
    """The dataset of that name, registered or 'package.module:function', or None if it is neither."""
    _import_built_in()
    if normal_name(name) in _DATASETS:
        return _DATASETS[normal_name(name)]
    return _from_module(name) if _MODULE_FUNCTION.fullmatch(name) else None


def normal_name(name: str) -> str:
    """'Fashion_MNIST' and 'fashion-mnist' are one dataset."""
    return name.strip().lower().replace("_", "-")


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


def _import_built_in() -> None:
    for module in _BUILT_IN:
        importlib.import_module(f"vitscope.data.{module}")


def _from_module(name: str) -> DatasetEntry:
    module_name, _, attribute = name.partition(":")
    module = _import(module_name, name)
    function = getattr(module, attribute, None)
    if not callable(function):
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        known = f" Its functions: {', '.join(functions)}." if functions else ""
        raise DataError(f"There is no function {attribute!r} in {module_name}.{suggest(attribute, functions)}{known}")
    for entry in _DATASETS.values():
        if entry.function is function:  # decorated: it may have declared its splits
            return DatasetEntry(name, function, entry.splits, entry.takes)
    return _entry(name, function, None)


def _import(module_name: str, name: str) -> ModuleType:
    """Import a user's module; the current directory counts, as it does for `python -m`."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # for good: worker processes must find the module too
        importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise DataError(
                f"There is no module {error.name!r} for the dataset {name!r}: expected 'package.module:function', "
                f"installed or below the current directory ({here})."
            ) from error
        raise DataError(f"Module {module_name!r} of the dataset {name!r} needs {error.name!r}: {error}.") from error
    except Exception as error:
        raise DataError(f"Module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
