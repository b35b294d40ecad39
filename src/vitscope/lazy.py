"""Packages whose names are loaded on first use: to look at one file of a room does not load the room."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__, __dir__, __all__ = lazy(__name__, {"analyze": "engine"})` for names that live in modules below.

    A home with dots, `vitscope.interrupt`, lies elsewhere. No name may be that of a module in the package: importing
    that module would put it in the name's place.
    """
    names = sorted(homes)

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        value = getattr(import_module(home if "." in home else f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(names), names
