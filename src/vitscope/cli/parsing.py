"""From words on the command line to plain values."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from vitscope.errors import VitscopeError

T = TypeVar("T")


def parse(options: type[T], command: str, arguments: Sequence[str], examples: str, default: T | None = None) -> T:
    """An options dataclass from command-line words. Bad words end the process with 2 and the nearest option.

    `default` (from a configuration file) stands wherever the words are silent.
    """
    about = inspect.cleandoc(options.__doc__ or "")
    return tyro.cli(
        options,
        prog=f"vitscope {command}",
        description=f"{about}\n\nexamples:\n{examples.rstrip()}",
        args=list(arguments),
        default=default,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def named(metavar: str) -> Any:
    """What stands for the value in the help: `--images N` reads better than `--images {None}|INT`."""
    return tyro.conf.arg(metavar=metavar)


def split_commas(words: str | None) -> list[str] | None:
    """'accuracy, attention' -> ['accuracy', 'attention']; nothing given stays None."""
    if words is None:
        return None
    return [word for word in (part.strip() for part in words.split(",")) if word]


def analysis_options(settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """['attention.maps=4'] -> {'attention': {'maps': 4}}.

    The analysis' own name may hold dots (`kpca.spectrum.rank=5`): the option is what follows the last one. Values are
    read as YAML, so 4, 0.5, true, null and [1, 2] mean what they look like.
    """
    import yaml

    options: dict[str, dict[str, Any]] = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        analysis, dot, option = path.strip().rpartition(".")
        if not (equals and dot and analysis and option):
            raise VitscopeError(f"--set takes ANALYSIS.OPTION=VALUE, such as attention.maps=4, not {setting!r}.")
        try:
            options.setdefault(analysis, {})[option] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise VitscopeError(f"--set {setting}: the value cannot be read ({error}).") from error
    return options
