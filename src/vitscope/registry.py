"""What the registries of the rooms share: a class outside of the package by its path, and options that exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from vitscope.errors import VitscopeError, suggest

T = TypeVar("T")


def import_class(path: str, base: type[T], kind: str, public: str) -> type[T]:
    """The class behind `package.module:Class`, a subclass of `base`, which users know as `public`."""
    import importlib

    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise VitscopeError(
            f"{kind.capitalize()} {path!r} cannot be imported: {error}. Expected package.module:Class, with the module "
            "on Python's path (run from its folder, or set PYTHONPATH)."
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise VitscopeError(f"{path!r} is not an {kind}: expected a subclass of {public}.")
    return found


def check_options(given: Iterable[str], known: Sequence[str], kind: str, name: str) -> None:
    """Raise at the first option that is not among `known`, with the nearest one."""
    for option in given:
        if option not in known:
            takes = f"It takes {', '.join(known)}." if known else "It takes none."
            raise VitscopeError(
                f"{kind.capitalize()} {name!r} has no option {option!r}.{suggest(option, known)} {takes}"
            )
