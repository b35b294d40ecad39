"""One thread for all models: answers are not mixed, a slow job blocks nobody, who leaves is forgotten."""

from __future__ import annotations

import threading

import pytest

from vitscope.errors import VitscopeError
from vitscope.explorer.queue import Cancelled, JobQueue, Ticket


@pytest.fixture
def queue():
    found = JobQueue()
    yield found
    found.close()


def test_twenty_at_once_get_their_own_answers_in_their_order_on_one_thread(queue):
    seen: list[tuple[int, str]] = []

    def work(number: int):
        return lambda ticket: seen.append((number, threading.current_thread().name)) or number

    tickets = [queue.submit(work(i)) for i in range(20)]
    assert [t.result.result(5) for t in tickets] == list(range(20))
    assert [number for number, _ in seen] == list(range(20))
    assert {name for _, name in seen} == {"vitscope-explorer"}


def test_quick_jobs_are_served_between_the_steps_of_a_slow_one(queue):
    begun, asked = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(ticket: Ticket) -> str:
        begun.set()
        asked.wait(5)
        for step in range(3):
            ticket.between_steps(step, 3)
            order.append(f"step {step}")
        return "slow"

    first = queue.submit(slow, slow=True)
    begun.wait(5)
    second = queue.submit(lambda ticket: order.append("second slow"), slow=True)
    quick = queue.submit(lambda ticket: order.append("quick"))
    asked.set()
    assert first.result.result(5) == "slow"
    second.result.result(5)
    quick.result.result(5)
    assert order == ["quick", "step 0", "step 1", "step 2", "second slow"]


def test_a_cancelled_job_is_not_begun_or_ends_at_its_next_step(queue):
    begun, go_on = threading.Event(), threading.Event()
    steps: list[int] = []

    def slow(ticket: Ticket) -> None:
        for step in range(100):
            ticket.between_steps(step, 100)
            steps.append(step)
            begun.set()
            go_on.wait(5)

    running = queue.submit(slow, slow=True)
    waiting = queue.submit(lambda ticket: steps.append(-1), slow=True)
    begun.wait(5)
    running.cancel()
    waiting.cancel()
    go_on.set()
    for ticket in (running, waiting):
        with pytest.raises(Cancelled):
            ticket.result.result(5)
    assert steps == [0]
    assert queue.submit(lambda ticket: "still here").result.result(5) == "still here"


def test_an_error_reaches_its_own_client_only(queue):
    bad = queue.submit(lambda ticket: 1 / 0)
    good = queue.submit(lambda ticket: 1)
    with pytest.raises(ZeroDivisionError):
        bad.result.result(5)
    assert good.result.result(5) == 1


def test_closing_ends_the_thread_and_takes_nothing_more():
    queue = JobQueue()
    begun = threading.Event()

    def endless(ticket: Ticket) -> None:
        begun.set()
        while True:
            ticket.between_steps()

    ticket = queue.submit(endless, slow=True)
    begun.wait(5)
    queue.close()
    assert not queue._thread.is_alive()
    assert isinstance(ticket.result.exception(1), Cancelled)
    with pytest.raises(VitscopeError, match="closing"):
        queue.submit(lambda ticket: None)
