"""Code outside of the package: found by `package.module:Name`, and imported only because a person said so.

A name that somebody types, or passes to a function, is imported. A name that only stands in a file (a run's folder, a
configuration, a model's description) is not: such a folder may come from anyone. Inside `only_named` nothing is
imported but what the words of the command line name too, unless they say `--trust`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from vitscope.errors import VitscopeError, suggest

PACKAGE = "vitscope"
TRUST = "--trust"
_ADDRESS = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_]\w*")
# may a module be imported? None: whatever is asked for, since a person's own program asks
_allowed: ContextVar[Callable[[str], bool] | None] = ContextVar("allowed", default=None)


def is_outside(thing: Any) -> bool:
    """Was a class or function, or the function that an entry holds, defined outside of the package?"""
    thing = getattr(thing, "function", thing)
    return str(getattr(thing, "__module__", PACKAGE) or PACKAGE).partition(".")[0] not in (PACKAGE, "functools")


def is_address(word: str) -> bool:
    """Does it read `package.module:Name`? A path with a colon does not."""
    return _ADDRESS.fullmatch(word) is not None


def modules_in(words: Iterable[str]) -> frozenset[str]:
    """The modules of all addresses in some words: `--only a.b:C,accuracy` names `a.b`."""
    return frozenset(found for word in words for found in _ADDRESS.findall(word))


@contextmanager
def only_named(words: Iterable[str] = (), *, trust: bool = False) -> Iterator[None]:
    """Inside the block only modules that `words` name are imported; with `trust` all. An outer block wins."""
    if _allowed.get() is not None:
        yield
        return
    named = modules_in(words)
    token = _allowed.set(lambda module: trust or module in named)
    try:
        yield
    finally:
        _allowed.reset(token)


def find_object(address: str, kind: str, error: type[VitscopeError] = VitscopeError) -> Any:
    """What `package.module:Name` names."""
    if not _ADDRESS.fullmatch(address):
        raise error(f"{kind.capitalize()} {address!r} cannot be read: expected package.module:Name.")
    module_name, _, attribute = address.partition(":")
    module = import_outside(module_name, f"the {kind} {address!r}", error)
    if not hasattr(module, attribute):
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and callable(v)]
        known = f" It has {', '.join(own)}." if own else ""
        raise error(
            f"{kind.capitalize()} {address!r} cannot be imported: there is no {attribute!r} in {module_name}."
            f"{suggest(attribute, own)}{known}"
        )
    return getattr(module, attribute)


def import_outside(module: str, wanted_by: str, error: type[VitscopeError] = VitscopeError) -> ModuleType:
    """Import a user's module; the current folder counts, after everything that is installed."""
    allowed = _allowed.get()
    if allowed is not None and not allowed(module):
        raise error(
            f"{wanted_by[0].upper()}{wanted_by[1:]} is code outside of vitscope, named only by a file: nothing was "
            f"imported. If you trust that file, say {TRUST} (in Python: trust=True), or name the module yourself."
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # for good: worker processes must find the module too
        importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name and (module == missing.name or module.startswith(missing.name + ".")):
            raise error(
                f"There is no module {missing.name!r} for {wanted_by}: it cannot be imported. Expected "
                f"package.module:Name, installed or below the current folder ({here})."
            ) from missing
        raise error(f"Module {module!r} of {wanted_by} needs {missing.name!r}: {missing}.") from missing
    except Exception as failure:  # a user's own module may fail in any way
        raise error(f"Module {module!r} cannot be imported: {type(failure).__name__}: {failure}") from failure


def import_remembered(config: Mapping[str, Any], where: object) -> list[str]:
    """Import the modules that a run's files remember -> why some of them were not.

    What was defined in a script itself (`__main__`) is there while that script runs, and nowhere else.
    """
    problems = []
    modules = config.get("modules")
    for module in modules if isinstance(modules, list) else ():
        if str(module) not in sys.modules:
            try:
                import_outside(str(module), f"the module {str(module)!r} of {where}")
            except VitscopeError as error:
                problems.append(str(error))
    return problems
