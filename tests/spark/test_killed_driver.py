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

JOB = Path(__file__).with_name("fragile_job.py")
FAILS_ONCE, WAITS_TO_BE_KILLED = -1, -2
DEADLINE_S = 150.0


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


def start(folder: Path, backend: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(JOB), str(folder), backend],
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


def test_a_killed_driver_and_a_failed_task_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, backend_name: str
) -> None:
    expected = write_input(tmp_path)
    log = tmp_path / "log"
    killed = start(tmp_path, backend_name)
    try:
        wait_for(tmp_path / "waiting", killed, log)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert (tmp_path / "failed").exists(), "a task of the second epoch was to fail"
    committed = {path.name for path in (tmp_path / "spark" / "commits").glob("[0-9]*")}
    assert committed == {"0", "1"}, "the third epoch was to be killed in its middle"
    assert (tmp_path / "state" / "counts" / "chk-1" / "_metadata").exists()
    assert not (tmp_path / "state" / "counts" / "chk-2").exists()

    restarted = start(tmp_path, backend_name)
    try:
        assert restarted.wait(DEADLINE_S) == 0, log.read_text()[-4000:]
    finally:
        if restarted.poll() is None:
            os.killpg(restarted.pid, signal.SIGKILL)

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
