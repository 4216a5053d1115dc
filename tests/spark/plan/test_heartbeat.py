"""Heartbeats: micro-batches that come without input, on streams that are restarted."""

from __future__ import annotations

import datetime as dt
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from keyedstate import keyed, types
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import HeartbeatError
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.spark.plan.heartbeat import heartbeat_ms, with_heartbeat
from keyedstate.state import ValueState

#: Whether the heartbeat is a source of our own and not Spark's `rate`: since Spark 4.
HAS_PYTHON_SOURCES = importlib.util.find_spec("pyspark.sql.datasource") is not None
#: Whether `trigger(availableNow=True)` with such a source is one micro-batch: on Spark 4.0 and 4.1.
ONE_BATCH = HAS_PYTHON_SOURCES and importlib.util.find_spec("pyspark.sql.streaming.datasource") is None


class Count(KeyedProcessFunction):
    """Numbers the rows of each key."""

    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


def counted(stream: Any, backend: str, **heartbeat: Any) -> DataFrame:
    config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": backend}
    return keyed(stream.frame(), "k", uid="count", config=config, **heartbeat).process(
        Count(), "k string, n long"
    )


def test_epochs_come_on_the_interval_without_input_and_state_is_kept(stream: Any, one_backend: str) -> None:
    third_idle, counted_again = threading.Event(), threading.Event()

    def sink(batch: DataFrame, epoch: int) -> None:
        stream.rows[epoch] = [tuple(row) for row in batch.collect()]
        idle = [number for number, rows in stream.rows.items() if not rows]
        if len(idle) >= 3:
            third_idle.set()
        if ("a", 2) in stream.all_rows():
            counted_again.set()

    stream.add([{"k": "a", "v": 1}])
    out = counted(stream, one_backend, heartbeat="300 ms")
    query = (
        out.writeStream.foreachBatch(sink).option("checkpointLocation", str(stream.spark_checkpoint)).start()
    )
    try:
        assert third_idle.wait(600), query.exception()
        stream.add([{"k": "a", "v": 1}])
        assert counted_again.wait(600), query.exception()
    finally:
        query.stop()
        stream.settle()
    assert stream.all_rows() == [("a", 1), ("a", 2)]
    # Every epoch, the empty ones too, has its checkpoint, made by all tasks.
    last = max(stream.rows)
    metadata = OperatorFolder(CheckpointStorage.open(str(stream.state)), "count").read_metadata(last)
    assert metadata is not None and sum(part.entries["n"] for part in metadata.parts) == 1

    # A query with a heartbeat keeps it: 0 may stop it, and without it Spark refuses to continue.
    stream.add([{"k": "a", "v": 1}, {"k": "b", "v": 1}])
    for _ in range(2 if ONE_BATCH else 1):  # the one may be that of the last beat
        stream.run(counted(stream, one_backend, heartbeat=0 if HAS_PYTHON_SOURCES else "1 day"))
    assert sorted(stream.all_rows()) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    said = stream.failure(counted(stream, one_backend))
    assert "[2] sources in the checkpoint offsets and now there are [1] sources" in said


@pytest.mark.skipif(ONE_BATCH, reason="this Spark makes one micro-batch of all input")
def test_a_query_that_ends_with_its_input_gets_no_beats(stream: Any, one_backend: str) -> None:
    for _ in range(2):
        stream.add([{"k": "a", "v": 1}])
    stream.run(counted(stream, one_backend, heartbeat=dt.timedelta(milliseconds=1)))
    assert stream.rows == {0: [("a", 1)], 1: [("a", 2)]}


@pytest.mark.parametrize(
    ("heartbeat", "said"),
    [("soon", "no duration"), (1.5, "no duration"), (True, "no duration"), (-1, "negative")],
)
def test_an_interval_that_is_none_is_refused_when_the_frame_is_keyed(
    spark: SparkSession, heartbeat: Any, said: str
) -> None:
    with pytest.raises(HeartbeatError, match=rf"the heartbeat {heartbeat!r} .*{said}.*such as '5 seconds'"):
        keyed(spark.range(1), "id", uid="u", heartbeat=heartbeat)


@pytest.mark.skipif(HAS_PYTHON_SOURCES, reason="there it can")
def test_a_heartbeat_that_cannot_be_stopped_says_so(spark: SparkSession) -> None:
    with pytest.raises(HeartbeatError, match="only on Spark 4 can a heartbeat be stopped"):
        keyed(spark.range(1), "id", uid="u", heartbeat="0 s")


def test_a_batch_has_no_use_for_a_heartbeat(spark: SparkSession, one_backend: str) -> None:
    rows = spark.createDataFrame([("a",), ("a",)], "k string")
    frame = keyed(rows, "k", config={"parallelism": 1, "backend": one_backend}, heartbeat="5 seconds")
    assert [tuple(row) for row in frame.process(Count(), "k string, n long").collect()] == [
        ("a", 1),
        ("a", 2),
    ]


def test_rows_of_any_columns_keep_them_with_a_heartbeat(spark: SparkSession, tmp_path: Path) -> None:
    schema = "`a.b` struct<c:array<map<string,decimal(9,2)>>>, d binary, e timestamp_ntz, f date, g void"
    rows = spark.readStream.schema(schema).json(str(tmp_path))
    beside = with_heartbeat(rows, heartbeat_ms("1 day"))
    assert beside.dtypes == rows.dtypes
