"""What comes from outside of the package: code found by `package.module:Name`, weights and data fetched from the net.

A name that somebody types, or passes to a function, is imported. A name that only stands in a file (a run's folder, a
configuration, a model's description) is not: such a folder may come from anyone. Inside `only_named` nothing is
imported but what the words of the command line name too, unless they say `--trust`; and once a file has been read for
options (`reading`), nothing that the words do not name is fetched.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from vitscope.errors import VitscopeError, suggest

PACKAGE = "vitscope"
TRUST = "--trust"
_ADDRESS = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_]\w*")


@dataclass
class _Said:
    """What a person said, and what else is at work in the same call."""

    words: frozenset[str]
    modules: frozenset[str]  # of the addresses among the words
    trust: bool
    files: list[str] = field(default_factory=list)  # options were read from them


# None: whatever is asked for is done, since a person's own program asks
_said: ContextVar[_Said | None] = ContextVar("said", default=None)


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
    """Inside the block only what `words` name is imported or fetched; with `trust` all. An outer block wins."""
    if _said.get() is not None:
        yield
        return
    given = list(words)
    token = _said.set(_Said(frozenset(given), modules_in(given), trust))
    try:
        yield
    finally:
        _said.reset(token)


def reading(file: object) -> None:
    """Note that options come from a file, which may come from anyone."""
    said = _said.get()
    if said is not None:
        said.files.append(str(file))


def has_read() -> bool:
    """Do options of this call come from a file that nobody vouched for?"""
    said = _said.get()
    return said is not None and bool(said.files) and not said.trust


def check_fetch(name: str, what: str, error: type[VitscopeError] = VitscopeError) -> None:
    """Refuse to fetch what only a file asks for."""
    said = _said.get()
    if said is None or said.trust or not said.files or any(name in (w, w.partition("=")[2]) for w in said.words):
        return
    raise error(
        f"{said.files[0]} asks for {what}, not on this machine: nothing was fetched because a file says so. If you "
        f"trust that file, say {TRUST} (in Python: trust=True)."
    )


def check_typed(option: str, file: object, why: str) -> None:
    """Refuse an option of a file that a person has to type, or to trust."""
    said = _said.get()
    if said is not None and not said.trust:
        raise VitscopeError(f"{file}: {option} {why}: type --{option} yourself, or {TRUST} if you trust that file.")


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
    said = _said.get()
    if said is not None and not said.trust and module not in said.modules:
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
