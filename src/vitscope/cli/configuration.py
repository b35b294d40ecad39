"""`--config FILE`: a file's values stand wherever the command line is silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vitscope.cli.parsing import parse
from vitscope.errors import VitscopeError
from vitscope.runs.config import load_yaml


class Configurable(Protocol):
    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any: ...


C = TypeVar("C", bound=Configurable)


def parse_with_config(options: type[C], command: str, arguments: Sequence[str], examples: str) -> C:
    """Like `parse`, with the file named by --config as default."""
    file = find_value(arguments, "--config")
    if file is None or {"-h", "--help"} & set(arguments):
        return parse(options, command, arguments, examples)
    config = load_yaml(Path(file))
    try:
        default = options.from_config(config)
    except VitscopeError as error:
        raise type(error)(f"{file}: {error}") from error
    return parse(options, command, arguments, examples, default)


def find_value(arguments: Sequence[str], flag: str) -> str | None:
    """The word after a flag, or after `flag=`."""
    for word, following in zip(arguments, [*arguments[1:], None]):
        if word == flag:
            return following
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None
