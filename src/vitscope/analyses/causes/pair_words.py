"""Pairs as they are typed: `pgd@1/255`, `corrupt:fog@3`, `class`, `mask`, `swap`. Nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from vitscope.errors import VitscopeError, suggest
from vitscope.registry import ATTACKS, PAIRS

ATTACK, CORRUPT = "attack", "corrupt"
FORMS = "ATTACK@EPS (pgd@1/255), corrupt:NAME@SEVERITY (corrupt:fog@3), class, mask, or swap for texts"


@dataclass(frozen=True)
class PairWords:
    """`KIND:WHAT@LEVEL`; an attack is named without its kind."""

    kind: str
    what: str = ""
    level: str = ""

    @property
    def text(self) -> str:
        front = self.what if self.kind == ATTACK else ":".join(filter(None, (self.kind, self.what)))
        return f"{front}@{self.level}" if self.level else front


def parse_pairs(word: str) -> PairWords:
    """Words -> their parts, or an error that says what can be typed."""
    front, _, level = str(word).strip().rpartition("@") if "@" in str(word) else (str(word).strip(), "", "")
    kind, colon, what = front.partition(":")
    if PAIRS.normal(kind) not in PAIRS.names() or kind == ATTACK:
        kind, what = ATTACK, what if kind == ATTACK and colon else front
    found = PairWords(kind, what, level)
    _check(found, word)
    return found


def _check(found: PairWords, word: str) -> None:
    """Which corruptions there are, those know who make them (`robustness/pairs.py`)."""
    if found.kind == ATTACK and ":" not in found.what and found.what not in ATTACKS.names():
        near = suggest(found.what, [*ATTACKS.names(), *PAIRS.names()])
        raise VitscopeError(f"There are no pairs {word!r}.{near} Expected {FORMS}.")
    if found.kind in (ATTACK, CORRUPT) and not (found.level and found.what):
        example = f"{found.what}@1/255" if found.kind == ATTACK else f"corrupt:{found.what or 'fog'}@3"
        raise VitscopeError(f"Pairs {word!r} do not say how strong: {example}, for example. Expected {FORMS}.")
