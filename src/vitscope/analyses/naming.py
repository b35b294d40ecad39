"""Analyses by name, before any of them is loaded: groups of them, and options that are meant for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from vitscope.errors import VitscopeError, suggest
from vitscope.registry import ANALYSES


def members(word: str) -> list[str]:
    """`kpca` stands for all analyses called `kpca.something`, unless one is called just that."""
    known = ANALYSES.names()
    if ":" in word or word in known:
        return [word]
    return [name for name in known if name.startswith(f"{word}.")] or [word]


def check_known(what: str, name: str, known: Collection[str]) -> None:
    """Raise where a name of something is none of those that are known."""
    if name not in known:
        raise VitscopeError(f"There is no {what} {name!r}.{suggest(name, known)} Known: {', '.join(known)}.")


def check_names(words: Iterable[str] | None, settings: Mapping[str, Any]) -> None:
    """Raise at analyses that nobody has registered, named to run (None: the default ones) or to be given options."""
    names = [name for word in words or () for name in members(word)]
    for name in names:
        ANALYSES.check_name(name)
    if words is not None:
        with_options(names, settings)
    for path, value in settings.items():
        _check_meant(path, value)


def with_options(names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """{'kpca.spectrum.of': 'covariance'} -> {name: options}. A group's name, as in `kpca.variant`, means all of it.

    One's own may be called by its address or by the name that its decorator gives it, here and there.
    """
    called = ANALYSES.called if settings else str
    chosen: dict[str, dict[str, Any]] = {called(name): {} for name in names}
    for path, value in settings.items():
        name, _, option = path.rpartition(".")
        name = called(name)
        meant = [name] if name in chosen else [n for n in chosen if name and n.startswith(f"{name}.")]
        if not meant:
            _check_meant(path, value)
            raise VitscopeError(
                f"{path}={value}: expected ANALYSIS.OPTION=VALUE, such as save.dtype=float16, for one of the "
                f"analyses that run ({', '.join(chosen)}).{suggest(name, chosen)}"
            )
        for member in meant:
            chosen[member][option] = value
    return chosen


def _check_meant(path: str, value: Any) -> None:
    """The part of `attnetion.heads=2` that should name an analysis does."""
    for name in members(path.rpartition(".")[0]) if "." in path else ():
        if ":" not in name and name not in ANALYSES.names():
            raise VitscopeError(f"{path}={value}: {ANALYSES.unknown(name)}")
