"""Which token of a changed text is which token of the clean one?

A token has a partner if it is the same token at the same characters, none of them changed; and the last token of a
changed word is the partner of the last one that the word had before. Other tokens of changed words have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitscope.robustness.text.alter import Altered, Span

NONE = -1
_FIRST = (0, 1, 2, 5, 17)  # the distance at which each of GROUPS after 'before' begins


@dataclass(frozen=True)
class Pairing:
    """The tokens of a text before and after a change."""

    new: Sequence[int]
    old: Sequence[int]
    partner: np.ndarray  # (T,) int64: place of the clean partner, NONE for none; it rises from left to right
    ends: np.ndarray  # (T,) bool: is it the last token of a changed word?

    def rows(self, start: int, stop: int, longest: int) -> Rows | None:
        """Tokens `start` to `stop - 1` beside their clean partners; both rows begin and end with tokens that are the
        same in both texts, and have at most `longest`. None where no two tokens are left."""
        same = np.flatnonzero((self.partner[start:stop] != NONE) & ~self.ends[start:stop]) + start
        if not len(same):
            return None
        room = np.maximum(same - same[0], self.partner[same] - self.partner[same[0]]) < longest
        first, last = int(same[0]), int(same[room][-1])
        if last == first:
            return None
        places = np.arange(first, last + 1)
        paired = self.partner[places] != NONE
        old_first, old_last = int(self.partner[first]), int(self.partner[last])
        new_at, old_at = places[paired] - first, self.partner[places[paired]] - old_first
        ends = self.ends[first : last + 1]
        follows = np.zeros(len(new_at), dtype=bool)  # is the next token the same in both, too?
        follows[:-1] = (np.diff(new_at) == 1) & (np.diff(old_at) == 1) & ~ends[new_at[1:]]
        new, old = self.new[first : last + 1], self.old[old_first : old_last + 1]
        return Rows(new, old, new_at, old_at, follows, behind(ends)[new_at])


@dataclass(frozen=True)
class Rows:
    """A stretch of a changed text and the same stretch of the clean one."""

    new: Sequence[int]
    old: Sequence[int]
    new_at: np.ndarray  # (P,) places of paired tokens in `new`
    old_at: np.ndarray  # (P,) and of their partners in `old`
    follows: np.ndarray  # (P,) bool
    group: np.ndarray  # (P,) int64: which of GROUPS


def behind(ends: np.ndarray) -> np.ndarray:
    """Where changed words end (T,) bool -> which of GROUPS each token belongs to, (T,) int64."""
    places = np.arange(len(ends))
    last = np.maximum.accumulate(np.where(ends, places, NONE))
    return np.where(last == NONE, 0, np.searchsorted(_FIRST, places - last, "right"))


def pair_tokens(text: str, altered: Altered, preprocess: Any) -> Pairing:
    """Both texts tokenized, and the tokens put side by side."""
    new, old = (preprocess.encode(t, special=False) for t in (altered.text, text))
    new_at, old_at = (preprocess.offsets(t, special=False) for t in (altered.text, text))
    # what to add to a place in the new text, after 0, 1, 2, ... changed words, to have it in the old one
    shift = [0, *(old_stop - stop for (_, stop), (_, old_stop) in zip(altered.spans, altered.before))]
    starts = np.array([span[0] for span in altered.spans], dtype=np.int64)
    stops = np.array([span[1] for span in altered.spans], dtype=np.int64)
    places = {(token, *span): i for i, (token, span) in enumerate(zip(old, old_at)) if span[1] > span[0]}
    partner, ends = np.full(len(new), NONE), np.zeros(len(new), dtype=bool)
    for i, (token, (a, b)) in enumerate(zip(new, new_at)):
        passed = int(np.searchsorted(stops, a, "right"))  # changed words that end before it
        if np.searchsorted(starts, b, "left") == passed:  # and none of which it has a part
            partner[i] = places.get((token, a + shift[passed], b + shift[passed]), NONE)
    last_new, last_old = _last_tokens(new_at, altered.spans), _last_tokens(old_at, altered.before)
    for i, j in zip(last_new, last_old):
        partner[i], ends[i] = j, True
    known = partner != NONE
    rising = np.maximum.accumulate(np.where(known, partner, NONE))
    doubled = known & (np.concatenate([[NONE], rising[:-1]]) >= partner)
    partner[doubled], ends[doubled] = NONE, False
    return Pairing(new, old, partner, ends)


def _last_tokens(offsets: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """The token that holds the last character of each span."""
    begins = np.array([start for start, _ in offsets], dtype=np.int64)
    return [int(np.searchsorted(begins, stop - 1, "right")) - 1 for _, stop in spans]
