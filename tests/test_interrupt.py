"""Signals are noted, not obeyed, until the second one; handlers come back."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

from vitscope.interrupt import deferred_signals


def test_the_first_signal_is_noted_and_the_second_interrupts():
    with deferred_signals() as stop:
        assert not stop.made
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.made
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_handlers_come_back_also_after_an_exception():
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ZeroDivisionError), deferred_signals():
        raise ZeroDivisionError
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_forked_worker_still_ends_when_it_is_told_to():
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()

    def work():
        ready.set()
        time.sleep(60)

    with deferred_signals() as stop:
        worker = fork.Process(target=work)
        worker.start()
        assert ready.wait(30)  # before Python is up in the child, signals to it are lost
        worker.terminate()
        worker.join(30)
        assert worker.exitcode == -signal.SIGTERM
        assert not stop.made


def test_outside_the_main_thread_nothing_changes():
    found = []

    def work():
        with deferred_signals() as stop:
            found.append(stop.made)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
    assert signal.getsignal(signal.SIGINT) is before
