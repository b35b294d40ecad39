"""What the registries of the rooms share: classes outside of the package, options that exist, values as typed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from vitscope.errors import VitscopeError, suggest
from vitscope.options import check_finite, read_yaml

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
            "on Python's path (for a file in this folder: PYTHONPATH=.)."
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


_SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def read_value(text: str) -> Any:
    """YAML: 4, 0.5, true, null and [1, 2] mean what they say; 1e-3, which YAML takes for a word, is a number."""
    return float(text) if _SCIENTIFIC.fullmatch(text.strip()) else read_yaml(text, repr(text))


WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word", "None": "nothing"}


def check_types(options: Mapping[str, Any], takes: Callable[..., Any], kind: str, name: str) -> None:
    """Raise at the first number, flag or word that is none, by the annotations of what takes the options.

    Other kinds of values are left to those who know what they mean, but NaN and infinity mean nothing to anyone.
    """
    parameters = inspect.signature(takes).parameters
    for option, value in options.items():
        check_finite(value, f"{kind.capitalize()} {name!r}: {option}")
        annotation = parameters[option].annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        kinds = [word.strip() for word in re.split(r"\|(?![^\[]*\])", text)]  # not at the | of `Sequence[str | int]`
        if all(_words(k) for k in kinds) and not any(_is(value, k) for k in kinds):
            expected = " or ".join(map(_words, kinds))
            raise VitscopeError(f"{kind.capitalize()} {name!r}: {option} must be {expected}, not {value!r}.")


def _words(kind: str) -> str:
    """'int' -> 'a whole number', 'Sequence[int]' -> 'a list (each a whole number)'; '' for other kinds."""
    if kind.startswith("Sequence["):
        inner = [_words(k.strip()) for k in kind[9:-1].split("|")]
        return f"a list (each {' or '.join(inner)})" if all(inner) else ""
    return WORDS.get(kind, "")


def _is(value: Any, kind: str) -> bool:
    if kind.startswith("Sequence["):
        inner = [k.strip() for k in kind[9:-1].split("|")]
        items = [value] if isinstance(value, str) else value  # one word may stand for a list of one
        return isinstance(items, list | tuple) and all(any(_is(item, k) for k in inner) for item in items)
    if isinstance(value, bool) or value is None:
        return kind == ("None" if value is None else "bool")
    types: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
    return isinstance(value, types.get(kind, ()))
