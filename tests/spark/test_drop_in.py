"""Spark's ``transformWithState`` on keyedstate, without Spark's own beside it."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "pyspark.sql.streaming.stateful_processor", reason="transformWithState came with Spark 4.0"
)

from hosted import wait_until
from pyspark.errors import IllegalArgumentException, PySparkRuntimeError
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyedstate.checkpoint.format.manifest import StateOrigin
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import KeyColumnError
from keyedstate.spark import drop_in

OUT = "k string, n long"


class Counts(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        (n,) = self.count.get() or (0,)
        n += sum(1 for _ in rows)
        self.count.update((n,))
        yield Row(k=key[0], n=n)


class Doubled(Counts):
    """Another processor with the same state."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(k=row.k, n=2 * row.n)


def counts(frame: DataFrame, processor: StatefulProcessor | None = None, **named: Any) -> DataFrame:
    time_mode = named.pop("time_mode", "None")
    return drop_in.transform_with_state(
        frame.groupBy("k"), processor or Counts(), OUT, "Update", time_mode, **named
    )


def rows(*keys: str) -> list[dict[str, Any]]:
    return [{"k": key, "v": 1} for key in keys]


def test_state_belongs_to_the_checkpoint_location(stream: Any, tmp_path: Path) -> None:
    stream.add(rows("a", "a", "b"))
    stream.run(counts(stream.frame()))
    other = tmp_path / "other"
    stream.run(counts(stream.frame()), checkpoint=other)
    assert stream.rows == {0: [("a", 2), ("b", 1)]}
    stream.add(rows("a"))
    stream.run(counts(stream.frame(), Doubled()))
    assert stream.rows[1] == [("a", 6)]
    for location in (stream.spark_checkpoint, other):
        assert (location / "keyedstate" / "transform-with-state-0").is_dir()


def test_state_is_stored_by_query_in_a_configured_folder(
    stream: Any, spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.keyedstate.checkpoint.dir", str(tmp_path / "state"))
    try:
        for location in ("one", "two", "one"):
            stream.add(rows("a"))
            stream.run(counts(stream.frame()), checkpoint=tmp_path / location)
    finally:
        spark.conf.unset("spark.keyedstate.checkpoint.dir")
    assert stream.all_rows()[-1] == ("a", 3)
    assert len(list((tmp_path / "state").iterdir())) == 2
    assert not (tmp_path / "one" / "keyedstate").exists()


def test_a_batch_that_is_evaluated_twice_counts_once(stream: Any) -> None:
    seen: list[list[Any]] = []

    def twice(batch: DataFrame, epoch: int) -> None:
        seen.append([sorted(map(tuple, batch.collect())) for _ in range(2)])

    for _ in range(2):
        stream.add(rows("a", "b", "a"))
    stream.run(counts(stream.frame()), twice)
    assert seen == [[[("a", 2), ("b", 1)]] * 2, [[("a", 4), ("b", 2)]] * 2]


def test_operators_of_a_query_have_states_of_their_own(stream: Any) -> None:
    stream.add(rows("a", "a", "b"))
    stream.add(rows("a"))
    stream.run(counts(counts(stream.frame())))
    assert [sorted(stream.rows[epoch]) for epoch in (0, 1)] == [[("a", 1), ("b", 1)], [("a", 2)]]


class Leaving(Counts):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        yield from super().handleInputRows(key, rows, timerValues)
        if key == ("exit",):
            raise SystemExit(3)


@pytest.mark.long
def test_sys_exit_ends_the_query_and_the_restart_is_exact(stream: Any) -> None:
    stream.add(rows("a"))
    stream.run(counts(stream.frame(), Leaving()))
    stream.add(rows("a", "exit"))
    assert "SystemExit: 3" in stream.failure(counts(stream.frame(), Leaving()))
    stream.run(counts(stream.frame()))
    assert sorted(stream.rows[1]) == [("a", 2), ("exit", 1)]


def test_the_switch_decides_what_sparks_method_runs_on(stream: Any, spark: SparkSession) -> None:
    stream.add(rows("a"))

    def runs_on_keyedstate() -> bool:
        made = stream.frame().groupBy("k").transformWithStateInPandas(Counts(), OUT, "update", "none")
        return "MapInArrow" in made._jdf.queryExecution().analyzed().toString()

    assert not runs_on_keyedstate()
    with drop_in.enable():
        assert runs_on_keyedstate()
        with drop_in.disable():
            assert not runs_on_keyedstate()
        assert runs_on_keyedstate()
    assert not runs_on_keyedstate()
    spark.conf.set("spark.keyedstate.drop-in", "true")
    try:
        assert runs_on_keyedstate()
        with drop_in.disable():
            assert not runs_on_keyedstate()
    finally:
        spark.conf.unset("spark.keyedstate.drop-in")
    assert not runs_on_keyedstate()


class Alarm(Counts):
    """Rings once, a moment after the first row of a key."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield from super().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        assert expiredTimerInfo.getExpiryTimeInMs() <= timerValues.getCurrentProcessingTimeInMs()
        yield Row(k=key[0], n=-1)


@pytest.mark.long
def test_timers_of_processing_time_fire_without_rows(stream: Any, tmp_path: Path) -> None:
    stream.add(rows("a"))
    fired = threading.Event()
    seen: list[Any] = []

    def sink(batch: DataFrame, epoch: int) -> None:
        seen.extend(map(tuple, batch.collect()))
        if ("a", -1) in seen:
            fired.set()

    out = counts(stream.frame(), Alarm(), time_mode="ProcessingTime")
    query = (
        out.writeStream.foreachBatch(sink).option("checkpointLocation", str(stream.spark_checkpoint)).start()
    )
    try:
        wait_until(fired.is_set)
    finally:
        query.stop()
        stream.settle()
    assert seen == [("a", 1), ("a", -1)]


class Clock(Counts):
    """Shows the time, and how long a value has been stored that lives for a millisecond."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long", 1)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        self.seen.update((now,))
        while dt.datetime.now().timestamp() * 1000 < now + 2:
            pass
        yield Row(k=f"{key[0]} {self.seen.get()}", n=now)


@pytest.mark.long
def test_processing_time_is_that_of_the_micro_batch(stream: Any) -> None:
    stream.add(rows("a", "b", "c"))
    seen: list[set[Any]] = []

    def twice(batch: DataFrame, epoch: int) -> None:
        seen.extend({(row.k[2:], row.n) for row in batch.collect()} for _ in range(2))
        if len(seen) == 2:
            raise OSError("the sink fails once")

    assert "fails once" in stream.failure(counts(stream.frame(), Clock(), time_mode="processingTime"), twice)
    stream.run(counts(stream.frame(), Clock(), time_mode="processingTime"), twice, once=True)
    [_, document, *_] = (stream.spark_checkpoint / "offsets" / "0").read_text().splitlines()
    time = json.loads(document)["batchTimestampMs"]
    assert seen == [{(f"({time},)", time)}] * 4


class Expiring(Counts):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(5_000)
        yield from super().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], n=-expiredTimerInfo.getExpiryTimeInMs())


@pytest.mark.long
def test_a_restart_without_rows_fires_the_timers_of_the_last_rows(
    new_stream: Callable[..., Any], tmp_path: Path
) -> None:
    stream = new_stream(tmp_path, "k string, ts timestamp")
    stream.add([{"k": "a", "ts": "1970-01-01T00:01:00Z"}])

    def out() -> DataFrame:
        return counts(stream.frame().withWatermark("ts", "1 second"), Expiring(), time_mode="eventTime")

    # One micro-batch: it moves the watermark, and none follows it.
    stream.run(out(), once=True)
    assert stream.rows == {0: [("a", 1)]}
    stream.run(out())
    assert stream.all_rows() == [("a", 1), ("a", -5_000)]


@pytest.mark.long
def test_the_output_can_be_aggregated_in_event_time(new_stream: Callable[..., Any], tmp_path: Path) -> None:
    stream = new_stream(tmp_path, "k string, ts timestamp")

    class Passed(StatefulProcessor):
        def init(self, handle: Any) -> None: ...

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
            for row in rows:
                yield Row(k=key[0], at=row.ts)

    for seconds in (1, 2, 70, 140):
        stream.add([{"k": "a", "ts": f"2024-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z"}])
    passed = drop_in.transform_with_state(
        stream.frame().withWatermark("ts", "1 second").groupBy("k"),
        Passed(),
        "k string, at timestamp",
        "append",
        "eventTime",
        eventTimeColumnName="at",
    )
    minutes = passed.groupBy(f.window("at", "1 minute")).count().select("window.start", "count")
    collected: list[Any] = []

    def sink(batch: DataFrame, epoch: int) -> None:
        collected.extend((row[0].minute, row[1]) for row in batch.collect())

    query = (
        minutes.writeStream.outputMode("append")
        .foreachBatch(sink)
        .option("checkpointLocation", str(stream.spark_checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    stream.settle()
    assert collected == [(0, 2), (1, 1)]


def test_a_batch_frame_is_processed_once(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), ("b", 2), ("a", 3)], "k string, v long")
    assert sorted(map(tuple, counts(frame).collect())) == [("a", 2), ("b", 1)]


class WithTtl(Counts):
    def init(self, handle: Any) -> None:
        handle.getValueState("count", "n long", 1_000)


class Twice(Counts):
    def init(self, handle: Any) -> None:
        handle.getValueState("count", "n long")
        handle.getListState("count", "n long")


class TimerInInit(Counts):
    def init(self, handle: Any) -> None:
        handle.registerTimer(1)


class NotAStruct(Counts):
    def init(self, handle: Any) -> None:
        handle.getValueState("count", "long")


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (WithTtl(), "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL"),
        (Twice(), "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED"),
        (TimerInInit(), "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE"),
        (NotAStruct(), "'value long'"),
    ],
)
def test_what_init_may_not_do_is_refused_at_once(
    stream: Any, processor: StatefulProcessor, message: str
) -> None:
    with pytest.raises(PySparkRuntimeError, match=message):
        counts(stream.frame(), processor)


class Late(Counts):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        self.handle.getValueState("late", "n long")
        return iter(())


class EmptyList(Counts):
    def init(self, handle: Any) -> None:
        self.list = handle.getListState("list", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        self.list.put([])
        return iter(())


class TooLong(Counts):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        self.count.update((1, 2))
        return iter(())


class TimerWithoutTime(Counts):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(1)
        return iter(())


class ReturnsNone(Counts):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (Late(), "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE"),
        (EmptyList(), "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE"),
        (TooLong(), "STRUCT_ARRAY_LENGTH_MISMATCH"),
        (TimerWithoutTime(), "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE"),
        (ReturnsNone(), "TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_what_a_processor_may_not_do_stops_the_query(
    stream: Any, processor: StatefulProcessor, message: str
) -> None:
    stream.add(rows("a"))
    assert message in stream.failure(counts(stream.frame(), processor))


def test_wrong_arguments_are_refused(stream: Any) -> None:
    frame = stream.frame()
    with pytest.raises(IllegalArgumentException, match="STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE"):
        counts(frame, time_mode="sometimes")
    with pytest.raises(IllegalArgumentException, match="output mode"):
        drop_in.transform_with_state(frame.groupBy("k"), Counts(), OUT, "sometimes", "none")
    with pytest.raises(KeyColumnError):
        drop_in.transform_with_state(frame.groupBy(f.upper("k").alias("v")), Counts(), OUT, "update", "none")


class Seen(StatefulProcessor):
    """Shows the key, and the columns of its rows."""

    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=f"{key} {row.__fields__}", n=row.n)


@pytest.mark.long
def test_rows_do_not_have_keys_that_are_expressions(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), ("b", 2), ("A", 3)], "k string, n long")
    grouped = frame.groupBy(f.upper("k").alias("up"), f.col("n") % 2)
    made = drop_in.transform_with_state(grouped, Seen(), OUT, "update", "none").collect()
    keys = {1: "('A', 1)", 2: "('B', 0)", 3: "('A', 1)"}
    assert sorted(map(tuple, made), key=lambda row: row[1]) == [
        (f"{key} ['k', 'n']", n) for n, key in keys.items()
    ]


class Forgetting(Counts):
    def init(self, handle: Any) -> None:
        handle.deleteIfExists("count")
        handle.deleteIfExists("never")
        super().init(handle)


@pytest.mark.long
def test_a_state_that_is_deleted_in_init_is_empty(stream: Any) -> None:
    stream.add(rows("a", "a"))
    stream.run(counts(stream.frame()))
    stream.add(rows("a"))
    stream.run(counts(stream.frame(), Forgetting()))
    assert stream.rows[1] == [("a", 1)]


class Named(Counts):
    """The state of `Counts` with a wider number, another order and one more field."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "name string, n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        name, n = self.count.get()
        assert name is None
        yield Row(k=key[0], n=n + 100)


class Small(Counts):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n int, gone string")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        self.count.update((7, "gone"))
        yield Row(k=key[0], n=7)


def test_fields_of_a_state_are_added_removed_reordered_and_widened(stream: Any) -> None:
    stream.add(rows("a"))
    stream.run(counts(stream.frame(), Small()))
    stream.add(rows("a"))
    stream.run(counts(stream.frame(), Named()))
    assert stream.all_rows() == [("a", 7), ("a", 107)]
    stream.add(rows("a"))
    failure = stream.failure(counts(stream.frame(), Small()))
    assert "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION" in failure and "cannot be read as" in failure


@pytest.mark.long
def test_the_number_of_tasks_may_change_with_a_restart(stream: Any, spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions") or ""
    try:
        for partitions, key in (("2", "a"), ("5", "b"), ("3", "a")):
            spark.conf.set("spark.sql.shuffle.partitions", partitions)
            stream.add(rows(key, "c"))
            stream.run(counts(stream.frame()))
        spark.conf.set("spark.sql.shuffle.partitions", "100")
        stream.add(rows("a"))
        assert "max-parallelism" in stream.failure(counts(stream.frame()))
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert sorted(stream.rows[2]) == [("a", 2), ("c", 3)]


def test_hosts_keep_the_state_between_epochs(stream: Any) -> None:
    for _ in range(2):
        stream.add(rows("a", "b"))
    stream.run(counts(stream.frame()))
    storage = CheckpointStorage.open(str(stream.spark_checkpoint / "keyedstate"))
    folder = OperatorFolder(storage, "transform-with-state-0")
    metadata = folder.read_metadata(1)
    assert metadata is not None
    assert {part.state_origin for part in metadata.parts} == {StateOrigin.HOST}


def test_operators_in_two_branches_of_a_query_have_states_of_their_own(stream: Any) -> None:
    for found in ([("a", 1), ("a", 2), ("b", 1), ("b", 2)], [("a", 2), ("a", 4)]):
        stream.add(rows(*dict(found)))
        stream.run(counts(stream.frame()).union(counts(stream.frame(), Doubled())))
        assert sorted(stream.all_rows()[-len(found) :]) == found
    folders = (stream.spark_checkpoint / "keyedstate").iterdir()
    assert {"transform-with-state-0", "transform-with-state-1"} <= {folder.name for folder in folders}
