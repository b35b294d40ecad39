"""Clean texts and changed ones as one set of data, so that one pass, one resume and one merge serve them all.

Condition 0 are the clean texts, condition c those after change c. A change that leaves every text as it is has no
texts of its own: its numbers are those of the clean ones, to the last digit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vitscope.data.text.dataset import TextData
from vitscope.data.text.source import WINDOWS, TextSource
from vitscope.data.text.texts import Texts
from vitscope.data.text.tokenizer import Tokenizes, check_tokenizer, most_tokens
from vitscope.data.text.window_data import WindowData, cut_windows
from vitscope.errors import DataError
from vitscope.robustness.text.alter import Altered, Span, joined
from vitscope.robustness.text.changes import Change, ChangedTexts, SideBySide, described
from vitscope.robustness.text.names import CLEAN

_KEPT = ("name", "split", "options", "selection", "strict", "warnings")  # what is the same in all conditions


class TextConditions(TextData):
    """The chosen texts once per condition. `conditions` names all, `own` those that have texts of their own."""

    def __init__(self, clean: TextData, changes: Sequence[Change]) -> None:
        self.clean, self.changes = clean, tuple(changes)
        self.conditions = (CLEAN, *(change.key for change in changes))
        self.own = (0, *(c for c, change in enumerate(changes, 1) if not change.idle))
        texts = clean._texts
        sources = [texts, *(ChangedTexts(texts, changes[c - 1]) for c in self.own[1:])]
        how: dict[str, Any] = {name: getattr(clean, name) for name in _KEPT}
        self.parts = [clean, *(TextData(_over(clean, source), clean._order, **how) for source in sources[1:])]
        order = np.concatenate([clean._order + number * len(texts) for number in range(len(sources))])
        super().__init__(_over(clean, SideBySide(sources), described(self.changes)), order, **how)

    @property
    def condition(self) -> np.ndarray:
        """(N,) int64: the condition of each text."""
        return np.repeat(np.array(self.own), len(self.clean))

    @property
    def passages(self) -> int:
        return sum(part.passages for part in self.parts)

    def passage(self, i: int) -> str:
        number, inside = divmod(i, self.clean.passages)
        return self.parts[number].passage(inside)

    def altered(self, condition: int, passage: int) -> Altered:
        """What a change makes of a text: one of the chosen ones, or all of them where they are joined."""
        change = self.changes[condition - 1]
        which = range(len(self.clean)) if self.options.joined else [passage]
        found = [self.clean.read(i) for i in which]
        parts = [change(item.text, item.name) for item in found]
        return joined(parts, [item.text for item in found], self.joiner)

    def place(self, i: int) -> tuple[int, int]:
        """Condition of text `i`, and its number among the chosen ones."""
        number, inside = divmod(i, len(self.clean))
        return self.own[number], inside

    def changed_tokens(self, i: int, condition: int, preprocess: Any) -> list[bool] | None:
        """Which tokens of text `i` belong to a word that `condition` changes? None where the tokenizer cannot say."""
        flags = flagged(self, *self.place(i), condition, preprocess, special=True)
        if flags is None:
            return None
        length = most_tokens(preprocess, self.options.context)
        if len(flags) <= length:
            return flags
        offsets = preprocess.offsets(self.read(i).text)
        after = next((k for k, (start, stop) in enumerate(reversed(offsets)) if stop > start), 0)
        return flags[: length - after] + [False] * after  # what ends a text stays at the end of a shortened one

    def piece(self, i: int) -> tuple[int, int, int, int]:
        """Condition and number of text `i`, and from which to which token of it is read, special ones not counted."""
        return *self.place(i), 0, sys.maxsize

    def passage_pair(self, condition: int, passage: int) -> tuple[str, Altered]:
        """A text before and after the change of a condition."""
        return self.clean.passage(passage), self.altered(condition, passage)

    def longest(self, preprocess: Tokenizes) -> int:
        return most_tokens(preprocess, self.options.context)

    def leading(self, preprocess: Any) -> list[int]:
        """What stands before every text."""
        return [preprocess.bos] if preprocess.bos in preprocess.encode("")[:1] else []

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for change in self.changes:
            found |= change.options()
        return {**super().describe(), **found}

    def subset(self, indices: Sequence[int]) -> TextData:
        raise DataError("Conditions are measured as a whole: choose fewer texts when they are loaded.")

    def cut(self, preprocess: Tokenizes) -> TextConditions | ConditionWindows:
        check_tokenizer(preprocess, self.name)
        return ConditionWindows(self, preprocess) if self.unit == WINDOWS else self

    def __repr__(self) -> str:
        return f"TextConditions({self.name} {self.split}: {len(self.clean):,} texts, {', '.join(self.conditions)})"


class ConditionWindows(WindowData):
    """The windows of all conditions. Each condition is cut by itself: changed words have more tokens, or fewer."""

    texts: TextConditions

    def __init__(self, texts: TextConditions, preprocess: Tokenizes) -> None:
        tables: list[np.ndarray] = []
        warnings: list[str] = []
        for number, part in enumerate(texts.parts):
            found = cut_windows(part, preprocess)
            tables.append(found.table + np.array([number * texts.clean.passages, 0, 0, 0]))
            warnings += [w for w in found.warnings if w not in [*texts.warnings, *warnings]]
        super().__init__(texts, preprocess, np.concatenate(tables), warnings)
        self.conditions, self.own, self.changes = texts.conditions, texts.own, texts.changes
        self._flags: dict[int, tuple[tuple[int, int], list[bool] | None]] = {}  # of the last document, per condition

    @property
    def condition(self) -> np.ndarray:
        return np.array(self.own)[self.table[:, 0] // self.texts.clean.passages]

    @property
    def documents(self) -> np.ndarray:
        """(N,) int64: the document of each window, by the same number in every condition."""
        return self.table[:, 0] % self.texts.clean.passages

    def changed_tokens(self, i: int, condition: int, preprocess: Any) -> list[bool] | None:
        own, inside, start, stop = self.piece(i)
        key = (own, inside)
        if condition not in self._flags or self._flags[condition][0] != key:
            self._flags[condition] = key, flagged(self.texts, *key, condition, preprocess, special=False)
        flags = self._flags[condition][1]
        return None if flags is None else [False] * self.lead + flags[start:stop]

    def piece(self, i: int) -> tuple[int, int, int, int]:
        """Condition and document of window `i`, and from which to which token it goes."""
        document, start, stop, _ = self.table[i].tolist()
        number, inside = divmod(document, self.texts.clean.passages)
        return self.own[number], inside, start, stop

    def passage_pair(self, condition: int, passage: int) -> tuple[str, Altered]:
        return self.texts.passage_pair(condition, passage)

    def longest(self, preprocess: Tokenizes) -> int:
        return self.texts.longest(preprocess)

    def leading(self, preprocess: Any) -> list[int]:
        return [preprocess.bos] * self.lead

    def item_name(self, i: int) -> str:
        name = super().item_name(i)
        key = self.conditions[self.condition[i]]
        return f"{key}/{name}" if self.texts.options.joined and key != CLEAN else name

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "documents": len(self.texts.clean)}


def flagged(
    texts: TextConditions, own: int, passage: int, condition: int, preprocess: Any, *, special: bool
) -> list[bool] | None:
    """Of the tokens of a passage in condition `own`: which belong to a word that `condition` changes?"""
    offsets_of = getattr(preprocess, "offsets", None)
    if offsets_of is None:
        return None
    altered = texts.altered(condition, passage)
    text, spans = (altered.text, altered.spans) if own else (texts.clean.passage(passage), altered.before)
    offsets = offsets_of(text, special=special)
    return None if offsets is None else overlap(offsets, spaced(text, spans)).tolist()


def spaced(text: str, spans: Sequence[Span]) -> list[Span]:
    """Words with the space before them: many tokenizers make it a part of the word, and where it is a token by itself,
    whether it comes next depends on the word."""
    return [(start - (text[start - 1 : start] == " "), stop) for start, stop in spans]


def overlap(offsets: Sequence[Span], spans: Sequence[Span]) -> np.ndarray:
    """(T, 2) places of tokens, spans in order that do not overlap -> (T,) bool: does a token share a character?"""
    starts, stops = (np.array([span[k] for span in spans], dtype=np.int64) for k in (0, 1))
    a, b = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    return (np.searchsorted(starts, b, "left") > np.searchsorted(stops, a, "right")) & (b > a)


def _over(clean: TextData, texts: Texts, content: str = "") -> TextSource:
    """The source of other texts in place of these, whatever they are cut into."""
    return replace(clean._source, documents=texts, lines=texts, content=f"{clean._source.content} {content}")
