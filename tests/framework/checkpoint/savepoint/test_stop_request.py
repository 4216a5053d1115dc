"""The process that asks for a stop waits while the driver renews the request, and notices that it died."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.savepoint.stop_request import StopRequest
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import QueryNotStoppedError

DRIVER = """
import sys, threading
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.checkpoint.savepoint.stop_request import StopRequest

folder = OperatorFolder(CheckpointStorage.open(sys.argv[1]), "views")
with StopRequest.read(folder).taken(folder, every=0.05):
    threading.Event().wait()
"""


@pytest.fixture
def folder(jobs: ModuleType, tmp_path: Path) -> OperatorFolder:
    folder: OperatorFolder = jobs.Job(CheckpointStorage.open(tmp_path)).folder
    return folder


def renewals_reach(folder: OperatorFolder, count: int) -> None:
    wait_for(lambda: (request := StopRequest.read(folder)) is not None and request.renewals >= count)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_driver_that_dies_after_it_took_the_request_is_noticed(
    folder: OperatorFolder, tmp_path: Path
) -> None:
    request = StopRequest.new("/savepoint", drain=False, seconds=60)
    request.write(folder)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)])
    try:
        with ThreadPoolExecutor() as pool:
            # Taken first: the first renewals of a slow machine are no lapse.
            renewals_reach(folder, 1)
            answer = pool.submit(request.await_answer, folder, 60, lapse=2.0)
            # A living driver may work for longer than the lapse.
            began = time.monotonic()
            wait_for(lambda: time.monotonic() - began > 3.0)
            assert not answer.done()
            driver.kill()
            driver.wait()
            reason = (
                r"views was not stopped with a savepoint: its driver took the request, and has not renewed "
                r"it for 2 seconds\. The driver has died or cannot reach the folder\. If the query has "
                r"ended, `keyedstate savepoint create` makes a savepoint of its checkpoints; else ask "
                r"again\.$"
            )
            with pytest.raises(QueryNotStoppedError, match=reason):
                answer.result(timeout=60)
    finally:
        driver.kill()
        driver.wait()


def test_an_answer_is_never_overwritten_by_a_renewal(folder: OperatorFolder) -> None:
    request = StopRequest.new("/savepoint", drain=False, seconds=60)
    request.write(folder)
    with request.taken(folder, every=0.001):
        renewals_reach(folder, 3)
    request.answered(folder, "done")
    assert request.await_answer(folder, 60).status == "done"


def test_a_request_that_another_one_replaced_is_an_error(folder: OperatorFolder) -> None:
    StopRequest.new("/other", drain=False, seconds=60).write(folder)
    with pytest.raises(QueryNotStoppedError, match=r"another request replaced this one\. Ask again\.$"):
        StopRequest.new("/savepoint", drain=False, seconds=60).await_answer(folder, 60)


@pytest.mark.parametrize("successor", [None, StopRequest.new("/other", drain=True, seconds=60)])
def test_a_late_answer_leaves_the_next_request_alone(
    folder: OperatorFolder, successor: StopRequest | None
) -> None:
    """A driver that lost its storage for longer than the lapse may answer after the user has asked again."""
    request = StopRequest.new("/savepoint", drain=False, seconds=60)
    request.write(folder)
    with request.taken(folder):
        request.delete(folder)
        if successor is not None:
            successor.write(folder)
    request.answered(folder, "done")
    assert StopRequest.read(folder) == successor
