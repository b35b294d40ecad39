"""Sets by letter: a decorated function is a set.

    @register_set("A", "ImageNet-A")
    def imagenet_a(folder: Path, options: SetOptions) -> list[Condition]: ...

The folder is the one that a user names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitscope.errors import DataError, VitscopeError, suggest
from vitscope.registry import SETS
from vitscope.robustness.condition import Condition
from vitscope.robustness.corruptions.names import COMMON, SEVERITIES


@dataclass(frozen=True)
class SetOptions:
    """Which part of a set is read."""

    images: int | None = None  # this many of each set, and of each corruption; None: all
    seed: int = 0  # chooses them
    strict: bool = False  # stop at an unreadable picture or doubtful data
    corruptions: Sequence[str] = COMMON  # folders of ImageNet-C to read
    severities: Sequence[int] = SEVERITIES  # of ImageNet-C


SetFunction = Callable[[Path, SetOptions], list[Condition]]


@dataclass(frozen=True)
class SetEntry:
    """A set: what people call it, and what reads it."""

    name: str
    function: SetFunction


def register_set(letter: str, name: str) -> Callable[[SetFunction], SetFunction]:
    """Function decorator: `letter` is what users type, `name` what people call the set."""

    def register(function: SetFunction) -> SetFunction:
        SETS.add(letter, SetEntry(name, function))
        return function

    return register


def list_sets() -> dict[str, str]:
    """{letter: name}"""
    return {letter: _entry(letter).name for letter in SETS.load_all()}


def parse_sets(words: str | Sequence[str] | Mapping[str, str | Path] | None) -> dict[str, Path]:
    """'A=DIR,R=DIR', or words, or a mapping -> {letter: folder}. Letters in any case.

    A set of one's own may be named by the address of its function, `package.module:function=DIR`.
    """
    known = list_sets()
    if isinstance(words, Mapping):
        pairs = [(str(letter), str(folder)) for letter, folder in words.items()]
    else:
        words = [words] if isinstance(words, str) else list(words or ())
        pairs = [_pair(part.strip(), known) for word in words for part in word.split(",") if part.strip()]
    found: dict[str, Path] = {}
    for word, folder in pairs:
        if ":" not in word and word.upper() not in known:
            raise VitscopeError(f"There is no set {word!r}.{suggest(word.upper(), known)} Known: {_names(known)}.")
        letter, _ = SETS.resolve(word)
        if letter in found:
            raise VitscopeError(f"The set {letter} is given twice: one folder each.")
        found[letter] = Path(folder).expanduser()
    return {letter: found[letter] for letter in SETS.names() if letter in found}


def open_sets(folders: Mapping[str, Path], options: SetOptions | None = None) -> list[Condition]:
    """The conditions of the named sets, in the order of the registry."""
    check_folders(folders)
    conditions: list[Condition] = []
    for letter, folder in folders.items():
        entry = _entry(letter)
        conditions += _checked(entry, entry.function(folder, options or SetOptions()))
    return conditions


def check_folders(folders: Mapping[str, Path]) -> None:
    for letter, folder in folders.items():
        if not os.path.isdir(folder):
            what = "is not a folder" if os.path.exists(folder) else "does not exist"
            raise DataError(f"{folder} {what}: --ood {letter}=DIR takes the folder of {_entry(letter).name}.")


def _checked(entry: SetEntry, returned: object) -> list[Condition]:
    """What a set's function gave back: one of one's own may give anything."""
    if not isinstance(returned, list) or not all(
        isinstance(c, Condition) and hasattr(c.data, "describe") for c in returned
    ):
        raise DataError(f"The set {entry.name} returned {returned!r}: expected a list of Condition(set, data).")
    return returned


def _entry(letter: str) -> SetEntry:
    """The set of that letter; a bare function, named by its address, is called what its address says."""
    found = SETS.get(letter)
    return found if isinstance(found, SetEntry) else SetEntry(letter, found)


def _pair(part: str, known: Mapping[str, str]) -> tuple[str, str]:
    letter, equals, folder = part.partition("=")
    if not (equals and letter and folder):
        raise VitscopeError(f"--ood takes LETTER=FOLDER, such as A=path/to/imagenet-a, not {part!r}. {_names(known)}.")
    return letter, folder


def _names(known: Mapping[str, str]) -> str:
    return ", ".join(f"{letter} ({name})" for letter, name in known.items())
