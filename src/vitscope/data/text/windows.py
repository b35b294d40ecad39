"""Which tokens a model sees at once, and which of them it is judged by: windows over a long text.

A model guesses each token from those before it in the window. The first token of a window has nothing before it and is
no target there, unless every window begins with a token of its own (`lead=1`: the beginning-of-text token).
"""

from __future__ import annotations

from typing import NamedTuple

from vitscope.errors import DataError


class Window(NamedTuple):
    """Tokens `start` to `stop - 1` of a text, of which those from `first` on are targets."""

    start: int
    stop: int
    first: int


def sliding_windows(n: int, context: int, stride: int = 1, lead: int = 0) -> list[Window]:
    """Windows that begin `stride` tokens apart; each of `n` tokens is a target once, where it first comes up.

    The first window scores all of its targets, a later one those that no window before it has seen. A stride of 1 is
    the published evaluation of WikiText-103: `context` tokens go in, the one behind them is a target, too, so that
    windows are longer by it, and all later windows score it only. The largest stride that leaves every target a token
    to be guessed from is `context - 1`. `context` counts the `lead` tokens, `n` does not.
    """
    room = _room(context, lead) + (stride == 1)
    if not 1 <= stride < context:
        raise DataError(
            f"stride must lie in 1..{context - 1} for windows of {context} tokens, not {stride}: else tokens are left "
            "out. Leave it out for windows without overlap."
        )
    found: list[Window] = []
    first, start = 1 - lead, 0
    while first < n:
        stop = min(start + room, n)
        found.append(Window(start, stop, first))
        start, first = start + stride, stop
    return found


def disjoint_windows(n: int, context: int, lead: int = 0) -> list[Window]:
    """Windows one after the other, without overlap; the first token of each is no target, unless there is a lead.

    The last window is shorter where `n` is no multiple, and left out where it has no target.
    """
    room = _room(context, lead)
    windows = (Window(start, min(start + room, n), start + 1 - lead) for start in range(0, n, room))
    return [window for window in windows if window.first < window.stop]


def _room(context: int, lead: int) -> int:
    """Tokens of the text in a window."""
    if context < 2:
        raise DataError(f"context must be at least 2 tokens, one to guess from and one to guess, not {context}.")
    return context - lead
