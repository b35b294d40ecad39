"""What people write as options: YAML, read in one place; values of the right kind; numbers that are numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitscope.errors import VitscopeError, suggest

MOST_VALUES, DEEPEST = 100_000, 50  # of YAML: a few lines with aliases can stand for billions of values


CHOICES = ("images", "texts", "per_class", "every", "first")  # of images and texts, in every command but a training
BY_SHARE = "A part of the training data is chosen by its share"


def read_yaml(text: str, where: str) -> Any:
    """Plain values from YAML, whose keys are words. `where` begins the error."""
    import yaml

    try:
        value = yaml.safe_load(text)
    except RecursionError:
        raise VitscopeError(f"{where} cannot be read: it is nested deeper than {DEEPEST} levels.") from None
    except Exception as error:  # beside YAMLError, PyYAML lets pass what int(), date() and others raise
        reason = " ".join(str(error).split())
        raise VitscopeError(f"{where} cannot be read: it is not valid YAML ({reason}).") from error
    for count, (key, inner, depth) in enumerate(_walk(value)):
        if not isinstance(key, str):
            raise VitscopeError(f"{where}: the key {key!r} is no word. If it is meant as one, put it in quotes.")
        if isinstance(inner, str) and "\0" in inner:
            raise VitscopeError(f"{where}: {inner!r} holds a NUL character, which no name or path can.")
        if depth > DEEPEST:
            raise VitscopeError(f"{where} cannot be read: it is nested deeper than {DEEPEST} levels.")
        if count > MOST_VALUES:
            raise VitscopeError(f"{where} cannot be read: it holds more than {MOST_VALUES:,} values.")
    return value


def _walk(value: Any, key: Any = "", depth: int = 0) -> Iterator[tuple[Any, Any, int]]:
    """Every value with its key and depth."""
    yield key, value, depth
    if depth > DEEPEST or isinstance(value, str | bytes) or not isinstance(value, Mapping | Sequence | set):
        return
    for name, inner in value.items() if isinstance(value, Mapping) else (("", item) for item in value):
        yield from _walk(inner, name, depth + 1)


def check_finite(value: Any, name: str) -> None:
    """Raise at NaN and infinity, also in lists and mappings: no option means them, and `x < least` misses NaN.

    Whole numbers that PyTorch cannot take for a size or a seed mean nothing either.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise VitscopeError(f"{name}={value}: expected a finite number.")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise VitscopeError(f"{name}: the number is larger than 64 bits can hold.")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_finite(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            check_finite(inner, name)


def check_fields(options: Any) -> None:
    """Raise at the first field of a frozen dataclass whose value is not of its type. Lists become tuples."""
    for name, kind in get_type_hints(type(options)).items():
        value = getattr(options, name)
        check_finite(value, name)
        if isinstance(value, list) and any(get_origin(k) is tuple for k in (kind, *get_args(kind))):
            object.__setattr__(options, name, value := tuple(value))  # YAML has lists
        if get_origin(kind) is Literal and value not in get_args(kind):
            known = list(map(str, get_args(kind)))
            raise VitscopeError(
                f"There is no {name} {str(value)!r}.{suggest(str(value), known)} Known: {', '.join(known)}."
            )
        if not fits(value, kind):
            raise VitscopeError(f"{name}: expected {readable(kind)}, not {value!r}.")


def fits(value: Any, kind: Any) -> bool:
    """Is a value of the type that an option has? Whole numbers are numbers, too; flags are not."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis and isinstance(value, tuple) else inner
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(fits, value, kinds))
    if origin in (Mapping, Sequence, dict, list):
        return isinstance(value, origin)
    if inner:  # a union
        return any(fits(value, k) for k in inner)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return kind is Any or isinstance(value, kind)


def readable(kind: Any) -> str:
    """`tuple[str, ...] | None` -> 'a list of text or nothing'."""
    if get_origin(kind) in (tuple, list):
        return f"a list of {readable(get_args(kind)[0])}"
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    inner = [k for k in get_args(kind) if k is not Path]
    return (
        " or ".join(map(readable, inner)) if inner and get_origin(kind) not in (Mapping, dict) else "key: value lines"
    )
