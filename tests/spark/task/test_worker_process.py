"""What a task does to Spark's Python worker, so that neither collector nor acknowledgements hold it up."""

from __future__ import annotations

import gc
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from keyedstate import keyed
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.spark.task.worker_process import read_at_once


def _delayed() -> list[bool]:
    """Return, for each TCP connection of this process to this machine, whether small writes are held back."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with connection:
            if connection.family == socket.AF_INET and connection.type == socket.SOCK_STREAM:
                found.append(not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    return found


class Worker(KeyedProcessFunction):
    """Says what it sees of the process in which it runs."""

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[int, list[bool], int]]:
        yield os.getpid(), _delayed(), gc.get_freeze_count()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are listed on Linux only")
def test_a_task_asks_the_worker_s_connection_not_to_hold_small_writes_back(spark: SparkSession) -> None:
    frame = keyed(spark.range(8), "id", config={"host": "embedded"})
    rows = frame.process(Worker(), "pid long, delayed array<boolean>, frozen long").collect()
    # With Unix sockets, which Spark can be set to use, there is no such connection.
    connections = [delayed for row in rows for delayed in row.delayed]
    assert not any(connections)
    if spark.conf.get("spark.python.unix.domain.socket.enabled", "false") == "false":
        assert connections


def test_a_reused_worker_leaves_few_objects_to_the_collector(
    spark: SparkSession,
) -> None:
    frame = keyed(spark.range(64), "id", config={"host": "embedded"})
    schema = "pid long, delayed array<boolean>, frozen long"
    first = {row.pid for row in frame.process(Worker(), schema).collect()}
    again = [row for row in frame.process(Worker(), schema).collect() if row.pid in first]
    # All of pyspark and pyarrow is out of its sight.
    assert again and min(row.frozen for row in again) > 50_000


def test_it_is_spared_once_in_the_life_of_a_process() -> None:
    code = (
        "import gc; from keyedstate.spark.task.worker_process import spare_the_collector as spare\n"
        "spare(); first = gc.get_freeze_count(); kept = [[] for _ in range(100)]; spare()\n"
        "print(first > 0 and gc.get_freeze_count() <= first)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr


@pytest.mark.parametrize(("before", "after"), [(700, 10_000), (2_000, 10_000), (50_000, 50_000), (0, 0)])
def test_the_collector_runs_less_often_unless_it_runs_more_rarely_already(before: int, after: int) -> None:
    code = (
        "import gc; from keyedstate.spark.hosts.limits import collect_less_often\n"
        f"gc.set_threshold({before}, 7, 8); collect_less_often(); print(gc.get_threshold()[:2])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == (f"({after}, 7)", 0), done.stderr


def test_batches_come_through_in_their_order_also_where_connections_come_and_go() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            yield pa.record_batch({"n": [number]})
            client.close()  # before the second batch is asked for

    read = [batch["n"][0].as_py() for batch in read_at_once(batches())]
    assert read == [0, 1, 2]
    if os.path.isdir("/proc/self/fd"):
        assert server.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    server.close()
    listener.close()
