"""Hosts on two executors of a real cluster, one of which is killed in the middle of an epoch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow.parquet
import pytest
from hosted import wait_until

from keyedstate.checkpoint.format.manifest import AttemptManifest, StateOrigin
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.spark.hosts.processes import Process, process_of

JOB = Path(__file__).parents[1] / "jobs" / "cluster_job.py"
EPOCHS, FATAL = 7, 3
WAITS = -1
DEADLINE_S = 900.0


def write_input(folder: Path) -> Counter[str]:
    """Write the epochs; return how often each key comes."""
    (folder / "input").mkdir()
    counts: Counter[str] = Counter()
    for epoch in range(EPOCHS):
        keys = [f"key {number % 23}" for number in range(69)]
        counts.update(keys)
        rows = [{"k": key, "v": WAITS if epoch == FATAL and key == "key 3" else 0} for key in keys]
        path = folder / "input" / f"{epoch}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_000_000_000 + epoch, 1_000_000_000 + epoch))
    return counts


def executor_of(host: int) -> Process:
    """Return the JVM of the executor that a host belongs to."""
    words = Path("/proc", str(host), "cmdline").read_text().split("\0")
    [start] = [json.loads(word) for word in words if word.startswith("{")]
    found = Process.named(start["parents"][-1])
    assert found is not None
    assert "CoarseGrainedExecutorBackend" in Path("/proc", str(found.pid), "cmdline").read_text()
    return found


def executor_name(host: int) -> str:
    """Return how the manifests call it: by the folder of its blocks, of which it is the only user."""
    variables = Path("/proc", str(host), "environ").read_text().split("\0")
    [folder] = [
        value for name, _, value in (one.partition("=") for one in variables) if name == "SPARK_LOCAL_DIRS"
    ]
    return Path(folder.split(",")[0]).name


def epochs_of(folder: Path) -> list[tuple[AttemptManifest, ...]]:
    """Return the parts of all checkpoints."""
    state = OperatorFolder(CheckpointStorage.open(str(folder / "state")), "counts")
    found = [state.read_metadata(epoch) for epoch in range(EPOCHS)]
    return [() if metadata is None else metadata.parts for metadata in found]


def committed_files(output: Path) -> list[Path]:
    """Return what Spark's file sink has committed: a killed task leaves files, too."""
    logs = [path for path in (output / "_spark_metadata").iterdir() if path.name.isdecimal()]
    lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("{")]
    return [Path(urlparse(json.loads(line)["path"]).path) for line in lines]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file."""
    return pyarrow.parquet.read_table(path).to_pylist()


def hosts_of(parts: tuple[AttemptManifest, ...]) -> list[str]:
    """Return which executor keeps each partition."""
    return ["nobody" if part.host is None else part.host.executor for part in parts]


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the executor in /proc")
def test_rows_go_to_where_the_state_is_and_a_killed_executor_loses_nothing(tmp_path: Path) -> None:
    expected = write_input(tmp_path)
    log = tmp_path / "log"
    with log.open("wb") as output:
        job = subprocess.Popen(
            [sys.executable, str(JOB), str(tmp_path)],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            start_new_session=True,
        )
    try:
        waiting = tmp_path / "waiting"
        wait_until(lambda: waiting.exists() or job.poll() is not None, DEADLINE_S)
        assert waiting.exists(), log.read_text()[-4000:]
        host = process_of(int(waiting.read_text()))
        assert host is not None
        dead = executor_name(host.pid)
        executor_of(host.pid).kill(signal.SIGKILL)
        # The host ends with its executor.
        wait_until(lambda: not host.is_alive)
        (tmp_path / "go").touch()
        assert job.wait(DEADLINE_S) == 0, log.read_text()[-4000:]
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    # Each row counted once, and was put out once.
    rows = [row for path in committed_files(tmp_path / "output") for row in read_rows(path)]
    assert Counter((row["k"], row["n"]) for row in rows) == Counter(
        (key, number + 1) for key, count in expected.items() for number in range(count)
    )
    epochs = epochs_of(tmp_path)
    assert [len(parts) for parts in epochs] == [4] * EPOCHS
    # Rows have gone over the network, and then nothing was restored.
    hops = [
        part
        for parts in epochs
        for part in parts
        if part.host is not None and part.task_executor != part.host.executor
    ]
    assert len(hops) > 0
    assert {part.state_origin for part in hops} == {StateOrigin.HOST}
    # Everybody had a host that other executors reach, and the dead one's are not asked any more.
    assert "nobody" not in {executor for parts in epochs for executor in hosts_of(parts)}
    assert dead in hosts_of(epochs[FATAL - 1])
    for parts in epochs[FATAL:]:
        assert dead not in hosts_of(parts)
