"""Texts with swapped words or typos, and where they were changed.

A *word* is what stands between white space, without the signs around it, and has a letter or a digit in it: of
`"Hello,` it is `Hello`. `<unk>` is a word as a whole. All draws come from (seed, name of the text, number of the line):
the same in any process and any order. Whatever is changed at a small share is changed at a larger one, too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vitscope.errors import VitscopeError, suggest
from vitscope.robustness.text.stop_words import is_stop_word

UNKNOWN = "<unk>"
KEEP, SWAP = UNKNOWN_RULES = ("keep", "swap")
_WORD = re.compile(rf"(?<!\S){UNKNOWN}(?!\S)|\w(?:\S*\w)?")

_ROWS = (("qwertyuiop", 0.0), ("asdfghjkl", 0.25), ("zxcvbnm", 0.75))  # each with how far it is set in, in keys
_KEYS = {key: (column + shift, row) for row, (keys, shift) in enumerate(_ROWS) for column, key in enumerate(keys)}
_REACH = 1.3  # keys: a finger that slips lands on the next key of its row, or on one that touches it above or below
NEIGHBOURS = {
    a: "".join(b for b, (u, v) in _KEYS.items() if a != b and (u - x) ** 2 + (v - y) ** 2 < _REACH**2)
    for a, (x, y) in _KEYS.items()
}

Span = tuple[int, int]  # the first character, and the one after the last


@dataclass(frozen=True)
class Altered:
    """A text after a change, and the words that were changed: where they stand now, and where they stood before."""

    text: str
    spans: tuple[Span, ...] = ()
    before: tuple[Span, ...] = ()


def swap_words(
    text: str, share: float = 0.015, word: str = "AAA", *, unknown: str = KEEP, seed: int = 0, name: str = ""
) -> Altered:
    """In every line, max(int(share * words), 1) words that are no stop words become `word`; share 0 changes nothing.

    The word swap that RPC-Attention's language models are tried with. A line has fewer swapped where it has fewer words
    that may be. `unknown`: are `<unk>` of published texts left alone ('keep') or words like any other ('swap')?
    """
    check_swap(share, word, unknown)
    places: list[Span] = []
    for number, (start, line) in enumerate(_lines(text) if share else ()):
        words = [(start + m.start(), start + m.end()) for m in _WORD.finditer(line)]
        named = ((span, text[slice(*span)]) for span in words)
        free = [span for span, w in named if (unknown == SWAP if w == UNKNOWN else not is_stop_word(w))]
        draw = _generator("swap", seed, name, number)
        keys = {span: draw.random() for span in free}
        places += sorted(sorted(free, key=keys.__getitem__)[: max(int(share * len(words)), 1)])
    return _replaced(text, [(span, word) for span in places])


def keyboard_typos(text: str, rate: float = 0.02, *, seed: int = 0, name: str = "") -> Altered:
    """Each letter from a to z becomes, with probability `rate`, a neighbour on a QWERTY keyboard; case is kept.

    `<unk>` is left alone. The spans are those of whole words in which a letter was changed.
    """
    check_rate(rate)
    changes: list[tuple[Span, str]] = []
    for number, (start, line) in enumerate(_lines(text) if rate else ()):
        draw = _generator("typos", seed, name, number)
        for match in _WORD.finditer(line):
            typed = match.group() if match.group() == UNKNOWN else _typed(match.group(), rate, draw)
            if typed != match.group():
                changes.append(((start + match.start(), start + match.end()), typed))
    return _replaced(text, changes)


def joined(parts: Sequence[Altered], originals: Sequence[str], joiner: str) -> Altered:
    """Several altered texts as one, with `joiner` between them; `originals`: the texts that they were before."""
    spans, before, now, then = [], [], 0, 0
    for part, old in zip(parts, originals):
        spans += [(start + now, stop + now) for start, stop in part.spans]
        before += [(start + then, stop + then) for start, stop in part.before]
        now, then = now + len(part.text) + len(joiner), then + len(old) + len(joiner)
    return Altered(joiner.join(part.text for part in parts), tuple(spans), tuple(before))


def check_swap(share: float, word: str, unknown: str) -> None:
    """Raise at options that mean nothing."""
    if not 0 <= share <= 1:
        raise VitscopeError(f"swap_share is a share of the words from 0 to 1, such as 0.015, not {share}.")
    if not word or word.split() != [word]:
        raise VitscopeError(f"swap_word is one word without white space, such as AAA, not {word!r}.")
    if unknown not in UNKNOWN_RULES:
        known = ", ".join(UNKNOWN_RULES)
        raise VitscopeError(f"There is no swap_unknown {unknown!r}.{suggest(unknown, UNKNOWN_RULES)} Known: {known}.")


def check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise VitscopeError(f"noise is the share of letters that are mistyped, from 0 to 1, such as 0.02, not {rate}.")


def _generator(*parts: int | str) -> random.Random:
    from vitscope.data.randomness import derive_seed  # brings PyTorch, which options are checked without

    return random.Random(derive_seed(*parts))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line with the place of its first character."""
    start = 0
    for line in text.split("\n"):
        yield start, line
        start += len(line) + 1


def _typed(word: str, rate: float, draw: random.Random) -> str:
    """Every letter draws twice, whether it is changed or not: a larger rate changes more, and the others as before."""
    letters = []
    for letter in word:
        near = NEIGHBOURS.get(letter.lower())
        if near is not None:
            slips, where = draw.random() < rate, draw.random()
            new = near[int(where * len(near))]
            letter = (new.upper() if letter.isupper() else new) if slips else letter
        letters.append(letter)
    return "".join(letters)


def _replaced(text: str, changes: Sequence[tuple[Span, str]]) -> Altered:
    """Put new words in the places of old ones, from the first to the last."""
    pieces, spans, done, length = [], [], 0, 0
    for (start, stop), new in changes:
        length += start - done
        spans.append((length, length + len(new)))
        pieces += [text[done:start], new]
        done, length = stop, length + len(new)
    return Altered("".join([*pieces, text[done:]]), tuple(spans), tuple(span for span, _ in changes))
