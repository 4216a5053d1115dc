"""State of Spark's own operators becomes a savepoint, from which the same query continues on keyedstate."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("pyspark.sql.streaming.stateful_processor", reason="the drop-in needs Spark 4.0 or newer")

from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from typer.testing import CliRunner

import keyedstate as ks
from keyedstate.cli.app import app
from keyedstate.errors import SparkLocationError, SparkStateError, UnknownEpochError
from keyedstate.savepoints import Savepoint, from_spark
from keyedstate.spark import drop_in

transform_with_state = pytest.mark.skipif(
    not hasattr(GroupedData, "transformWithState") or importlib.util.find_spec("google.protobuf") is None,
    reason="Spark's own transformWithState needs Spark 4.1 and the package protobuf",
)

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = "k string, i int, ts timestamp, n long"
OUT = "k string, text string"
KEYS = 2_000


def at(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).isoformat()


def batch(number: int, keys: int = KEYS) -> list[dict[str, Any]]:
    """Return a row of each key, in ten seconds, and some of a key that has many."""
    rows = [
        {"k": f"key {key}", "i": key % 3, "ts": at(10 * number + key % 10), "n": key + number}
        for key in range(number * 100, keys, 1 + number % 2)
    ]
    return [*rows, *({"k": None, "i": None, "ts": at(10 * number + 1), "n": n} for n in range(5))]


class Continued:
    """A query that runs on Spark's own state, and continues on keyedstate."""

    def __init__(self, spark: SparkSession, new_stream: Callable[..., Any], folder: Path) -> None:
        self.spark = spark
        self.stopped = folder / "stopped"
        self._new_stream = new_stream
        self._folder = folder

    def run(
        self,
        make: Callable[[DataFrame], DataFrame],
        before: list[list[dict[str, Any]]],
        after: list[list[dict[str, Any]]],
        *,
        once: bool = False,
        watermark_moves: bool = False,
        **options: Any,
    ) -> tuple[list[Any], list[Any]]:
        """Return all rows of the query, and those of the same query on Spark alone.

        If the watermark moves after the last micro-batch of the first part, no other micro-batch follows it.
        """
        stream = self._new_stream(self._folder, SCHEMA)
        follows = "spark.sql.streaming.noDataMicroBatches.enabled"
        with drop_in.disable():
            self.spark.conf.set(follows, str(not watermark_moves).lower())
            self._run(stream, make, before, once=once)
            first = dict(stream.rows)
            shutil.copytree(stream.spark_checkpoint, self.stopped)
            self.spark.conf.set(follows, "true")
            self._run(stream, make, after, once=once)
        expected = _all(stream.rows)
        savepoint = from_spark(str(self.stopped), self._folder / "savepoint", **options)
        savepoint.verify()
        stream.spark_checkpoint = self._folder / "continued"
        savepoint.fork(stream.spark_checkpoint, stream.spark_checkpoint / "keyedstate")
        stream.rows.clear()
        with drop_in.enable():
            self._run(stream, make, [], once=once)
        assert min(stream.rows) == max(first) + 1
        return sorted([*_all(first), *_all(stream.rows)], key=repr), sorted(expected, key=repr)

    def _run(self, stream: Any, make: Any, batches: list[list[dict[str, Any]]], *, once: bool) -> None:
        for some in batches:
            stream.add(some)

        def collect(frame: DataFrame, epoch: int) -> None:
            stream.rows[epoch] = [tuple(row) for row in frame.collect()]

        try:
            (
                make(stream.frame().withWatermark("ts", "5 seconds"))
                .writeStream.outputMode("update")
                .foreachBatch(collect)
                .option("checkpointLocation", str(stream.spark_checkpoint))
                .trigger(**({"once": True} if once else {"availableNow": True}))
                .start()
                .awaitTermination()
            )
        finally:
            stream.settle()


def _all(rows: dict[int, list[Any]]) -> list[Any]:
    return [row for epoch in rows for row in rows[epoch]]


@pytest.fixture
def continued(spark: SparkSession, new_stream: Callable[..., Any], tmp_path: Path) -> Iterator[Continued]:
    settings = {
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield Continued(spark, new_stream, tmp_path)
    for name in settings:
        spark.conf.unset(name)


def visits(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
    count, total = state.getOption or (0, 0)
    if state.hasTimedOut:
        yield pd.DataFrame({"k": [key[0]], "text": [f"{key[0]} is over: {count} {total}"]})
        state.remove()
        return
    for frame in frames:
        count, total = count + len(frame), total + int(frame["n"].sum())
        last = frame["ts"].max()
    if total % 7 == 0:
        # A timeout without a value.
        state.remove()
    else:
        state.update((count, total))
    state.setTimeoutTimestamp(int(last.timestamp() * 1000) + 12_000)
    yield pd.DataFrame({"k": [key[0]], "text": [f"{key[0]} {count} {total}"]})


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").applyInPandasWithState(
        visits, OUT, "count long, total long", "update", "EventTimeTimeout"
    )


@pytest.mark.long
def test_functions_with_timeouts_continue_between_two_watermarks(continued: Continued) -> None:
    # With the state store in memory, Spark's default.
    continued.spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    found, expected = continued.run(
        counted,
        [batch(0), batch(1)],
        [batch(2), batch(4)],
        watermark_moves=True,
        timeout="EventTimeTimeout",
        watermark_delay="5 seconds",
    )
    assert found == expected
    assert len(expected) > 2 * KEYS


class Everything(StatefulProcessor):
    """Has states of each kind and timers, and shows what it finds."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n long, at timestamp, part struct<p:int>, small tinyint")
        self.list = handle.getListState("list", "n long, tags array<string>")
        self.map = handle.getMapState("map", "name string, number int", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=str(key[1]), text=repr([*self.found(), sorted(self.handle.listTimers())]))
            self.value.update((row.n, row.ts, Row(p=row.i), 7))
            self.list.appendValue((row.n, [key[1], None]))
            self.map.updateValue((str(key[1]), row.n % 2), (row.n,))
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1_000 * (row.n % 20))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=str(key[1]), text=repr([expiredTimerInfo.getExpiryTimeInMs(), *self.found()]))

    def found(self) -> list[Any]:
        return [self.value.get(), list(self.list.get()), sorted(self.map.iterator(), key=repr)]


def everything(rows: DataFrame) -> DataFrame:
    return rows.groupBy("i", "k").transformWithState(Everything(), OUT, "update", "eventTime")


@pytest.mark.long
@transform_with_state
def test_processors_with_states_of_all_kinds_and_timers_continue(continued: Continued) -> None:
    found, expected = continued.run(everything, [batch(0, 300), batch(1, 300)], [batch(2, 300)])
    assert found == expected


class Passing(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n long", 3_600_000)
        self.list = handle.getListState("list", "n long", 3_600_000)
        self.map = handle.getMapState("map", "n long", "n long", 3_600_000)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        seen = [self.value.get(), list(self.list.get()), sorted(self.map.iterator())]
        for row in rows:
            self.value.update((row.n,))
            self.list.appendValue((row.n,))
            self.map.updateValue((row.n,), (row.n,))
            # One that is due in the next micro-batch.
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield Row(k=key[0], text=repr(seen))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], text=f"expired {self.value.get()}")


def passing(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithState(Passing(), OUT, "update", "processingTime")


def some(*keys: str) -> list[dict[str, Any]]:
    return [{"k": key, "i": 1, "ts": at(1), "n": number} for number, key in enumerate(keys)]


@pytest.mark.long
@transform_with_state
def test_values_keep_the_time_at_which_they_expire(continued: Continued, tmp_path: Path) -> None:
    lengths: dict[str, Any] = {"value": "1 hour", "list": 3_600_000, "map": dt.timedelta(hours=1)}
    found, expected = continued.run(
        passing, [some("a", "b", "a")], [some("a")], once=True, ttl=lengths, watermark_delay="5 seconds"
    )
    assert found == expected
    assert "[(2,), [(0,), (2,)], [((0,), (0,)), ((2,), (2,))]]" in {text for _, text in found}
    location = str(continued.stopped)
    for wrong, message in (
        ({}, "the state '(value|list|map)' of operator 0 .* has a time to live"),
        ({**lengths, "other": 1}, "has no state 'other'; it has "),
    ):
        with pytest.raises(SparkStateError, match=message):
            from_spark(location, tmp_path / "refused", ttl=wrong, watermark_delay=0)
    # The program's time to live decides when a value was written.
    short = dict.fromkeys(lengths, "1 day")
    made = from_spark(location, tmp_path / "older", ttl=short, watermark_delay="5 seconds")
    read = continued.spark.read.format("keyedstate").option("state", "value").load(str(made.root.root))
    (age,) = {dt.datetime.now() - row.written_at.replace(tzinfo=None) for row in read.limit(1).collect()}
    assert dt.timedelta(hours=22) < age < dt.timedelta(hours=25)


class Counts(ks.KeyedProcessFunction):
    count = ks.ValueState("count", ks.types.INT64, default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        yield ctx.key, self.count.value()


def test_a_keyed_function_takes_the_place_of_an_aggregation(stream: Any, tmp_path: Path) -> None:
    stream.add([{"k": key, "v": 1} for key in ("a", "b", "a")])
    counts = stream.frame().groupBy("k").count()
    counts.writeStream.outputMode("update").foreachBatch(lambda frame, epoch: frame.collect()).option(
        "checkpointLocation", str(stream.spark_checkpoint)
    ).trigger(availableNow=True).start().awaitTermination()
    location = str(stream.spark_checkpoint)
    with pytest.raises(SparkStateError, match=r"operator 0 \(stateStoreSave\) is neither"):
        from_spark(location, tmp_path / "savepoint")

    def counted(read: Callable[..., DataFrame]) -> DataFrame:
        return read().select("k", f.col("value.count").alias("value"))

    states = {0: [(Counts.count, counted)]}
    with pytest.raises(SparkStateError, match=r"operator 0 \(stateStoreSave\) has no uid"):
        from_spark(location, tmp_path / "savepoint", states=states)
    made = from_spark(location, tmp_path / "savepoint", states=states, uids="counts")
    stream.spark_checkpoint = tmp_path / "continued"
    made.fork(stream.spark_checkpoint, tmp_path / "state")
    stream.add([{"k": key, "v": 1} for key in ("a", "c")])
    config = {"checkpoint.dir": str(tmp_path / "state")}
    stream.run(
        ks.keyed(stream.frame(), "k", uid="counts", config=config).process(Counts(), "k string, n long")
    )
    assert sorted(stream.all_rows()) == [("a", 3), ("c", 1)]


def test_what_cannot_be_converted_is_refused(stream: Any, tmp_path: Path) -> None:
    location = str(stream.spark_checkpoint)
    with pytest.raises(SparkLocationError, match="it has no file metadata"):
        from_spark(location, tmp_path / "savepoint")
    stream.add([{"k": "a", "v": 1}])
    stream.run(stream.frame())
    with pytest.raises(SparkStateError, match="it has no stateful operator"):
        from_spark(location, tmp_path / "savepoint")
    with pytest.raises(UnknownEpochError):
        from_spark(location, tmp_path / "savepoint", epoch=7)
    assert not (tmp_path / "savepoint").exists()


def test_the_command_converts_the_state_of_a_query(
    continued: Continued, new_stream: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "query"
    folder.mkdir()
    stream = new_stream(folder, "value string, ts timestamp, n long")
    stream.add([{"value": "a", "ts": at(1), "n": 1}])
    grouped = stream.frame().withWatermark("ts", "5 seconds").groupBy("n")
    with drop_in.disable():
        made = grouped.applyInPandasWithState(
            visits, "k long, text string", "count long, total long", "update", "EventTimeTimeout"
        )
    made.writeStream.outputMode("update").foreachBatch(lambda frame, epoch: frame.collect()).option(
        "checkpointLocation", str(stream.spark_checkpoint)
    ).trigger(availableNow=True).start().awaitTermination()
    arguments = ["savepoint", "from-spark", str(stream.spark_checkpoint), str(tmp_path / "made")]
    options = ["--uid", "visits", "--timeout", "EventTimeTimeout", "--watermark-delay", "5 s"]
    result = CliRunner().invoke(app, [*arguments, *options, "--format", "json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout[result.stdout.index("{") :])
    assert document["operators"] == ["visits"] and document["forkable"]
    assert Savepoint.open(tmp_path / "made").metadata("visits").key_columns == (("n", "bigint"),)
    result = CliRunner().invoke(app, [*arguments, "--uid", "a=b"])
    assert result.exit_code == 2
