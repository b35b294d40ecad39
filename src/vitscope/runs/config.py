"""The resolved configuration of a run: plain values, YAML on disk, and the readable difference of two of them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitscope.errors import RunError, VitscopeError
from vitscope.options import read_yaml

ABSENT = "(absent)"


def plain(value: Any, where: str = "config") -> Any:
    """Reduce to what YAML holds without tags: dict, list, str, int, float, bool, None."""
    if value is None or isinstance(value, (str, bool)) or type(value) in (int, float):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), f"{where}.{f.name}") for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, f"{where}.{i}") for i, v in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [plain(v, where) for v in sorted(value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, enum.Enum):
        return plain(value.value, where)
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return plain(value.item(), where)
    if type(value).__module__.startswith("torch") and type(value).__name__ in ("device", "dtype"):
        return str(value)
    raise RunError(
        f"{where} is a {type(value).__name__}, which config.yaml cannot hold. "
        "Use plain values: text, numbers, lists and dictionaries."
    )


def dump_yaml(config: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True, width=120)


def load_yaml(path: Path) -> dict[str, Any]:
    try:
        config = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a NUL
        raise RunError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    except VitscopeError as error:
        raise RunError(str(error)) from error
    if not isinstance(config, dict):
        raise RunError(f"{path} should hold `key: value` lines, but holds {type(config).__name__}.")
    return config


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """{'data': {'split': 'val'}} -> {'data.split': 'val'}; empty containers stay visible."""
    items: Sequence[tuple[str, Any]]
    if isinstance(config, Mapping) and config:
        items = [(str(k), v) for k, v in config.items()]
    elif isinstance(config, list) and config:
        items = [(str(i), v) for i, v in enumerate(config)]
    else:
        return {prefix: config}
    flat: dict[str, Any] = {}
    for key, value in items:
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else key))
    return flat


EMPTY: tuple[Any, ...] = ({}, [], (), "", None)


def difference(old: Mapping[str, Any], new: Mapping[str, Any], free: Sequence[str] = ()) -> list[str]:
    """One line per value that differs: `data.split: 'val' -> 'test'`. Keys in `free` (and below them) do not count.

    Nor does an option that did not exist when the old one was written, and is empty in the new one.
    """
    a, b = flatten(plain(old)), flatten(plain(new))
    lines = []
    for key in [*a, *(k for k in b if k not in a)]:
        if any(key == f or key.startswith(f + ".") for f in free):
            continue
        if key not in a and b[key] in EMPTY:
            continue
        left, right = (repr(d[key]) if key in d else ABSENT for d in (a, b))
        # repr tells True from 1 and makes NaN equal to itself; 1 and 1.0 mean the same
        numbers = all(type(d.get(key)) in (int, float) for d in (a, b))
        if left != right and not (numbers and a[key] == b[key]):
            lines.append(f"{key}: {left} -> {right}")
    return lines
