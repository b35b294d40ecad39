"""From a typed value to what an option holds: '1e-3' is a number, 'none' is nothing, 'cosin' is nearly 'cosine'."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from vitscope.errors import VitscopeError, suggest

_FLAGS = {"true": True, "false": False}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def coerce(name: str, value: Any, kind: Any) -> Any:
    """The value of an option of the given type; an error says what was expected."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        kinds = [k for k in inner if k not in (type(None), Path)]
        if type(None) in inner and (value is None or str(value).lower() == "none"):
            return None
        return coerce(name, value, kinds[0])
    if origin is Literal:
        if value not in inner:
            raise VitscopeError(
                f"--vary {name}={value}: there is no {name} {value!r}.{suggest(str(value), inner)} "
                f"Known: {', '.join(map(str, inner))}."
            )
        return value
    if origin is tuple:
        return tuple(value.split("+")) if isinstance(value, str) else tuple(value)
    if kind is bool:
        if (flag := _FLAGS.get(str(value).lower())) is None:
            raise VitscopeError(f"--vary {name}={value}: expected true or false.")
        return flag
    if kind in (int, float):
        try:
            number = kind(value)
        except (TypeError, ValueError):
            raise VitscopeError(f"--vary {name}={value}: expected {_WORDS[kind]}.") from None
        if kind is int and isinstance(value, float) and number != value:
            raise VitscopeError(f"--vary {name}={value}: expected a whole number.")
        return number
    return str(value)


def guess(value: Any) -> Any:
    """An option of a model has no declared type: numbers, true, false and none mean what they say."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    words = {**_FLAGS, "none": None, "null": None}
    return words.get(value.lower(), value)
