"""Processors under Spark's own ``transformWithState`` and under keyedstate: the same rows, epoch by epoch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip(
    "pyspark.sql.streaming.stateful_processor", reason="transformWithState came with Spark 4.0"
)

from parity import NEEDS_SPARKS_OWN, OUT, ROCKSDB, SCHEMA, Both, at, rows
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyedstate.spark import drop_in

pytestmark = NEEDS_SPARKS_OWN


class Counts(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        n, total = self.count.get() if self.count.exists() else (0, 0)
        for row in rows:
            n, total = n + 1, total + row.n
        self.count.update((n, total))
        yield Row(k=key[0], text=f"{key!r} {n} {total} {timerValues.getCurrentWatermarkInMs()}")


def test_value_state_continues_over_epochs_and_restarts(both: Both) -> None:
    first = [rows(("a", 1, 1), ("b", 2, 2), ("a", 3, 3)), rows(("a", 4, 4))]
    found = both.run(Counts(), first, [rows(("b", 5, 5), ("c", 6, 6))])
    assert found[2] == [("b", "('b',) 2 7 -1"), ("c", "('c',) 1 6 -1")]


class Everything(StatefulProcessor):
    """Uses each method of each state with values of many types, and shows what it gets."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState(
            "value",
            "l long, i int, s string, b boolean, d double, f float, x binary, t timestamp, u timestamp_ntz,"
            " day date, c decimal(10,2), a array<int>, m map<string,long>, r struct<p:int,q:array<string>>",
        )
        self.list = handle.getListState("list", "n long, tags array<string>")
        self.map = handle.getMapState("map", "p string, q int", "n long, r struct<s:string>")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        seen: list[Any] = [key, list(rows), self.value.exists(), self.value.get()]
        values = (
            np.int64(5),
            7,
            "text",
            True,
            1.5,
            0.1,
            b"bytes",
            dt.datetime(2024, 5, 6, 7, 8, 9, 123456),
            dt.datetime(2024, 5, 6),
            dt.date(2024, 1, 2),
            Decimal("12.34"),
            [1, None, 3],
            # The order of several entries is that of Java's HashMap with Spark.
            {"one": None},
            Row(p=1, q=["x"]),
        )
        self.value.update(values)
        stored = self.value.get()
        stored[11].append(99)
        stored[12]["three"] = 3
        seen += [stored, self.value.get()]
        self.value.update((2**40, 2**40, 5, 1, 1, 2.5, "as text", None, None, None, 3, None, None, (2, [])))
        seen.append(self.value.get())
        seen += [self.list.exists(), list(self.list.get())]
        self.list.appendValue((1, ["a"]))
        self.list.appendList([(2, None), (None, [])])
        first, second = self.list.get(), self.list.get()
        seen += [next(first), next(second), next(first), list(second)]
        self.list.put([(9, ["z"])])
        seen += [list(self.list.get()), self.list.exists()]
        seen += [self.map.exists(), self.map.getValue(("a", 1)), self.map.containsKey(("a", 1))]
        for n, name in enumerate("abc"):
            self.map.updateValue((name, n), (n, Row(s=name)))
        self.map.updateValue(("a", 0), (10, None))
        self.map.removeKey(("b", 1))
        seen += [self.map.getValue(("c", 2)), self.map.containsKey(("a", 0)), self.map.exists()]
        seen += [sorted(self.map.keys()), sorted(self.map.values(), key=repr), sorted(self.map.iterator())]
        self.map.clear()
        seen += [list(self.map.iterator()), self.map.exists()]
        for number, each in enumerate(seen):
            yield Row(k=f"{key[0]} {number}", text=repr(each))


def test_values_of_all_types_are_stored_and_returned_alike(both: Both) -> None:
    both.run(Everything(), [rows(("a", 1, 1), ("a", 2, 2)), rows(("a", 3, 3))])


class Deadlines(StatefulProcessor):
    """Registers timers before, at and after the watermark, and shows all that fire."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getListState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.seen.appendValue((row.n,))
            self.handle.registerTimer(row.n)
            self.handle.registerTimer(row.n)
        self.handle.deleteTimer(1)
        timers = sorted(self.handle.listTimers())
        yield Row(k=key[0], text=f"rows {timers} {timerValues.getCurrentWatermarkInMs()}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        time = expiredTimerInfo.getExpiryTimeInMs()
        if time == 5000:
            # Neither changes what fires in this epoch.
            self.handle.registerTimer(4000)
            self.handle.deleteTimer(6000)
            self.handle.registerTimer(5000)
        seen = [n for (n,) in self.seen.get()]
        timers = sorted(self.handle.listTimers())
        watermark = timerValues.getCurrentWatermarkInMs()
        yield Row(k=key[0], text=f"expired {key!r} {time} {timers} {watermark} {seen}")


@pytest.mark.long
def test_timers_fire_after_the_rows_up_to_the_watermark_and_late_rows_are_dropped(both: Both) -> None:
    found = both.run(
        Deadlines(),
        [
            rows(("a", 1, 5000), ("a", 20, 6000), ("b", 3, 10_000), ("c", 4, -5), ("c", 4, 1)),
            # The watermark is 10 s now, and rows are late that came before that of the epoch before, 0.
            rows(("a", 9.999, 8000), ("d", 11, 10_000), ("d", 11, 10_001)),
        ],
        [
            rows(("b", 30, 20_001), ("late", 9.999, 1), ("late", 10, 2), ("d", 10.001, 3)),
            rows(("e", 100, 7)),
        ],
        time_mode="eventTime",
    )
    texts = [text for epoch in sorted(found) for _, text in found[epoch]]
    assert any(text.startswith("expired Row(k='b') 10000 ") for text in texts)
    assert "late" not in {key for some in found.values() for key, _ in some}


@pytest.mark.long
def test_rows_without_event_time_are_not_late(both: Both) -> None:
    batches = [rows(("a", 50, 1)), [{"k": "a", "ts": None, "n": 2}, {"k": "b", "ts": at(3), "n": 3}]]
    found = both.run(Counts(), batches, [rows(("a", 41, 4))], time_mode="eventTime")
    # None follows a watermark that has not moved.
    assert max(found) == 2


class FirstRowOnly(Counts):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        yield Row(text=f"{next(rows)!r}", k=key[0])
        yield Row(k=str(key[1]))


def test_rows_that_are_not_read_are_skipped_and_fields_are_found_by_name(both: Both) -> None:
    given = [rows(*((key, second, second % 2) for second in range(1, 9) for key in "abc"))]
    both.run(FirstRowOnly(), given, keys=("k", "n"), out="k string, text string, extra double")


class Frames(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        (total,) = self.total.get() or (0,)
        for frame in rows:
            total += int(frame["n"].sum())
            types = {name: str(dtype) for name, dtype in frame.dtypes.items()}
            yield pd.DataFrame(
                {"text": [f"{key!r} {len(frame)} {types}", repr(frame.to_dict("list"))], "k": key[0]}
            )
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "text": [f"total {total}"]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield pd.DataFrame()


def test_frames_are_cut_by_the_records_of_an_arrow_batch(both: Both) -> None:
    given = [
        [*rows(*(("a", second, second) for second in range(1, 12))), *rows(("b", 1, 1))],
        rows(("a", 2, 5)),
    ]
    both.run(Frames(), given, pandas=True, conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "4"})


class Passing(StatefulProcessor):
    """Keeps values for an hour or a moment, and registers timers of processing time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n long", 3_600_000)
        self.list = handle.getListState("list", "n long", ttlDurationMs=1)
        self.map = handle.getMapState("map", "n long", "n long", 1)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        seen = self.value.get(), list(self.list.get()), list(self.map.iterator())
        yield Row(
            k=key[0], text=f"{seen!r} {now > 1_600_000_000_000} {timerValues.getCurrentWatermarkInMs()}"
        )
        for row in rows:
            self.value.update((row.n,))
            self.list.appendValue((row.n,))
            self.map.updateValue((row.n,), (row.n,))
        # One for this epoch, and one that is far away.
        self.handle.registerTimer(now)
        self.handle.registerTimer(now + 10_000_000)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        due = expiredTimerInfo.getExpiryTimeInMs() <= timerValues.getCurrentProcessingTimeInMs()
        yield Row(k=key[0], text=f"expired {key!r} {due} {self.value.get()}")


@pytest.mark.long
def test_values_expire_and_timers_of_processing_time_fire(both: Both) -> None:
    runs = [[rows(("a", 1, 1), ("b", 1, 2))], [rows(("a", 1, 3))], [rows(("b", 1, 5))]]
    found = both.run(Passing(), *runs, time_mode="processingTime")
    assert any(text.startswith("((1,), [], [])") for _, text in found[1])


class Sequence(StatefulProcessor):
    """Notes its calls."""

    def init(self, handle: Any) -> None:
        self.calls = handle.getListState("calls", "call string")
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        self.calls.appendValue((f"rows {sum(1 for _ in rows)}",))
        self.handle.registerTimer(1)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        self.calls.appendValue((f"timer {timerValues.getCurrentWatermarkInMs()}",))
        yield Row(k=key[0], text=", ".join(call for (call,) in self.calls.get()))


@pytest.mark.long
def test_all_rows_of_a_key_come_in_one_call_before_its_timers(both: Both) -> None:
    many = [("abc"[number % 3], 20 + number % 7, number) for number in range(3_000)]
    found = both.run(Sequence(), [rows(*many), rows(*many[:10])], time_mode="eventTime")
    assert found[1][0] == ("a", "rows 1000, rows 4, timer 16000")


@pytest.mark.long
def test_null_and_several_columns_are_keys(both: Both) -> None:
    given = [{"k": key, "ts": at(1), "n": n} for key in (None, "a") for n in (None, 1)] * 2
    both.run(Keys(), [given, given[:3]], keys=("n", "k"))


class Keys(Counts):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        n, _ = self.count.get() or (0, 0)
        n += len(list(rows))
        self.count.update((n, None))
        yield Row(k="key", text=f"{key!r} {n}")


class Failing(Counts):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        yield from super().handleInputRows(key, rows, timerValues)
        raise LookupError("no such flight")


@pytest.mark.parametrize("switch", [drop_in.disable, drop_in.enable])
def test_an_error_of_the_processor_is_in_the_error_of_the_query(stream: Any, switch: Any) -> None:
    stream.spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    stream.add([{"k": "a", "v": 1}])
    try:
        with switch():
            made = stream.frame().groupBy("k").transformWithState(Failing(), OUT, "update", "none")
        # The rows have no column n.
        assert "AttributeError" in stream.failure(made)
    finally:
        stream.spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


class Registering(Counts):
    """Registers a timer that is due and one that is not."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        yield from super().handleInputRows(key, rows, timerValues)
        for time in (5, 10**14):
            self.handle.registerTimer(time)
        yield Row(k=key[0], text=repr(sorted(self.handle.listTimers())))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        times = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield Row(k=key[0], text=f"expired {times}")


@pytest.mark.long
@pytest.mark.parametrize(
    "time_mode",
    ["none", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("processingTime", "eventTime"))],
)
def test_a_batch_frame_has_the_same_output(spark: SparkSession, time_mode: str) -> None:
    frame = spark.createDataFrame([("a", 1), ("b", 2), ("a", 3)], "k string, n long")
    processor = Counts() if time_mode == "none" else Registering()
    found = []
    for switch in (drop_in.disable, drop_in.enable):
        with switch():
            made = frame.groupBy("k").transformWithState(processor, OUT, "append", time_mode)
            found.append(sorted(map(tuple, made.collect())))
    assert found[1] == found[0]


@pytest.mark.long
def test_timers_of_event_time_wait_for_ever_without_a_watermark(both: Both) -> None:
    both.run(Registering(), [rows(("a", 1, 1)), rows(("a", 2, 2))], time_mode="eventTime", watermark=False)


class Early(Counts):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], at=next(rows).ts - dt.timedelta(seconds=5))


@pytest.mark.long
@pytest.mark.parametrize("switch", [drop_in.disable, drop_in.enable])
def test_output_rows_that_are_not_after_the_watermark_are_refused(
    spark: SparkSession, new_stream: Any, tmp_path: Path, switch: Any
) -> None:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    stream = new_stream(tmp_path, SCHEMA)
    stream.add(rows(("a", 5, 1)))
    try:
        with switch():
            made = (
                stream.frame()
                .withWatermark("ts", "1 second")
                .groupBy("k")
                .transformWithState(
                    Early(), "k string, at timestamp", "append", "eventTime", eventTimeColumnName="at"
                )
            )
        # The watermark begins with 0.
        assert "EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED" in stream.failure(made)
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


class WithSchema(StatefulProcessor):
    """Has a value of a schema, and shows what it was before it becomes that of a row."""

    def __init__(self, schema: str, *values: Any) -> None:
        self._schema = schema
        self._values = values

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", self._schema)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        before = self.value.get()
        self.value.update(self._values)
        yield Row(k=key[0], text=f"{before} {self.value.get()}")


@pytest.mark.long
def test_a_schema_evolves_and_is_refused_alike(spark: SparkSession, new_stream: Any, tmp_path: Path) -> None:
    settings = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.encodingFormat": "avro",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    evolved = [
        WithSchema("n int, gone string", 7, "gone"),
        # Widened, in another order, one field fewer and one more.
        WithSchema("name string, n long", "x", 2**40),
    ]
    found = []
    try:
        for switch, name in ((drop_in.disable, "spark"), (drop_in.enable, "keyedstate")):
            folder = tmp_path / name
            folder.mkdir()
            stream = new_stream(folder, SCHEMA)
            for processor in evolved:
                stream.add(rows(("a", 1, 1)))
                with switch():
                    made = stream.frame().groupBy("k").transformWithState(processor, OUT, "update", "none")
                stream.run(made)
            stream.add(rows(("a", 1, 1)))
            with switch():
                narrowed = WithSchema("name string, n int", "x", 1)
                made = stream.frame().groupBy("k").transformWithState(narrowed, OUT, "update", "none")
            assert "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION" in stream.failure(made)
            found.append(stream.all_rows())
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert found[1] == found[0] and len(found[0]) == 2
