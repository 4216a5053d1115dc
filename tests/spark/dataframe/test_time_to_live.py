"""States with a time to live on Spark: the watermark over epochs and restarts, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyedstate import keyed, types
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import EventTimeError, InvalidDurationError, MissingEventTimeError
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import Ttl, TtlClock, ValueState
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.time import EventTime

SCHEMA = "k string, before long, time long, watermark long"
TTL_MS, DELAY_MS = 100, 20


class LastSeen(KeyedProcessFunction):
    """Yields the time at which the key was seen last, as long as the state knows it."""

    seen = ValueState("seen", types.INT64, ttl=Ttl(TTL_MS, clock=TtlClock.EVENT_TIME, expiry_index=True))

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        before = self.seen.value()
        self.seen.update(row.v)
        yield ctx.key, before, ctx.timestamp, ctx.watermark


class LastSeenLately(KeyedProcessFunction):
    """The same in processing time, with a time to live that no epoch is shorter than."""

    seen = ValueState("seen", types.INT64, ttl=Ttl(1))

    process = LastSeen.process


def last_seen(
    stream: Any,
    backend: str,
    parallelism: int = 2,
    function: KeyedProcessFunction | None = None,
    event_time: EventTime | None = None,
) -> DataFrame:
    config = {"checkpoint.dir": str(stream.state), "parallelism": parallelism, "backend": backend}
    rows = stream.frame().withColumn("ts", f.expr("timestamp_millis(v)"))
    frame = keyed(rows, "k", uid="seen", config=config, event_time=event_time)
    return frame.process(function or LastSeen(), SCHEMA)


EPOCHS = [
    [("a", 1000), ("b", 1010), ("c", 1005)],
    [("a", 1080), ("d", 1200), ("b", 1190)],
    [("c", 1210), ("b", 1215), ("a", 1100)],
    [("b", 1230), ("a", 1205)],
    [("e", 5000)],
    [("b", 5000), ("a", 100)],
    [("f", 5010)],
]


def model(epochs: list[list[tuple[str, int]]]) -> list[set[tuple[Any, ...]]]:
    """What each epoch must put out; no key comes twice in one."""
    seen: dict[str, tuple[int, int]] = {}
    watermark, largest, out = BEFORE_TIME, None, []
    for epoch in epochs:
        if largest is not None:
            watermark = max(watermark, largest - DELAY_MS - 1)
        rows = set()
        for key, time in epoch:
            stamp, before = seen.get(key, (BEFORE_TIME, None))
            rows.add((key, before if stamp + TTL_MS > watermark else None, time, watermark))
            seen[key] = max(time, watermark), time
        largest = max([time for _, time in epoch] + ([] if largest is None else [largest]))
        out.append(rows)
    return out


def test_states_expire_by_the_watermark_of_the_epochs_before_also_over_restarts(stream: Any) -> None:
    """TTL-03: with another backend and parallelism in each run."""
    runs = [(2, "heap-cow", 2), (2, "nested-map", 3), (3, "heap-cow", 1)]
    first = 0
    for epochs, backend, parallelism in runs:
        for rows in EPOCHS[first : first + epochs]:
            stream.add({"k": key, "v": time} for key, time in rows)
        first += epochs
        stream.run(last_seen(stream, backend, parallelism, event_time=EventTime("ts", f"{DELAY_MS} ms")))
    assert [set(stream.rows[epoch]) for epoch in range(len(EPOCHS))] == model(EPOCHS)
    metadata = OperatorFolder(CheckpointStorage.open(str(stream.state)), "seen").read_metadata(6)
    assert metadata is not None
    assert {part.watermark for part in metadata.parts} == {4979}
    assert max(part.largest_event_time or 0 for part in metadata.parts) == 5010
    assert sum(part.entries["seen"] for part in metadata.parts) == 4, "c and d went without an access"


def test_a_larger_delay_after_a_restart_takes_no_event_time_back(stream: Any, one_backend: str) -> None:
    stream.add([{"k": "a", "v": 1000}])
    stream.add([{"k": "a", "v": 1000}])
    stream.run(last_seen(stream, one_backend, event_time=EventTime("ts", 0)))
    stream.add([{"k": "a", "v": 1001}])
    stream.run(last_seen(stream, one_backend, event_time=EventTime("ts", "1 hour")))
    assert [row[3] for row in stream.all_rows()] == [BEFORE_TIME, 999, 999]


def test_a_run_without_event_time_takes_none_back(stream: Any, one_backend: str) -> None:
    class Timeless(KeyedProcessFunction):
        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            yield ctx.key, None, ctx.timestamp, ctx.watermark

    for settings in (
        {"event_time": EventTime("ts", 0)},
        {"function": Timeless()},
        {"event_time": EventTime("ts", "1 hour")},
    ):
        for _ in range(2):
            stream.add([{"k": "a", "v": 1000}])
        stream.run(last_seen(stream, one_backend, **settings))
    assert stream.all_rows() == [
        ("a", None, 1000, BEFORE_TIME),
        ("a", 1000, 1000, 999),
        ("a", None, None, BEFORE_TIME),
        ("a", None, None, BEFORE_TIME),
        ("a", 1000, 1000, 999),
        ("a", 1000, 1000, 999),
    ]


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/St_Johns"])
def test_event_times_are_the_same_whatever_the_time_zone_of_the_session(
    stream: Any, spark: SparkSession, one_backend: str, zone: str
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        stream.add([{"k": "a", "v": 1_730_610_000_123}, {"k": "b", "v": -1}])
        stream.run(last_seen(stream, one_backend, event_time=EventTime("ts", 0)))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert sorted(stream.all_rows()) == [
        ("a", None, 1_730_610_000_123, BEFORE_TIME),
        ("b", None, -1, BEFORE_TIME),
    ]


def test_an_epoch_without_event_times_keeps_the_watermark(stream: Any, one_backend: str) -> None:
    for rows in ([("a", 1000)], [("a", None)], [("b", None)], [("a", 1200)]):
        stream.add({"k": key, "v": time} for key, time in rows)
    stream.run(last_seen(stream, one_backend, event_time=EventTime("ts", 0)))
    assert stream.all_rows() == [
        ("a", None, 1000, BEFORE_TIME),
        ("a", 1000, None, 999),
        ("b", None, None, 999),
        ("a", None, 1200, 999),
    ]


def test_processing_time_advances_between_epochs(stream: Any, one_backend: str) -> None:
    for _ in range(3):
        stream.add([{"k": "a", "v": 1}])
    stream.run(last_seen(stream, one_backend, function=LastSeenLately()))
    assert stream.all_rows() == [("a", None, None, BEFORE_TIME)] * 3


def test_the_watermark_of_a_stream_is_its_event_time(stream: Any, one_backend: str) -> None:
    config = {"checkpoint.dir": str(stream.state), "backend": one_backend}
    for number in (1000, 5000):
        stream.add([{"k": "a", "v": number}])
    rows = stream.frame().withColumn("ts", f.expr("timestamp_millis(v)")).withWatermark("ts", "1 second")
    rows = rows.select("k", f.col("ts").alias("at"), "v")
    stream.run(keyed(rows, "k", uid="seen", config=config).process(LastSeen(), SCHEMA))
    assert [row[2:] for row in stream.all_rows()] == [(1000, BEFORE_TIME), (5000, -1)]


def test_a_given_event_time_is_taken_before_that_of_a_watermark(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load()
    left, right = (rate.selectExpr("value k", f"timestamp {name}", "value v") for name in ("one", "two"))
    watermarked = (left.withWatermark("one", "1 hour"), right.drop("v").withWatermark("two", "1 hour"))
    both = watermarked[0].join(watermarked[1], "k")
    with pytest.raises(EventTimeError, match=r"'one', 'two' have watermarks; name one, as in event_time="):
        keyed(both, "k")
    assert keyed(both, "k", event_time=EventTime("two", 0))._rows.event_times == (EventTime("two", 0),)
    assert keyed(left, "k")._rows.event_times == ()


def test_a_batch_knows_the_event_times_of_its_rows(spark: SparkSession, one_backend: str) -> None:
    rows = spark.sql("SELECT 'a' AS k, 5L AS v, DATE'1970-01-02' AS day")
    event_time = EventTime("DAY", delay="0 s")
    frame = keyed(rows, "k", config={"backend": one_backend}, event_time=event_time)
    out = frame.process(LastSeen(), SCHEMA).collect()
    assert [tuple(row) for row in out] == [("a", None, 86_400_000, BEFORE_TIME)]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, MissingEventTimeError, r"'seen' expires in event time.*EventTime\('ts'"),
        ({"column": "when", "delay": 0}, EventTimeError, r"'when': the DataFrame has 0 columns.*k, v, ts"),
        ({"column": "v", "delay": 0}, EventTimeError, r"'v': it has the type bigint; make a timestamp"),
        ({"column": "ts"}, EventTimeError, r"'ts': no delay is given.*delay='10 minutes'"),
        ({"column": "ts", "delay": -1}, EventTimeError, r"'ts': the delay -1 is negative"),
        ({"column": "ts", "delay": "soon"}, InvalidDurationError, r"'soon' is no duration"),
        ({"column": "ts", "delay": 0, "inputs": "x"}, EventTimeError, r"'x': the DataFrame has 0 columns"),
        ({"column": "ts", "delay": 0, "inputs": "ts"}, EventTimeError, r"'ts': it has the type timestamp"),
        (
            {"column": "ts", "delay": 0, "idle": 1},
            EventTimeError,
            r"'ts': an idle time is for several inputs",
        ),
        (
            {"column": "ts", "delay": 0, "inputs": "k", "idle": 0},
            EventTimeError,
            r"'ts': the idle time 0 is not positive",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_event_time_that_cannot_be_had_is_refused_when_the_frame_is_built(
    spark: SparkSession, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    rows = spark.sql("SELECT 'a' AS k, 5L AS v, timestamp_millis(5) AS ts")

    def build() -> DataFrame:
        event_time = EventTime(**given) if given else None
        return keyed(rows, "k", event_time=event_time).process(LastSeen(), SCHEMA)

    with pytest.raises(error, match=message):
        build()
