"""The files of a run folder, read with what they must look like: a damaged one is named with field and remedy.

A shape is a type (`float` takes whole numbers, too), `Any`, a tuple of alternatives (None among them), `[shape]` for a
list, `{str: shape}` for a mapping with any keys, or `{"field": shape, "field?": shape}` for fields that must and those
that may be there. Other fields may be there, too, but not in a saved configuration (`check_saved`): what they meant
would be lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitscope.errors import RunError, VitscopeError

_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object", None: "null"}


def read_json(path: Path, shape: Mapping[Any, Any], remedy: str) -> dict[str, Any]:
    """A JSON object, {} where the file is absent. `remedy` says what to do about a damaged one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        reason = "it is nested too deeply" if deep else getattr(error, "strerror", None) or error
        raise RunError(f"{path} cannot be read ({reason}). {remedy}") from error
    if wrong := misfit(value, shape):
        raise RunError(f"{path} is damaged: {wrong}. {remedy}")
    return value


def check_saved(config: Mapping[str, Any], shape: Mapping[Any, Any]) -> None:
    """Raise VitscopeError at keys that a saved configuration does not have, at missing ones and at wrong types."""
    if names := unknown(config, shape):
        known = ", ".join(str(key).removesuffix("?") for key in shape)
        raise VitscopeError(
            f"A saved configuration has no {', '.join(map(repr, names))}, and what that asks for would not be done. "
            f"Take it out; known are {known}."
        )
    if wrong := misfit(config, shape):
        raise VitscopeError(f"This is not a whole configuration: {wrong}.")


def unknown(value: Any, shape: Any, where: str = "") -> list[str]:
    """Keys of nested mappings that their shape does not name."""
    names = []
    for one in shape if isinstance(shape, tuple) else (shape,):
        if isinstance(value, dict) and isinstance(one, Mapping) and one and str not in one:
            for key, inner in value.items():
                known = one.get(key, one.get(f"{key}?"))
                absent = key not in one and f"{key}?" not in one
                names += [_inside(where, key)] if absent else unknown(inner, known, _inside(where, key))
    return names


def misfit(value: Any, shape: Any, where: str = "") -> str:
    """What does not fit, e.g. 'warnings.0 should be text and is 3'; '' where all does."""
    alternatives = shape if isinstance(shape, tuple) else (shape,)
    problems = [_misfit(value, one, where) for one in alternatives]
    if "" in problems:
        return ""
    if len(problems) == 1:
        return problems[0]
    return _sentence(value, " or ".join(map(_name, alternatives)), where)


def _misfit(value: Any, shape: Any, where: str) -> str:
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _sentence(value, "a list", where)
        return next(filter(None, (misfit(v, shape[0], _inside(where, i)) for i, v in enumerate(value))), "")
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            return _sentence(value, "an object", where)
        if missing := [key for key in shape if isinstance(key, str) and key[-1] != "?" and key not in value]:
            return f"{_inside(where, missing[0])} is missing"
        fields = ((k, v, shape.get(k, shape.get(f"{k}?", shape.get(str, Any)))) for k, v in value.items())
        return next(filter(None, (misfit(v, inner, _inside(where, k)) for k, v, inner in fields)), "")
    if shape is Any or (shape is None and value is None):
        return ""
    kinds = (int, float) if shape is float else shape
    if shape is None or not isinstance(value, kinds) or (isinstance(value, bool) and shape is not bool):
        return _sentence(value, _name(shape), where)
    if shape is float and not abs(value) <= sys.float_info.max:  # NaN, infinity, and whole numbers beyond any float
        return _sentence(value, "a finite number", where)
    return ""


def _inside(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def _name(shape: Any) -> str:
    return "a list" if isinstance(shape, list) else "an object" if isinstance(shape, Mapping) else _NAMES[shape]


def _sentence(value: Any, expected: str, where: str) -> str:
    shown = repr(value)
    return f"{where or 'it'} should be {expected} and is {shown if len(shown) <= 40 else shown[:37] + '...'}"
