"""Stopping with a savepoint: whatever the query was doing, nothing is lost and nothing doubled."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from keyedstate import keyed, types
from keyedstate.errors import QueryNotStoppedError, TargetExistsError
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.savepoints import Savepoint
from keyedstate.spark.query.stop import FINAL_WATERMARK
from keyedstate.state import ValueState


class Count(KeyedProcessFunction):
    count = ValueState("count", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, int, int]]:
        self.count.update(self.count.value() + 1)
        yield ctx.key, row.v, self.count.value()


def counts(stream: Any, state: Path) -> DataFrame:
    config = {"checkpoint.dir": str(state), "parallelism": 2}
    frame = keyed(stream.frame(), "k", uid="count", config=config)
    return frame.process(Count(), "k string, v long, count long")


class Query:
    """A query that runs until it is stopped; notes of each epoch what it put out, at its last attempt."""

    def __init__(self, stream: Any, folder: Path, *, fails_at: int | None = None) -> None:
        self.rows: dict[int, list[tuple[Any, ...]]] = {}

        def sink(batch: DataFrame, epoch: int) -> None:
            found = [tuple(row) for row in batch.collect()]
            if epoch == fails_at:
                raise KeyError("the sink")
            self.rows[epoch] = found

        self.query = (
            counts(stream, folder / "state")
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(folder / "spark"))
            .start()
        )


def add(stream: Any, *epochs: int) -> None:
    for epoch in epochs:
        stream.add({"k": key, "v": epoch} for key in ("a", "b", "c"))


def forked(stream: Any, folder: Path, savepoint: Savepoint) -> dict[int, list[tuple[Any, ...]]]:
    """Return what a fork of a savepoint puts out until all input is used up."""
    savepoint.fork(folder / "spark", folder / "state")
    run = Query(stream, folder)
    run.query.processAllAvailable()
    run.query.stop()
    return run.rows


def assert_each_counts_once(before: dict[int, Any], savepoint: Savepoint, after: dict[int, Any]) -> None:
    """Each row of the input was counted, and none twice, by what is behind the savepoint and its fork."""
    assert savepoint.spark is not None
    epoch = savepoint.spark.epoch
    assert sorted(after) == list(range(epoch + 1, epoch + 1 + len(after)))
    rows = [row for number in range(epoch + 1) for row in before[number]]
    rows += [row for number in sorted(after) for row in after[number]]
    values = len({value for _, value, _ in rows})
    for key in ("a", "b", "c"):
        of_key = [(value, count) for found, value, count in rows if found == key]
        assert of_key == [(value, value + 1) for value in range(values)]


def test_a_busy_query_is_stopped_between_two_micro_batches(stream: Any, tmp_path: Path) -> None:
    add(stream, *range(5))
    running = Query(stream, tmp_path / "first")
    while not running.rows:
        assert running.query.isActive
        running.query.awaitTermination(1)
    stopped = Savepoint.stop(running.query, tmp_path / "savepoint")
    assert not running.query.isActive and stopped.failure is None
    assert not stopped.savepoint.drained and stopped.savepoint.watermark is None
    assert stopped.savepoint.operators == ("count",)
    assert stopped.epoch == stopped.savepoint.metadata("count").epoch
    after = forked(stream, tmp_path / "fork", stopped.savepoint)
    assert_each_counts_once(running.rows, stopped.savepoint, after)


def test_a_drained_query_has_used_up_its_input(stream: Any, tmp_path: Path) -> None:
    add(stream, 0, 1)
    running = Query(stream, tmp_path / "first")
    with pytest.raises(TargetExistsError):
        Savepoint.stop(running.query, tmp_path)
    assert running.query.isActive, "what could not be done in any case is refused before it is stopped"
    running.query.processAllAvailable()
    add(stream, 2)
    stopped = Savepoint.stop(running.query, tmp_path / "savepoint", drain=True)
    assert stopped.epoch == 2 and sorted(running.rows) == [0, 1, 2]
    again = Savepoint.open(tmp_path / "savepoint")
    assert again.drained and again.watermark == FINAL_WATERMARK == 2**63 - 1
    with pytest.raises(QueryNotStoppedError, match="has ended"):
        Savepoint.stop(running.query, tmp_path / "second", drain=True)
    assert not (tmp_path / "second").exists()
    assert Savepoint.stop(running.query, tmp_path / "second").epoch == 2


def test_a_query_that_has_failed_leaves_a_savepoint_of_what_is_committed(stream: Any, tmp_path: Path) -> None:
    add(stream, 0, 1)
    running = Query(stream, tmp_path / "first", fails_at=1)
    stopped = Savepoint.stop(running.query, tmp_path / "savepoint", drain=True)
    assert stopped.failure is not None and "the sink" in str(stopped.failure)
    assert stopped.epoch == 0 and not stopped.savepoint.drained
    after = forked(stream, tmp_path / "fork", stopped.savepoint)
    assert_each_counts_once(running.rows, stopped.savepoint, after)


def test_a_query_without_keyed_operators_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.readStream.format("rate").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "spark")).start()
    with pytest.raises(QueryNotStoppedError, match="no keyed operators"):
        Savepoint.stop(query, tmp_path / "savepoint")
    assert query.isActive
    query.stop()


# -- asked by another process ----------------------------------------------------------------------


def ask(folder: Path, savepoint: Path, *words: str) -> subprocess.Popen[str]:
    """Begin ``keyedstate savepoint stop`` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "keyedstate.cli",
        "savepoint",
        "stop",
        str(folder / "state"),
        str(savepoint),
    ]
    return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_another_process_stops_a_query_with_a_savepoint(stream: Any, tmp_path: Path) -> None:
    add(stream, *range(3))
    running = Query(stream, tmp_path / "first")
    running.query.processAllAvailable()
    asked = ask(tmp_path / "first", tmp_path / "savepoint", "--drain", "--timeout", "600", "--format", "json")
    assert running.query.awaitTermination(600)
    out, err = asked.communicate()
    assert asked.returncode == 0, err
    assert not running.query.isActive
    document = json.loads(out)
    assert (document["drained"], document["epoch"], document["operators"]) == (True, 2, ["count"])
    savepoint = Savepoint.open(tmp_path / "savepoint")
    assert savepoint.id == document["id"]
    assert not (tmp_path / "first" / "state" / "count" / "_stop").exists()
    add(stream, 3)
    assert_each_counts_once(running.rows, savepoint, forked(stream, tmp_path / "fork", savepoint))


def test_a_new_query_in_the_folders_of_a_deleted_one_is_stopped(stream: Any, tmp_path: Path) -> None:
    add(stream, 0)
    folder = tmp_path / "again"
    first = Query(stream, folder)
    first.query.processAllAvailable()
    # The driver knows the query of the folder by now.
    assert ask(folder, tmp_path / "taken", "--timeout", "600").wait() == 0
    assert first.query.awaitTermination(600)
    stream.settle()
    shutil.rmtree(folder)
    second = Query(stream, folder)
    second.query.processAllAvailable()
    asked = ask(folder, tmp_path / "savepoint", "--timeout", "600")
    _, err = asked.communicate()
    assert asked.returncode == 0, err
    assert not second.query.isActive


@pytest.mark.long
def test_a_damaged_request_for_one_query_does_not_keep_others_running(stream: Any, tmp_path: Path) -> None:
    add(stream, 0)
    one, other = Query(stream, tmp_path / "one"), Query(stream, tmp_path / "other")
    for query in (one.query, other.query):
        query.processAllAvailable()
    (tmp_path / "one" / "state" / "count" / "_stop").write_bytes(b"damaged")
    asked = ask(tmp_path / "other", tmp_path / "savepoint", "--timeout", "600")
    _, err = asked.communicate()
    assert asked.returncode == 0, err
    assert one.query.isActive
    assert not other.query.isActive
    one.query.stop()
