"""Ctrl-C stops between two batches, where the sums are whole and can be saved."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The user (or the scheduler) stopped the run; its state is saved. The message says how to go on."""


@dataclass
class StopRequest:
    """Becomes `made` when SIGINT or SIGTERM arrives; `by` is the number of the signal."""

    made: bool = False
    by: int = 0


@contextmanager
def deferred_signals() -> Iterator[StopRequest]:
    """Inside the block the first Ctrl-C (or SIGTERM) is only noted; a second one interrupts at once.

    Outside the main thread Python gives no access to signals, and nothing changes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    owner = os.getpid()

    def note(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker that was forked meanwhile: it must end when it is told to
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif request.made:
            raise KeyboardInterrupt
        else:
            request.made, request.by = True, number

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            # None: a handler that was not installed from Python, which cannot be put back from here
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
