"""What is done to the texts of an evaluation: a change has a name, plain values, and alters one text at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from vitscope.data.text.texts import Texts
from vitscope.robustness.text.alter import Altered, check_rate, check_swap, keyboard_typos, swap_words


@dataclass(frozen=True)
class WordSwap:
    """Words of every line become another one: `swap_words`."""

    key: ClassVar[str] = "swap"
    share: float = 0.015
    word: str = "AAA"
    unknown: str = "keep"
    seed: int = 0

    def __post_init__(self) -> None:
        check_swap(self.share, self.word, self.unknown)

    @property
    def idle(self) -> bool:
        """Does it leave every text as it is?"""
        return self.share == 0

    def __call__(self, text: str, name: str) -> Altered:
        return swap_words(text, self.share, self.word, unknown=self.unknown, seed=self.seed, name=name)

    def options(self) -> dict[str, Any]:
        """The options of `evaluate` that ask for it."""
        return {"swap": True, "swap_share": self.share, "swap_word": self.word, "swap_unknown": self.unknown}


@dataclass(frozen=True)
class Typos:
    """Letters become their neighbours on the keyboard: `keyboard_typos`."""

    key: ClassVar[str] = "typos"
    rate: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        check_rate(self.rate)

    @property
    def idle(self) -> bool:
        return self.rate == 0

    def __call__(self, text: str, name: str) -> Altered:
        return keyboard_typos(text, self.rate, seed=self.seed, name=name)

    def options(self) -> dict[str, Any]:
        return {"noise": self.rate}


Change = WordSwap | Typos


@dataclass(frozen=True, eq=False)
class ChangedTexts:
    """Texts of a source after a change. Each is changed when it is asked for."""

    texts: Texts
    change: Change

    @property
    def chars(self) -> np.ndarray:
        """As they were: what is chosen is chosen among the clean texts."""
        return self.texts.chars

    @property
    def document(self) -> np.ndarray:
        return self.texts.document

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int, /) -> str:
        return self.altered(i).text

    def altered(self, i: int) -> Altered:
        return self.change(self.texts[i], self.texts.name(i))

    def name(self, i: int) -> str:
        return f"{self.change.key}/{self.texts.name(i)}"


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Sources of equally many texts, one after the other."""

    sources: Sequence[Texts]

    @cached_property
    def chars(self) -> np.ndarray:
        return np.concatenate([texts.chars for texts in self.sources])

    @cached_property
    def document(self) -> np.ndarray:
        return np.concatenate([texts.document for texts in self.sources])

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def locate(self, i: int) -> tuple[Texts, int]:
        number, inside = divmod(i, len(self.sources[0]))
        return self.sources[number], inside

    def __getitem__(self, i: int, /) -> str:
        texts, inside = self.locate(i)
        return texts[inside]

    def name(self, i: int) -> str:
        texts, inside = self.locate(i)
        return texts.name(inside)


def described(changes: Sequence[Change]) -> str:
    """One line that tells two sets of changes apart, for a fingerprint."""
    return " ".join(f"{change.key} {sorted(asdict(change).items())}" for change in changes)
