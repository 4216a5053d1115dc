"""Jobs of the background run in order, wait for room, and are done before the process ends."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from keyedstate.checkpoint.protocol.background import Background


def test_jobs_run_in_their_order_and_in_no_thread_of_the_caller() -> None:
    background = Background("jobs", limit=100)
    done: list[tuple[int, bool]] = []
    caller = threading.get_ident()
    for number in range(50):
        background.submit(lambda number=number: done.append((number, threading.get_ident() == caller)))
    assert background.drain(600.0)
    assert done == [(number, False) for number in range(50)]


def test_a_job_that_raises_is_logged_and_the_next_one_is_done(caplog: pytest.LogCaptureFixture) -> None:
    background, done = Background("jobs"), []
    with caplog.at_level(logging.ERROR):
        background.submit(lambda: 1 // 0)
        background.submit(lambda: done.append(1))
        assert background.drain(600.0)
    assert done == [1] and "a job of jobs raised" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_job_that_exits_does_not_take_the_thread_along() -> None:
    background, done = Background("jobs"), []
    background.submit(sys.exit)
    background.submit(lambda: done.append(1))
    assert background.drain(600.0)
    assert done == [1]


def test_jobs_are_done_later_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication must neither fail nor wait for ever because of its clean-up."""
    background, done = Background("jobs", limit=1), []

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", start)
        for number in range(3):
            background.submit(lambda number=number: done.append(number))
        assert background.drain(0.0)
    background.submit(lambda: done.append(3))
    assert background.drain(600.0)
    assert done == [0, 1, 2, 3]


def test_who_has_too_many_jobs_waits_until_one_is_done() -> None:
    """CP-03."""
    background = Background("jobs", limit=2)
    go_on, started, submitted = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait()

    background.submit(slow)
    started.wait()
    background.submit(lambda: None)
    background.submit(lambda: None)

    def one_too_many() -> None:
        background.submit(lambda: None)
        submitted.set()

    waiting = threading.Thread(target=one_too_many)
    waiting.start()
    assert not submitted.is_set() and not background.drain(0.0)
    go_on.set()
    waiting.join()
    assert submitted.is_set() and background.drain(600.0)


def test_no_thread_is_left_when_there_is_nothing_to_do() -> None:
    background = Background("a name of its own")
    for _ in range(3):
        background.submit(lambda: None)
        assert background.drain(600.0)
    for thread in threading.enumerate():
        if thread.name == "a name of its own":
            thread.join(600.0)
    assert "a name of its own" not in [thread.name for thread in threading.enumerate()]


def test_jobs_are_done_before_the_process_ends() -> None:
    program = """
import time
from keyedstate.checkpoint.protocol.background import Background
background = Background("jobs")
background.submit(lambda: time.sleep(0.2))
background.submit(lambda: print("done", flush=True))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("done\n", "")
