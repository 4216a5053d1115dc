"""Timers on Spark: over epochs, restarts, repeated epochs, rescaling, savepoints, heartbeats and batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyedstate import keyed, types
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.runtime import (
    Context,
    KeyedBatch,
    KeyedProcessFunction,
    OnTimerContext,
    TimeDomain,
    TimerBatch,
    VectorizedProcessFunction,
)
from keyedstate.savepoints import Savepoint
from keyedstate.spark.plan.heartbeat import has_python_sources
from keyedstate.state import ValueState
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.time import EVENT_TIMERS, PROCESSING_TIMERS, EventTime

SCHEMA = "k string, at long, n long"
SILENCE_MS, DELAY_MS = 100, 20


class Silence(KeyedProcessFunction):
    """Yields a row when no row of a key has come for 100 ms of event time."""

    last = ValueState("last", types.INT64)
    rows = ValueState("rows", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> None:
        self.rows.update(self.rows.value() + 1)
        last = self.last.value()
        if last is None or row.v > last:
            if last is not None:
                ctx.timer_service.delete_event_time_timer(last + SILENCE_MS)
            self.last.update(row.v)
            ctx.timer_service.register_event_time_timer(row.v + SILENCE_MS)

    def on_timer(self, time: int, ctx: OnTimerContext) -> Iterator[tuple[Any, ...]]:
        assert ctx.timestamp == time and ctx.time_domain is TimeDomain.EVENT_TIME
        self.last.clear()
        yield ctx.key, time, self.rows.value()


class SilenceByColumns(VectorizedProcessFunction):
    """Registers a timer for each row, by columns."""

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> None:
        times = np.array(batch.column("v").to_pylist()) + SILENCE_MS
        ctx.timer_service.register_event_time_timers(batch.keys, times, batch.key_groups)

    def on_timers(self, timers: TimerBatch, ctx: Context) -> Iterator[pa.Table]:
        yield pa.table({"k": timers.keys, "at": timers.times, "n": [len(set(timers.keys))] * len(timers)})


def silent(
    stream: Any,
    backend: str,
    parallelism: int = 2,
    function: Any = None,
    config: dict[str, object] | None = None,
) -> DataFrame:
    settings = {"checkpoint.dir": str(stream.state), "parallelism": parallelism, "backend": backend}
    rows = stream.frame().withColumn("ts", f.expr("timestamp_millis(v)"))
    event_time = EventTime("ts", DELAY_MS)
    frame = keyed(rows, "k", uid="silence", config={**settings, **(config or {})}, event_time=event_time)
    return frame.process(function or Silence(), SCHEMA)


EPOCHS = [
    [("a", 1000), ("b", 1010), ("c", 1005)],
    [("a", 1080), ("d", 1200)],
    [("e", 1210), ("b", 1215)],
    [("e", 5000)],
    [("f", 5000), ("b", 100)],
]


def model(epochs: list[list[tuple[str, int]]]) -> list[set[tuple[Any, ...]]]:
    """What each epoch must put out: timers fire before its rows, by the watermark of the epochs before.

    Behind them fires what they have registered for a time that has passed.
    """
    last: dict[str, int] = {}
    rows: dict[str, int] = {}
    watermark, out = BEFORE_TIME, []

    def fired() -> set[tuple[Any, ...]]:
        due = {key for key, time in last.items() if time + SILENCE_MS <= watermark}
        return {(key, last.pop(key) + SILENCE_MS, rows[key]) for key in due}

    for epoch in epochs:
        made = fired()
        for key, time in epoch:
            rows[key] = rows.get(key, 0) + 1
            last[key] = max(last.get(key, time), time)
        out.append(made | fired())
        watermark = max([watermark, *(time - DELAY_MS - 1 for _, time in epoch)])
    return out


def by_epoch(stream: Any) -> list[set[tuple[Any, ...]]]:
    found = [stream.rows[epoch] for epoch in sorted(stream.rows)]
    assert all(len(rows) == len(set(rows)) for rows in found)
    return [set(rows) for rows in found]


def test_timers_fire_by_the_watermark_over_restarts_other_backends_and_rescaling(stream: Any) -> None:
    """TM-06; with a run that is stopped by its sink, whose epoch runs again and fires the same timers."""
    for rows in EPOCHS:
        stream.add({"k": key, "v": time} for key, time in rows)
    taken: list[Any] = []

    def failing(batch: DataFrame, epoch: int) -> None:
        rows = {tuple(row) for row in batch.collect()}
        if epoch == 3:
            taken.append(rows)
            raise RuntimeError("the sink is down")
        stream.rows[epoch] = list(rows)

    assert "the sink is down" in stream.failure(silent(stream, "heap-cow"), failing)
    assert sorted(stream.rows) == [0, 1, 2]
    stream.run(silent(stream, "nested-map", 3, config={"host": "embedded"}))
    expected = model(EPOCHS)
    assert expected[3] == taken[0] != set() and sum(map(len, expected)) == 6
    assert by_epoch(stream) == expected
    folder = OperatorFolder(CheckpointStorage.open(str(stream.state)), "silence")
    metadata = folder.read_metadata(len(EPOCHS) - 1)
    assert metadata is not None
    left = sum(part.entries[EVENT_TIMERS + "user-timers"] for part in metadata.parts)
    assert left == 2, "those of e and f"
    assert metadata.processing_time is not None


@pytest.mark.long
def test_timers_stay_with_a_host_and_move_with_a_savepoint_to_another_backend(
    stream: Any, new_stream: Any, tmp_path: Path
) -> None:
    """TM-01, SPA-05."""
    for rows in EPOCHS[:3]:
        stream.add({"k": key, "v": time} for key, time in rows)
    stream.run(silent(stream, "heap-cow"))
    Savepoint.create(tmp_path / "savepoint", stream.state, stream.spark_checkpoint)
    if has_python_sources():
        reader = stream.spark.read.format("keyedstate").option("state", EVENT_TIMERS + "user-timers")
        shown = reader.load(str(tmp_path / "savepoint"))
        timers = {(row.k, row.namespace) for row in shown.collect()}
        assert timers >= {("d", 1300), ("e", 1310), ("b", 1315)} and ("c", 1105) not in timers
    (tmp_path / "other").mkdir()
    other = new_stream(tmp_path / "other")
    for rows in EPOCHS[3:]:
        other.add({"k": key, "v": time} for key, time in rows)
    restore = {"restore.savepoint": str(tmp_path / "savepoint")}
    other.run(silent(other, "sqlite", 3, config=restore))
    assert by_epoch(stream) + by_epoch(other) == model(EPOCHS)


def test_a_vectorised_function_has_timers(stream: Any, one_backend: str) -> None:
    for rows in EPOCHS:
        stream.add({"k": key, "v": time} for key, time in rows)
    stream.run(silent(stream, one_backend, function=SilenceByColumns()))
    fired = [(row[0], row[1]) for row in stream.all_rows()]
    due = [(key, time + SILENCE_MS) for rows in EPOCHS for key, time in rows]
    assert sorted(fired) == sorted(timer for timer in due if timer[1] <= 5000 - DELAY_MS - 1)


class Reminder(KeyedProcessFunction):
    """Yields a row a millisecond of processing time after each row of its key."""

    def process(self, row: Any, ctx: Context) -> None:
        ctx.timer_service.register_processing_time_timer(ctx.timer_service.current_processing_time + 1)

    def on_timer(self, time: int, ctx: OnTimerContext) -> Iterator[tuple[Any, ...]]:
        now = ctx.timer_service.current_processing_time
        assert ctx.time_domain is TimeDomain.PROCESSING_TIME and ctx.timestamp == time <= now
        yield ctx.key, time, now


@pytest.mark.long
def test_processing_time_timers_fire_by_a_heartbeat_without_input(stream: Any, one_backend: str) -> None:
    """TM-07."""
    stream.add([{"k": "a", "v": 1}, {"k": "b", "v": 1}])
    reminded = threading.Event()

    def sink(batch: DataFrame, epoch: int) -> None:
        stream.rows[epoch] = [tuple(row) for row in batch.collect()]
        if len(stream.all_rows()) == 2:
            reminded.set()

    config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": one_backend}
    frame = keyed(stream.frame(), "k", uid="reminder", config=config, heartbeat="200 ms")
    out = frame.process(Reminder(), SCHEMA)
    query = (
        out.writeStream.foreachBatch(sink).option("checkpointLocation", str(stream.spark_checkpoint)).start()
    )
    try:
        assert reminded.wait(600), query.exception()
    finally:
        query.stop()
        stream.settle()
    assert sorted(row[0] for row in stream.all_rows()) == ["a", "b"]
    first = min(stream.rows)
    assert stream.rows[first] == [], "not in the epoch of the rows, whose time does not advance"
    assert all(now > time - 1 for _, time, now in stream.all_rows())


class Both(Silence):
    """Has timers of both domains, and registers more while they fire."""

    def process(self, row: Any, ctx: Context) -> None:
        ctx.timer_service.register_event_time_timer(row.v)
        ctx.timer_service.register_processing_time_timer(2**61 + row.v)

    def on_timer(self, time: int, ctx: OnTimerContext) -> Iterator[tuple[Any, ...]]:
        ctx.timer_service.register_event_time_timer(time + 1)
        yield ctx.key, time, int(ctx.time_domain is TimeDomain.EVENT_TIME)


def test_a_batch_fires_all_timers_at_its_end(spark: SparkSession, one_backend: str) -> None:
    rows = spark.createDataFrame([("a", 5), ("b", 9), ("a", 5)], "k string, v long")
    rows = rows.withColumn("ts", f.expr("timestamp_millis(v)"))
    frame = keyed(rows, "k", config={"backend": one_backend}, event_time=EventTime("ts", "1 hour"))
    out = frame.process(Both(), SCHEMA).collect()
    assert sorted(map(tuple, out)) == [("a", 5, 1), ("a", 2**61 + 5, 0), ("b", 9, 1), ("b", 2**61 + 9, 0)]


def test_timers_of_a_bootstrapped_state_fire_in_the_query_that_starts_from_it(
    stream: Any, spark: SparkSession, one_backend: str, tmp_path: Path
) -> None:
    stream.add([{"k": "x", "v": 1201}])
    stream.add([{"k": "x", "v": 1300}])
    rows = spark.createDataFrame(EPOCHS[0] + EPOCHS[1], "k string, v long")
    rows = rows.withColumn("ts", f.expr("timestamp_millis(v)"))
    config: dict[str, object] = {"backend": one_backend, "parallelism": 2}
    frame = keyed(rows, "k", uid="silence", config=config, event_time=EventTime("ts", DELAY_MS))
    Savepoint.new().add(frame, Silence()).write(tmp_path / "savepoint")
    restore = {"restore.savepoint": str(tmp_path / "savepoint")}
    stream.run(silent(stream, one_backend, 3, config=restore))
    # The savepoint knows of 1200: in the first epoch the watermark is 1179.
    assert by_epoch(stream) == [{("b", 1110, 1), ("c", 1105, 1)}, {("a", 1180, 2)}]


def test_an_error_of_a_timer_names_its_key_and_time(stream: Any, one_backend: str) -> None:
    """TM-15."""

    class Failing(Silence):
        def on_timer(self, time: int, ctx: OnTimerContext) -> Iterator[tuple[Any, ...]]:
            raise ValueError("no alert today")

    for rows in EPOCHS[:3]:
        stream.add({"k": key, "v": time} for key, time in rows)
    message = stream.failure(silent(stream, one_backend, function=Failing()))
    assert "no alert today" in message and "timer at 11" in message and "Failing.on_timer()" in message
    # Nothing of the epoch is kept: with a function that works it continues.
    stream.run(silent(stream, one_backend))
    assert by_epoch(stream)[2] == model(EPOCHS[:3])[2]


@pytest.mark.long
def test_an_input_that_is_behind_holds_the_watermark_up_over_restarts(stream: Any, one_backend: str) -> None:
    """WM-03: the watermark is the least of the inputs', which the checkpoints know."""

    class Mark(KeyedProcessFunction):
        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            yield ctx.key, ctx.timestamp, ctx.watermark

    def run() -> None:
        config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": one_backend}
        rows = stream.frame().withColumn("ts", f.expr("timestamp_millis(v)"))
        event_time = EventTime("ts", delay=0, inputs="k", idle="1 day")
        frame = keyed(rows, "k", uid="mark", config=config, event_time=event_time)
        stream.run(frame.process(Mark(), SCHEMA))

    stream.add([{"k": "a", "v": 1000}, {"k": "b", "v": 500}])
    stream.add([{"k": "a", "v": 2000}])
    run()
    folder = OperatorFolder(CheckpointStorage.open(str(stream.state)), "mark")
    stood = folder.read_metadata(1)
    assert stood is not None and stood.processing_time is not None
    assert stood.inputs["b"][0] == 500 and stood.inputs["b"][1] < stood.processing_time, "it waits"
    stream.add([{"k": "a", "v": 2001}])
    run()
    restarted = folder.read_metadata(2)
    assert restarted is not None
    assert restarted.inputs["b"] == (500, restarted.processing_time), "while it was stopped, none was idle"
    stream.add([{"k": "b", "v": 1500}])
    stream.add([{"k": "a", "v": 2002}])
    run()
    marks = [row[2] for row in stream.all_rows()]
    assert marks == [BEFORE_TIME, BEFORE_TIME, 499, 499, 499, 1499]


class OnlyOnce(Both):
    def on_timer(self, time: int, ctx: OnTimerContext) -> Iterator[tuple[Any, ...]]:
        yield ctx.key, time, int(ctx.time_domain is TimeDomain.EVENT_TIME)


@pytest.mark.skipif(not has_python_sources(), reason="the heartbeat is Spark's own source")
@pytest.mark.long
def test_a_drained_query_with_a_heartbeat_fires_all_event_time_timers(
    stream: Any, one_backend: str, tmp_path: Path
) -> None:
    config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": one_backend}
    rows = stream.frame().withColumn("ts", f.expr("timestamp_millis(v)"))
    event_time = EventTime("ts", "1 hour")
    frame = keyed(rows, "k", uid="silence", config=config, heartbeat="200 ms", event_time=event_time)
    out = frame.process(OnlyOnce(), SCHEMA)

    begun = threading.Event()

    def sink(batch: DataFrame, epoch: int) -> None:
        stream.rows[epoch] = [tuple(row) for row in batch.collect()]
        begun.set()

    stream.add([{"k": "a", "v": 5}, {"k": "b", "v": 2**40}])
    query = (
        out.writeStream.foreachBatch(sink).option("checkpointLocation", str(stream.spark_checkpoint)).start()
    )
    try:
        assert begun.wait(600), query.exception()
        stopped = Savepoint.stop(query, tmp_path / "savepoint", drain=True)
    finally:
        query.stop()
        stream.settle()
    assert stopped.failure is None and stopped.savepoint.drained
    assert sorted(stream.all_rows()) == [("a", 5, 1), ("b", 2**40, 1)]
    metadata = OperatorFolder(CheckpointStorage.open(str(stream.state)), "silence").read_metadata(
        stopped.epoch
    )
    assert metadata is not None and metadata.watermark == 2**40 - 3_600_001, "that of the rows"
    left = {name: sum(part.entries[name] for part in metadata.parts) for name in metadata.parts[0].entries}
    assert left[EVENT_TIMERS + "user-timers"] == 0
    assert left[PROCESSING_TIMERS + "user-timers"] == 2, "those that are not due stay"
