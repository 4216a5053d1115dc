"""A driver that is really killed in the middle of an epoch, and a task that fails: each row counts once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from keyedstate import types
from keyedstate.checkpoint.format.operator_state import read_operator_state
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.spark.hosts.processes import process_of
from keyedstate.state import BroadcastState, OperatorListState
from keyedstate.state.operator.backend import OperatorStateBackend

JOB = Path(__file__).parents[1] / "jobs" / "fragile_job.py"
RULES_JOB = Path(__file__).parents[1] / "jobs" / "fragile_rules_job.py"
FAILS_ONCE, WAITS_TO_BE_KILLED = -1, -2
DEADLINE_S = 900.0


def write_input(folder: Path) -> dict[str, int]:
    """Write four epochs, the second of which makes a task fail and the third of which waits for the kill."""
    (folder / "input").mkdir()
    counts: dict[str, int] = {}
    for epoch in range(4):
        rows: list[dict[str, Any]] = [{"k": f"key {n % 11}", "v": n} for n in range(50)]
        special = {1: FAILS_ONCE, 2: WAITS_TO_BE_KILLED}.get(epoch)
        if special is not None:
            rows.append({"k": "key 3", "v": special})
        for row in rows:
            counts[row["k"]] = counts.get(row["k"], 0) + 1
        path = folder / "input" / f"{epoch}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_000_000_000 + epoch, 1_000_000_000 + epoch))
    return counts


def start(folder: Path, backend: str, job: Path = JOB, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(job), str(folder), backend, *arguments],
            stdout=log,
            stderr=log,
            env=environment,
            # A process group of its own, the JVM in it.
            start_new_session=True,
        )


def wait_for(file: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"the job did not get to {file.name}:\n{log.read_text()[-4000:]}")
        time.sleep(0.05)


def run_until_killed(folder: Path, backend: str, job: Path = JOB, *arguments: str) -> None:
    """Run a job until a task of its third epoch waits, and kill it then."""
    killed = start(folder, backend, job, *arguments)
    try:
        wait_for(folder / "waiting", killed, folder / "log")
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert (folder / "failed").exists(), "a task of the second epoch was to fail"
    assert not (folder / "state" / "counts" / "chk-2").exists(), "the third epoch was to be killed"


def run_to_the_end(folder: Path, backend: str, job: Path = JOB, *arguments: str) -> None:
    restarted = start(folder, backend, job, *arguments)
    try:
        assert restarted.wait(DEADLINE_S) == 0, (folder / "log").read_text()[-4000:]
    finally:
        if restarted.poll() is None:
            os.killpg(restarted.pid, signal.SIGKILL)


def test_a_killed_driver_and_a_failed_task_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, one_backend: str
) -> None:
    expected = write_input(tmp_path)
    run_until_killed(tmp_path, one_backend)
    committed = {path.name for path in (tmp_path / "spark" / "commits").glob("[0-9]*")}
    assert committed == {"0", "1"}, "the third epoch was to be killed in its middle"
    assert (tmp_path / "state" / "counts" / "chk-1" / "_metadata").exists()
    run_to_the_end(tmp_path, one_backend)

    numbers: dict[str, list[int]] = {}
    for row in spark.read.parquet(str(tmp_path / "output")).collect():
        numbers.setdefault(row.k, []).append(row.n)
    assert {key: sorted(found) for key, found in numbers.items()} == {
        key: list(range(1, count + 1)) for key, count in expected.items()
    }
    # What the killed run left of its epoch is cleaned up, as is the failed attempt.
    data = {path.stem for path in (tmp_path / "state" / "counts" / "data").iterdir()}
    metadata = [json.loads(path.read_text()) for path in (tmp_path / "state").glob("counts/chk-*/_metadata")]
    used = {part["identity"]["nonce"] for document in metadata for part in document["body"]["parts"]}
    assert data == used


@pytest.mark.long
def test_a_killed_driver_loses_and_doubles_nothing_of_operator_and_broadcast_state(
    spark: SparkSession, tmp_path: Path, one_backend: str
) -> None:
    """And resumes at another parallelism: each element of the operator list is on one task, rules on all."""
    expected = write_input(tmp_path)
    (tmp_path / "rules").mkdir()
    for epoch in range(4):
        path = tmp_path / "rules" / f"{epoch}.json"
        path.write_text(json.dumps({"epoch": epoch}) + "\n")
        os.utime(path, (1_000_000_000 + epoch, 1_000_000_000 + epoch))
    run_until_killed(tmp_path, one_backend, RULES_JOB, "2")
    run_to_the_end(tmp_path, one_backend, RULES_JOB, "3")

    rows = spark.read.parquet(str(tmp_path / "output")).collect()
    given = sorted(f"{row.k} {row.n}" for row in rows)
    assert given == sorted(f"{key} {n + 1}" for key, count in expected.items() for n in range(count))
    # Each row saw the rule of its own micro-batch, and each rule was counted once.
    assert {(row.rule - row.epoch, row.times - row.epoch) for row in rows} == {(0, 1)}
    folder = OperatorFolder(CheckpointStorage.open(str(tmp_path / "state")), "counts")
    metadata = folder.read_metadata(3)
    assert metadata is not None and metadata.parallelism == 3
    parts = [part.operator_state for part in metadata.parts]
    tasks = [
        OperatorStateBackend(read_operator_state(folder.storage, parts, task, 3, restarted=False))
        for task in range(3)
    ]
    kept = [task.get_state(OperatorListState("given", types.STRING)).get() for task in tasks]
    assert sorted(element for task in kept for element in task) == given
    rules = BroadcastState("rules", types.STRING, types.INT64)
    assert [dict(task.get_state(rules).items()) for task in tasks] == [{"epoch": 3, "times": 4}] * 3
    used = {path for part in metadata.parts for path in part.data_files}
    assert used <= set(folder.data_files())


@pytest.mark.long
def test_databases_of_a_killed_driver_are_deleted_by_its_next_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM cannot delete its local folder, and the workers that have the databases die with it."""
    monkeypatch.setenv("KEYEDSTATE_HOST", "embedded")
    write_input(tmp_path)
    log = tmp_path / "log"
    killed = start(tmp_path, "rocksdb")
    try:
        wait_for(tmp_path / "waiting", killed, log)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    databases = list((tmp_path / "local").glob("blockmgr-*/keyedstate-work-*/db"))
    assert databases, "the killed run was to leave some"
    for database in databases:
        worker = json.loads((database.parent / ".keyedstate-work").read_text())["pid"]
        wait_for_the_end(worker)

    restarted = start(tmp_path, "rocksdb")
    try:
        assert restarted.wait(DEADLINE_S) == 0, log.read_text()[-4000:]
    finally:
        if restarted.poll() is None:
            os.killpg(restarted.pid, signal.SIGKILL)
    assert not list((tmp_path / "local").glob("blockmgr-*/keyedstate-*"))


def wait_for_the_end(process: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while process_of(process) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
