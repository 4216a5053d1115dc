"""Of two processes that use one state folder at once, one writes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.protocol.owner import check_writer, exclusive
from keyedstate.checkpoint.protocol.recovery import claim
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import StateFolderOwnedError, StorageError, SupersededRunError

RIVAL = Path(__file__).parents[1] / "rival.py"


def rival(job: Any, query: str, run: str, epochs: int, *freeze: str) -> subprocess.Popen[str]:
    folder = str(Path(job.folder.location).parent)
    command = [sys.executable, str(RIVAL), folder, query, run, str(epochs), *freeze]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_one_of_two_queries_that_begin_in_one_folder_is_refused_by_name(job: Any) -> None:
    rivals = [rival(job, f"query-{number}", f"run-{number}", 6) for number in range(2)]
    said = [process.communicate()[0].strip() for process in rivals]
    assert sorted(said) == [
        "published -1, stopped by StateFolderOwnedError",
        "published 5, stopped by nothing",
    ]
    winner = said.index("published 5, stopped by nothing")
    assert job.folder.read_owner().query_id == f"query-{winner}"
    assert job.published(5) == job.state_of(*range(6))
    for epoch in job.folder.checkpoints():
        assert job.folder.read_metadata(epoch).query_id == f"query-{winner}"


def test_of_two_runs_of_a_query_that_are_at_work_at_once_one_finishes(job: Any) -> None:
    """Spark would let two drivers begin from one checkpoint location."""
    rivals = [rival(job, "query-1", f"run-{number}", 12) for number in range(2)]
    said = [process.communicate()[0].strip() for process in rivals]
    stopped = [line for line in said if line.endswith(("SupersededRunError", "OvertakenRunError"))]
    assert (len(stopped), said.count("published 11, stopped by nothing")) == (1, 1), said
    assert job.folder.read_metadata(11).run_id == job.folder.read_owner().runs[-1]
    assert job.published(11) == job.state_of(*range(12))


def test_a_driver_that_was_frozen_before_it_published_finds_its_successor_and_changes_nothing(
    job: Any,
) -> None:
    """As a virtual machine that is paused, and taken for dead, and continues in the middle of an epoch."""
    frozen = rival(job, "query-1", "run-1", 2, "freeze")
    try:
        _, status = os.waitpid(frozen.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert job.folder.checkpoints() == [0]
        job.epoch("run-2", 1, CheckpointCoordinator(job.folder))
        published = job.folder.storage.read("chk-1/_metadata")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    said = frozen.communicate()[0].strip()
    assert said == "published 0, stopped by SupersededRunError"
    assert job.folder.storage.read("chk-1/_metadata") == published
    assert job.published(1) == job.state_of(0, 1)


def test_a_driver_of_another_query_publishes_nothing_once_the_folder_is_not_its_own(
    jobs: ModuleType, job: Any
) -> None:
    """Where there are no locks, a second query may enter itself over the first one's owner file."""
    coordinator = CheckpointCoordinator(job.folder)
    words = job.epoch("run-1", 0)
    coordinator.acknowledge(words[0])
    other = jobs.Job(CheckpointStorage.open(Path(job.folder.location).parent), query="query-2")
    job.folder.storage.delete_file("_owner")
    for path in ("data", "attempts"):
        job.folder.storage.delete_dir(path)
    claim(other.folder, other.identity("run-9", 0, 0))
    with pytest.raises(StateFolderOwnedError, match="belongs to query query-2, and this is query query-1"):
        coordinator.acknowledge(words[1])
    assert job.folder.checkpoints() == []


def test_a_run_that_lost_the_race_for_the_owner_file_may_not_publish(job: Any) -> None:
    """Where there are no locks, the last of two runs that enter themselves at once is the newest."""
    coordinator = CheckpointCoordinator(job.folder)
    before = job.folder.read_owner
    words = job.epoch("run-1", 0)
    coordinator.acknowledge(words[0])
    owner = before()
    job.folder.write_owner(from_json(type(owner), {**to_json(owner), "runs": ["run-2"]}))
    with pytest.raises(SupersededRunError, match="run-2"):
        coordinator.acknowledge(words[1])
    with pytest.raises(SupersededRunError):
        check_writer(job.folder, "query-1", "run-1")


def test_all_of_many_runs_that_enter_themselves_at_once_are_remembered(
    jobs: ModuleType, local: CheckpointStorage
) -> None:
    job = jobs.Job(local)
    start = threading.Barrier(8)

    def enter(number: int) -> None:
        identity = job.identity(f"run-{number}", 0, 0)
        start.wait()
        with contextlib.suppress(SupersededRunError):
            claim(job.folder, identity)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(8)))
    assert sorted(job.folder.read_owner().runs) == [f"run-{number}" for number in range(8)]


# -- the lock --------------------------------------------------------------------------------------


def test_one_at_a_time_is_inside(job: Any) -> None:
    inside, most = [], []

    def enter(number: int) -> None:
        with exclusive(job.folder):
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(64)))
    assert most == [1] * 64


def test_a_lock_that_is_not_let_go_is_an_error_that_names_the_file(job: Any) -> None:
    with (
        exclusive(job.folder),
        pytest.raises(
            StorageError,
            match=rf"cannot lock .*views/_lock: the process {os.getpid()} of .* has locked it for 0\.01",
        ),
        exclusive(job.folder, timeout=0.01),
    ):
        raise AssertionError("entered twice")
    with exclusive(job.folder, timeout=0.01):
        pass


def test_a_lock_ends_with_its_process(job: Any) -> None:
    folder = str(Path(job.folder.location).parent)
    program = (
        "import os, signal, sys\n"
        "from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder\n"
        "from keyedstate.checkpoint.protocol.owner import exclusive\n"
        "from keyedstate.checkpoint.storage.filesystem import CheckpointStorage\n"
        f"with exclusive(OperatorFolder(CheckpointStorage.open({folder!r}), 'views')):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program])
    assert killed.returncode == -signal.SIGKILL
    with exclusive(job.folder, timeout=10.0):
        pass


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(job: Any) -> None:
    """As one of a pool that a foreachBatch function makes in another thread of the driver."""
    read, write = os.pipe()
    with exclusive(job.folder):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # until the parent is done
            os._exit(0)
    try:
        with exclusive(job.folder, timeout=0.01):
            pass
    finally:
        os.close(write)
        os.waitpid(child, 0)
        os.close(read)


def test_storage_without_locks_goes_without(jobs: ModuleType, storage: CheckpointStorage) -> None:
    job = jobs.Job(storage)
    job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    assert ("_lock" in job.files("")) == storage.is_local
    assert job.published(0) == job.state_of(0)
