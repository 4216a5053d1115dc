"""Hosts for long: a large state, many ways to die, and a function that prints without end.

Each test has a short form, which is a part of all tests, and a long one: ``make soak``.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import signal
import subprocess
import tempfile
import termios
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hosted import DEADLINE_S, Counting, HostedJob, wait_until
from pyspark.sql import DataFrame, SparkSession

from keyedstate import epoch_metrics, keyed
from keyedstate.aggregates import count, sum_
from keyedstate.metrics import EpochMetrics
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.spark.hosts.launch import Hosts, HostSettings
from keyedstate.spark.hosts.processes import Process, process_of

PARTITIONS = 4


# -- a large state ---------------------------------------------------------------------------------


class Input:
    """Parquet files of keys and numbers, one an epoch, the later ones with few of the keys."""

    def __init__(self, folder: Path, entries: int) -> None:
        self.folder = folder
        self.entries = entries
        self.files = 0
        folder.mkdir()

    def add(self, rows: int) -> None:
        numbers = np.arange(rows) * (self.entries // rows)
        keys = pa.array([f"customer-{number:08}" for number in numbers.tolist()])
        hidden = self.folder / f".{self.files:04}.parquet"
        pyarrow.parquet.write_table(pa.table({"k": keys, "c": numbers}), hidden)
        # Spark reads files in the order of their times.
        os.utime(hidden, (1_000_000_000 + self.files, 1_000_000_000 + self.files))
        hidden.rename(self.folder / hidden.name[1:])
        self.files += 1


def hosts_of(spark: SparkSession) -> dict[int, Process]:
    """Return the hosts of the session's executor by their numbers."""
    jvm: Any = spark.sparkContext._jvm
    executor = process_of(jvm.java.lang.ProcessHandle.current().pid())
    assert executor is not None
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_text()
            process = process_of(int(folder.name))
            if process is not None and "keyedstate.spark.hosts" in line and f'"{executor.name}"' in line:
                found[int(line.partition('"number": ')[2].partition(",")[0])] = process
    return found


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_large_state_is_restored_once_and_again_after_a_kill(
    spark: SparkSession, tmp_path: Path, soak: bool, one_backend: str
) -> None:
    entries, changed = (5_000_000, 10_000) if soak else (4_000, 100)
    before, after = (4, 3) if soak else (2, 2)
    rows = Input(tmp_path / "input", entries)
    counts: dict[int, Counter[int]] = {}

    def collect(batch: DataFrame, epoch: int) -> None:
        if epoch == 0:
            batch.write.format("noop").mode("overwrite").save()
        else:
            counts[epoch] = Counter(row.n for row in batch.select("n").collect())

    events = (
        spark.readStream.schema("k string, c long").option("maxFilesPerTrigger", 1).parquet(str(rows.folder))
    )
    config: dict[str, object] = {
        "checkpoint.dir": str(tmp_path / "state"),
        "parallelism": PARTITIONS,
        "host": "resident",
        "hosts.processes": 2,
        "backend": one_backend,
    }
    out = keyed(events, "k", uid="large", config=config).aggregate(n=count(), total=sum_("c"))
    query = (
        out.writeStream.foreachBatch(collect)
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path / "spark"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        rows.add(entries)
        query.processAllAvailable()
        for _ in range(before):
            rows.add(changed)
            query.processAllAvailable()
        victim, other = hosts_of(spark)[0], hosts_of(spark)[1]
        victim.kill(signal.SIGKILL)
        wait_until(lambda: not victim.is_alive)
        for _ in range(after):
            rows.add(changed)
            query.processAllAvailable()
        assert hosts_of(spark)[1] == other
        figures = epoch_metrics(query)
        took = {one["batchId"]: one["durationMs"]["triggerExecution"] for one in query.recentProgress}
    finally:
        query.stop()
    report(figures, took)
    epochs = range(1, before + after + 1)
    # With 2 hosts, each of them has each second partition.
    restores = [PARTITIONS, *(PARTITIONS // 2 if epoch == before + 1 else 0 for epoch in epochs)]
    assert [one.restores for one in figures] == restores
    assert [one.host_hits for one in figures] == [PARTITIONS - number for number in restores]
    assert [one.rows_in for one in figures] == [entries, *[changed] * len(epochs)]
    assert {one.states[name].entries for one in figures for name in one.states} == {entries}
    assert counts == {epoch: Counter({epoch + 1: changed}) for epoch in epochs}


def report(figures: tuple[EpochMetrics, ...], took: dict[int, int]) -> None:
    """Print the epochs: ``-rP`` shows it of a test that passes."""
    for one in figures:
        phases = " ".join(f"{name} {times.max:,.0f}" for name, times in one.phases.items())
        print(  # noqa: T201 - the measurements of the long form
            f"epoch {one.epoch}: {one.rows_in:,} rows, {one.host_hits} hits, {one.restores} restores, "
            f"{one.written_bytes:,} bytes written, {took.get(one.epoch, 0):,} ms; longest in ms: {phases}"
        )


# -- starts and stops ------------------------------------------------------------------------------


def end_of_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


#: How a life ends: what happens to the daemon, the executor or the host.
WAYS: dict[str, Callable[[HostedJob, subprocess.Popen[bytes]], None]] = {
    "the daemon ends": lambda job, executor: end_of_input(job.parent),
    "the daemon is terminated": lambda job, executor: job.parent.terminate(),
    "the daemon is killed": lambda job, executor: job.parent.kill(),
    "the host is killed": lambda job, executor: job.host().kill(signal.SIGKILL),
    "the executor ends": lambda job, executor: end_of_input(executor),
    "the executor is terminated": lambda job, executor: executor.terminate(),
    "the executor is killed": lambda job, executor: executor.kill(),
    "no task connects": lambda job, executor: None,
    "the host is terminated": lambda job, executor: job.host().kill(signal.SIGTERM),
}


def listening(folder: Path) -> list[str]:
    """Return the Unix sockets below a folder that somebody listens at."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line for line in lines if f" {folder}/" in line and line.split()[3] == "00010000"]


def shares_memory(process: Process, folder: Path) -> bool:
    """Return whether a process has memory that would outlive it, other than the files of its test."""
    maps: list[str] = []
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    shared = [line for line in maps if "/dev/shm/" in line or "/SYSV" in line]
    return any(f" {folder}/" not in line for line in shared)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_starts_epochs_and_stops_leave_no_process_no_socket_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak: bool, one_backend: str
) -> None:
    """All lives have one state, which each takes over from the one before."""
    temporary, local, recorded = tmp_path / "temporary", tmp_path / "local", tmp_path / "recorded"
    for folder in (temporary, local, tmp_path / "job"):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(local))
    ways = list(WAYS)
    before: set[str] = set()
    # Pytest's own folders have paths that are too long for sockets.
    with tempfile.TemporaryDirectory(prefix="ks-") as short:
        sockets = Path(short, "here")
        sockets.mkdir()
        for life in range(50 if soak else len(ways)):
            way = ways[life % len(ways)]
            idle_ms = 300 if way == "no task connects" else DEADLINE_S * 1000
            recorded.unlink(missing_ok=True)
            executor = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
            with HostedJob(tmp_path / "job", Counting(str(recorded)), backend=one_backend) as job:
                jvm = process_of(executor.pid)
                assert jvm is not None
                job.run_id = f"run-{life}"
                job.hosts = Hosts([job.anchor, jvm], HostSettings(idle_ms, 0), [sockets])
                for epoch in (2 * life, 2 * life + 1):
                    assert job.epoch(epoch, ["a"]) == [("a", epoch + 1)]
                hosts = job.processes()
                # What a host before has left, that was killed, is gone by now.
                assert way == "no task connects" or len(listening(sockets)) == len(hosts) == 1
                assert len(list(sockets.glob("*/*/*"))) <= 1
                assert not any(shares_memory(host, tmp_path) for host in hosts)
                WAYS[way](job, executor)
                # The first thread of a killed process may end before others, which still have its sockets.
                wait_until(lambda: not job.processes() and not listening(sockets))
                left = {sockets: list(sockets.rglob("*")), local: list(local.iterdir())}
                if way == "the host is killed":
                    # The next host clears it away.
                    left = {sockets: [], local: []}
                else:
                    assert recorded.read_text().split()[-2:] == ["open", "close"]
                assert left == {sockets: [], local: []}, way
                assert list(temporary.iterdir()) == [], way
            executor.kill()
            executor.communicate()
            open_now = set(os.listdir("/proc/self/fd"))
            before = before or open_now
            assert len(open_now) <= len(before), way
    print(f"{life + 1} lives, {len(ways)} ways to die")  # noqa: T201 - the measurements of the long form


def test_hosts_that_end_while_they_start_leave_nothing(tmp_path: Path, soak: bool) -> None:
    """They do not get as far as importing anything: they are terminated or killed while they start."""
    with HostedJob(tmp_path) as job:
        for number in range(50 if soak else 3):
            job.hosts.connect(number).close()
        hosts = job.processes()
        assert len(hosts) == (50 if soak else 3)
        job.parent.kill()
        job.parent.wait()
        wait_until(lambda: not any(host.is_alive for host in hosts))
        assert list(job.sockets.rglob("*")) == []


# -- a function that prints without end ------------------------------------------------------------


#: What a pipe of Linux holds.
PIPE_BYTES = 65_536


class Printing(KeyedProcessFunction):
    """Prints so many megabytes for a key, and says how much memory it has."""

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        for _ in range(int(row.key) * 100):
            print("x" * 9_999)  # noqa: T201 - the point of it
        yield row.key, int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def epoch_of(job: HostedJob, epoch: int, megabytes: int) -> int:
    """Run an epoch that prints so much; return the most memory that its host had so far, in kilobytes."""
    [(_, most)] = job.epoch(epoch, [str(megabytes)])
    return int(most)


@pytest.mark.timeout(900)
def test_a_function_that_prints_without_end_waits_for_the_log(tmp_path: Path, soak: bool) -> None:
    megabytes = 1000 if soak else 50
    reading, writing = os.pipe()
    read = 0

    def drain() -> None:
        nonlocal read
        with open(reading, "rb", buffering=0) as log:
            while piece := log.read(1 << 16):
                read += len(piece)

    with HostedJob(tmp_path, Printing()) as job, ThreadPoolExecutor(2) as pool:
        # A host's log is that of the process that starts it.
        mine = os.dup(2)
        os.dup2(writing, 2)
        os.close(writing)
        try:
            job.hosts.connect(0).close()
        finally:
            os.dup2(mine, 2)
            os.close(mine)
        before = epoch_of(job, 0, 0)
        printing = pool.submit(epoch_of, job, 1, megabytes)
        # No process reads what is printed, so it must fit into the pipe.
        wait_until(lambda: bytes_in(reading) > PIPE_BYTES // 2)
        drained = pool.submit(drain)
        after = printing.result()
        job.parent.kill()
        drained.result()
    print(f"{read / 1e6:,.0f} MB printed; the host had {before:,} kB of memory before and {after:,} kB after")  # noqa: T201
    assert read >= megabytes * 1_000_000
    assert after - before < 20_000


def bytes_in(pipe: int) -> int:
    """Return how much was written into a pipe and not yet read."""
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0]
