"""Packages whose names are loaded on first use: to look at one file of a room does not load the room."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy(
    package: str, old: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__, __dir__, __all__ = lazy(__name__)` for the names that a package imports under `if TYPE_CHECKING:`.

    They are read off its source, so that each is written once, for type checkers and for the first use. None may be
    that of a module in the package: importing that module would put it in the name's place. `old`: {name of a former
    version: today's}, which warns.
    """
    homes = _homes(Path(str(sys.modules[package].__file__)))
    former = renamed(package, old or {}, depth=3)

    def load(name: str) -> Any:
        if name in (old or {}):
            return former(name)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(homes)  # to which the package may add
    return load, lambda: sorted(names), names


def _homes(file: Path) -> dict[str, str]:
    """{name: module} of the imports that a package makes for types only."""
    (typed,) = (node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.If))
    return {
        alias.name: str(line.module) for line in typed.body if isinstance(line, ast.ImportFrom) for alias in line.names
    }


def renamed(module: str, old: Mapping[str, str], depth: int = 2) -> Callable[[str], Any]:
    """`__getattr__ = renamed(__name__, {"Figure": "Headline"})`: an old name still works, and says what replaces it."""

    def find(name: str) -> Any:
        if name not in old:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        text = f"{module}.{name} is called {old[name]} since 0.2, and the old name goes in 0.3."
        warnings.warn(text, DeprecationWarning, stacklevel=depth)
        return getattr(sys.modules[module], old[name])

    return find
