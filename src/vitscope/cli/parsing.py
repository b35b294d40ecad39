"""From words on the command line to an options dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from vitscope.analyses.options import Typed
from vitscope.errors import VitscopeError
from vitscope.options import BY_SHARE, CHOICES
from vitscope.registry import read_value

T = TypeVar("T")


def parse(options: type[T], command: str, arguments: Sequence[str], examples: str, default: T | None = None) -> T:
    """An options dataclass from command-line words. Bad words end the process with 2 and the nearest option.

    `default` (from a configuration file) stands wherever the words are silent; NAME=VALUE words add to its own.
    """
    about = inspect.cleandoc(options.__doc__ or "")
    words, marks = as_words(options), marks_of(options)
    names = [option.name for option in fields(words)]
    saved = {} if default is None else {name: getattr(default, name) for name in names}
    shown = {name: in_words(value, marks.get(name)) for name, value in saved.items()}
    try:
        parsed = tyro.cli(
            words,
            prog=f"vitscope {command}",
            description=f"{about}\n\nexamples:\n{examples.rstrip()}",
            args=gather(arguments, many_valued(words)),
            default=words(**shown) if shown else tyro.MISSING_NONPROP,
            registry=_registry(),
        )
    except SystemExit as stop:
        hint = model_option_hint(options, arguments) if stop.code else ""
        if hint:
            print(hint, file=sys.stderr)
        raise
    values = {name: getattr(parsed, name) for name in names}
    for name, before in shown.items():
        if values[name] == before:
            values[name] = saved[name]  # nothing was typed
        elif isinstance(before, Mapping):
            values[name] = {**before, **values[name]}
    return options(**values)


def marks_of(options: type) -> dict[str, Typed]:
    """How options want to be typed. The mark may be on a part of the type: `Annotated[...] | None`."""
    hints = get_type_hints(options, include_extras=True).items()
    parts = [(name, part) for name, hint in hints for part in (hint, *get_args(hint))]
    return {n: mark for n, part in parts for mark in getattr(part, "__metadata__", ()) if isinstance(mark, Typed)}


def as_words(options: type) -> Any:
    """The same options with the parser's marks in place of ours."""
    kinds, marks = get_type_hints(options), marks_of(options)
    typed: list[tuple[str, Any, Any]] = []
    for option in fields(options):
        if mark := marks.get(option.name):
            wanted = [named(mark.metavar), *([tyro.conf.Positional] if mark.positional else [])]
            typed.append((option.name, Annotated[(mark.kind or kinds[option.name], *wanted)], option))
    return alike(options, fields=typed)


def alike(options: type, *bases: type, fields: Sequence[tuple[str, Any, Any]] = ()) -> Any:
    """A dataclass with more to it. By the name of the original the parser finds the comments that are its help."""
    names = {name: getattr(options, name) for name in ("__module__", "__qualname__", "__doc__")}
    every = (*bases, options)
    return dataclasses.make_dataclass(options.__name__, fields, bases=every, namespace=names, frozen=True)


def in_words(value: Any, mark: Typed | None) -> Any:
    """A value of Python or of a file as it could have been typed."""
    kind = None if mark is None else mark.kind
    return bool(value) if kind is bool else value_words(value) if kind and isinstance(value, Mapping) else value


def model_option_hint(options: type, arguments: Sequence[str]) -> str:
    """For an unknown `--dropout 0.3`, which may be an option of the model, or `--images 5` of a training; else ''."""
    known = ["help", *(f.name for f in dataclasses.fields(options))]
    for word, following in zip(arguments, [*arguments[1:], "--"]):
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if word.startswith("--") and "model_options" in known and name.removeprefix("no_") not in known:
            if name in CHOICES:
                return f"{BY_SHARE}: --share 0.1"
            value = value if equals else "VALUE" if following.startswith("-") else following
            return f"If {name} is an option of the model: --model-options {name}={value}"
    return ""


def named(metavar: str | None) -> Any:
    """What stands for the value in the help: `--config FILE` says more than `--config PATH`."""
    return tyro.conf.arg(metavar=metavar)


def key_values(words: Sequence[str]) -> dict[str, Any]:
    """['save.shard_mb=64'] -> {'save.shard_mb': 64}. Values are YAML: 4, 0.5, true, null, [1, 2] mean what they say."""
    values: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (equals and key.strip()):
            raise VitscopeError(f"Expected NAME=VALUE, such as save.dtype=float16, not {word!r}.")
        values[key.strip()] = read_value(value, word)
    return values


def value_words(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The inverse."""
    return tuple(f"{key}={value}" for key, value in values.items())


def many_valued(options: type) -> list[str]:
    """The flags that take any number of words: those of tuples and mappings."""
    flags = []
    for name, kind in get_type_hints(options).items():
        if any(str(k).startswith(("tuple", "collections.abc.Mapping")) for k in (kind, *get_args(kind))):
            flags.append("--" + name.replace("_", "-"))
    return flags


def gather(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """['--set', 'a=1', '-x', '--set', 'b=2'] -> ['-x', '--set', 'a=1', 'b=2']: repeating a flag adds to it.

    The parser would keep the last one and forget the others without a word.
    """
    rest: list[str] = []
    values: dict[str, list[str]] = {}
    target = rest
    for word in arguments:
        flag, equals, value = word.partition("=")
        if word.startswith("-"):
            target = rest
        if flag in flags:
            target = values.setdefault(flag, [])
            target += [value] if equals else []
        else:
            target.append(word)
    return rest + [word for flag, words in values.items() for word in (flag, *words)]


def _registry() -> ConstructorRegistry:
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def _mapping(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        """`Mapping[str, Any]` is any number of NAME=VALUE words."""
        if info.type_origin is not Mapping:
            return None
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="NAME=VALUE",
            instance_from_str=key_values,
            is_instance=lambda value: isinstance(value, Mapping),
            str_from_instance=lambda value: [*value_words(value)],
        )

    @registry.primitive_rule
    def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        """`int | None` reads as INT in the help, `str | Path` as STR; the word 'none' stands for None."""
        kinds = [k for k in get_args(info.type) if k not in (type(None), Path)]
        if len(kinds) != 1 or kinds[0] not in (str, int, float):
            return None
        optional = type(None) in get_args(info.type)
        read: Callable[[str], Any] = kinds[0]
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=kinds[0].__name__.upper(),
            instance_from_str=lambda words: None if optional and words[0] == "none" else read(words[0]),
            is_instance=lambda value: value is None or isinstance(value, (kinds[0], Path)),
            str_from_instance=lambda value: ["none" if value is None else str(value)],
        )

    return registry
