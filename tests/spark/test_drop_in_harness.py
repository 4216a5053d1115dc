"""Processors of ``transformWithState`` in the harness: no Spark, and the output of Spark's ``TwsTester``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip(
    "pyspark.sql.streaming.stateful_processor", reason="transformWithState came with Spark 4.0"
)

import pandas as pd
from pyspark.errors import IllegalArgumentException, PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyedstate.spark import drop_in
from keyedstate.testing import Harness
from keyedstate.time import EventTime

SCHEMA = "k string, ts timestamp, n long"
OUT = "k string, text string"


def sparks_tester(processor: StatefulProcessor, **named: Any) -> Any:
    """Return Spark's tester, which came with Spark 4.2."""
    module = pytest.importorskip("pyspark.sql.streaming.tws_tester")
    return module.TwsTester(processor, **named)


def harness(processor: StatefulProcessor, time_mode: str = "none", **named: Any) -> Harness:
    function = drop_in.keyed_function(processor, OUT, time_mode, frames=named.pop("frames", False))
    return Harness(function, key="k", schema=SCHEMA, output=OUT, **named)


class Basket(StatefulProcessor):
    """Uses each kind of state."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")
        self.seen = handle.getListState("seen", "n long")
        self.by_n = handle.getMapState("by_n", "n long", "times long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        (count,) = self.count.get() if self.count.exists() else (0,)
        for row in rows:
            count += 1
            self.seen.appendValue((row.n,))
            times = self.by_n.getValue((row.n,))[0] if self.by_n.containsKey((row.n,)) else 0
            self.by_n.updateValue((row.n,), (times + 1,))
        self.count.update((count,))
        entries = sorted((n, times) for (n,), (times,) in self.by_n.iterator())
        yield Row(k=key[0], text=f"{count} {[n for (n,) in self.seen.get()]} {entries}")


def test_a_processor_has_the_output_of_sparks_tester() -> None:
    spark = sparks_tester(Basket())
    given = [("a", [1, 2, 1]), ("b", [5]), ("a", [2]), ("b", [5, 6])]
    with harness(Basket()) as ours:
        for key, numbers in given:
            expected = spark.test(key, [Row(k=key, ts=None, n=n) for n in numbers])
            found = ours.process_all([(key, None, n) for n in numbers])
            assert found == list(map(tuple, expected))
            ours.end_epoch()


class Silence(StatefulProcessor):
    """Reports a key that was silent for five seconds of event time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "ms long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        last = max(row.n for row in rows)
        self.last.update((last,))
        self.handle.registerTimer(last + 5_000)
        yield Row(k=key[0], text=f"seen {last}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], text=f"silent since {self.last.get()[0]}")
        self.last.clear()


def test_timers_of_event_time_fire_as_in_sparks_tester() -> None:
    spark = sparks_tester(Silence(), timeMode="eventTime", eventTimeExtractor=lambda row: row.n)
    given = [("a", 1_000), ("b", 2_000), ("a", 4_000)]
    with harness(Silence(), "eventTime", event_time=EventTime("ts")) as ours:
        for key, ms in given:
            expected = spark.test(key, [Row(k=key, ts=None, n=ms)])
            assert ours.process((key, None, ms)) == list(map(tuple, expected))
        for watermark in (6_999, 7_000, 9_000):
            expected = spark.setWatermark(watermark)
            assert ours.advance_watermark(watermark) == list(map(tuple, expected))


def test_timers_of_processing_time_fire_when_the_clock_moves() -> None:
    with harness(Silence(), "processingTime") as ours:
        assert ours.process(("a", None, 1_000)) == [("a", "seen 1000")]
        assert ours.set_processing_time(5_999) == []
        assert ours.set_processing_time(6_000) == [("a", "silent since 1000")]


class Frames(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        (total,) = self.sum.get() or (0,)
        for frame in rows:
            total += frame["n"].sum()
        self.sum.update((total,))
        yield pd.DataFrame({"k": [key[0]], "text": [f"{total}"]})


def test_a_processor_of_frames_runs_too() -> None:
    with harness(Frames(), frames=True) as ours:
        found = ours.process_all([("a", None, 1), ("b", None, 2), ("a", None, 3)])
        assert sorted(found) == [("a", "4"), ("b", "2")]


def test_an_output_with_another_type_in_each_frame_loses_no_digit() -> None:
    class Mixed(Frames):
        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            yield pd.DataFrame({"k": [2**53 + 1]})
            yield pd.DataFrame({"k": [None, 1.0]})
            yield pd.DataFrame({"k": []})

    function = drop_in.keyed_function(Mixed(), "k long", frames=True)
    with Harness(function, key="k", schema=SCHEMA, output="k long") as ours:
        assert ours.process(("a", None, 1)) == [(2**53 + 1,), (None,), (1,)]


class Passing(Basket):
    """Puts out its input, and rows of other fields."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        row = next(rows)
        yield row
        yield Row("text", "k")("named", "later")
        yield Row(text="without a key")
        assert (row.n, row["n"], "n" in row) == (1, 1, True)
        assert repr(row).startswith("Row(k='a', ")


def test_rows_of_the_input_are_rows_of_spark() -> None:
    with harness(Passing()) as ours:
        found = ours.process_all([("a", None, 1), ("a", None, 2)])
    assert found == [("a", None), ("later", "named"), (None, "without a key")]


def test_what_spark_refuses_is_refused() -> None:
    with pytest.raises(IllegalArgumentException, match="STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE"):
        harness(Basket(), "sometimes")

    class Twice(Basket):
        def init(self, handle: Any) -> None:
            super().init(handle)
            super().init(handle)

    with pytest.raises(PySparkRuntimeError, match="DUPLICATE_STATE_VARIABLE"):
        harness(Twice())
