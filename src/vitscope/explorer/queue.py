"""One worker thread owns the models: requests wait in line, and no two forward passes meet.

A slow job (an attack) calls `ticket.between_steps()`: there, and only there, the quick jobs that came meanwhile are
served on the same thread, and a job whose client has left ends. So an attack neither blocks a look nor mixes with it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from vitscope.errors import VitscopeError


class Cancelled(VitscopeError):
    """The client has left, or pressed Stop."""


@dataclass(eq=False)
class Ticket:
    """One job: what is to be done, and what its client hears of it."""

    work: Callable[[Ticket], Any]
    slow: bool = False
    result: Future[Any] = field(default_factory=Future)
    progress: Callable[[int, int], None] = lambda step, steps: None
    serve: Callable[[], None] = lambda: None  # quick jobs that wait, set by the queue
    _stop: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """It is not begun, or ends at its next step."""
        self._stop.set()

    def check(self) -> None:
        if self._stop.is_set():
            raise Cancelled("Stopped.")

    def between_steps(self, step: int = 0, steps: int = 0) -> None:
        """Raises Cancelled where nobody waits for the result any more; else lets the quick jobs go first."""
        self.check()
        self.progress(step, steps)
        if self.slow:
            self.serve()


class JobQueue:
    """Jobs in the order in which they came, slow ones behind quick ones, all on one thread."""

    def __init__(self) -> None:
        self._quick: deque[Ticket] = deque()
        self._slow: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._running: list[Ticket] = []  # a slow one, and the quick one that is served between its steps
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="vitscope-explorer", daemon=True)
        self._thread.start()

    def submit(
        self,
        work: Callable[[Ticket], Any],
        *,
        slow: bool = False,
        progress: Callable[[int, int], None] = lambda step, steps: None,
    ) -> Ticket:
        """Put a job in line; `ticket.result` is a Future."""
        ticket = Ticket(work, slow, progress=progress, serve=self._serve_quick)
        with self._changed:
            if self._closed:
                raise VitscopeError("The explorer is closing.")
            (self._slow if slow else self._quick).append(ticket)
            self._changed.notify()
        return ticket

    def close(self, seconds: float = 2.0) -> None:
        """Cancel everything and wait for the thread, which ends at the next step of what it does."""
        with self._changed:
            self._closed = True
            for ticket in (*self._quick, *self._slow, *self._running):
                ticket.cancel()
            self._changed.notify()
        self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._quick or self._slow or self._closed):
                    self._changed.wait()
                if not (self._quick or self._slow):
                    return
                ticket = (self._quick or self._slow).popleft()
            self._run(ticket)

    def _serve_quick(self) -> None:
        while True:
            with self._changed:
                if not self._quick:
                    return
                ticket = self._quick.popleft()
            self._run(ticket)

    def _run(self, ticket: Ticket) -> None:
        self._running.append(ticket)
        try:
            ticket.check()
            ticket.result.set_result(ticket.work(ticket))
        except BaseException as error:  # whatever it is, the client hears of it, and the thread goes on
            ticket.result.set_exception(error)
        finally:
            self._running.remove(ticket)
