"""Programs as Spark's documentation has them: the same answers on Spark and on three backends of keyedstate.

Those of one time mode run in one query, as branches of a union: a query costs more than an operator.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest

pytest.importorskip(
    "pyspark.sql.streaming.stateful_processor", reason="transformWithState came with Spark 4.0"
)

import pandas as pd
from parity import NEEDS_SPARKS_OWN, Both, rows
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

pytestmark = NEEDS_SPARKS_OWN

OUT = "k string, text string"
#: One task for each operator.
CONF = {"spark.sql.shuffle.partitions": "1"}
#: The other backends run beside each other, once more beside Spark's own implementation.
OTHERS = pytest.param(("rocksdb", "spillable"), id="others", marks=pytest.mark.long)
ON_BACKENDS = pytest.mark.parametrize("backends", [pytest.param(("heap-cow",), id="heap-cow"), OTHERS])


class Processor(StatefulProcessor):
    """Puts out texts with the name of the program."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.declare(handle)

    def declare(self, handle: Any) -> None: ...

    def row(self, key: Any, text: object) -> Row:
        return Row(k=key[0], text=f"{type(self).__name__}: {text}")


class RunningCount(Processor):
    def declare(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        before = self.count.get()[0] if self.count.exists() else 0
        count = before + sum(1 for _ in rows)
        self.count.update((count,))
        yield self.row(key, count)


class Deduplication(Processor):
    def declare(self, handle: Any) -> None:
        self.seen = handle.getMapState("seen", "n long", "first timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if not self.seen.containsKey((row.n,)):
                self.seen.updateValue((row.n,), (row.ts,))
                yield self.row(key, row.n)


class LastThree(Processor):
    def declare(self, handle: Any) -> None:
        self.last = handle.getListState("last", "n long, ts timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        last = [*self.last.get(), *((row.n, row.ts) for row in sorted(rows, key=lambda row: row.ts))][-3:]
        self.last.put(last)
        yield self.row(key, [(n, ts.isoformat()) for n, ts in self.last.get()])


class Histogram(Processor):
    def declare(self, handle: Any) -> None:
        self.counts = handle.getMapState("counts", "even boolean", "times int, largest long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            times, largest = self.counts.getValue((row.n % 2 == 0,)) or (0, row.n)
            self.counts.updateValue((row.n % 2 == 0,), (times + 1, max(largest, row.n)))
        yield self.row(key, sorted(self.counts.iterator()))


class Balance(Processor):
    """Begins with an initial state."""

    def declare(self, handle: Any) -> None:
        self.balance = handle.getValueState("balance", "amount decimal(10,2)")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.balance.update((initialState.amount,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        (balance,) = self.balance.get() or (0,)
        balance += sum(row.n for row in rows)
        yield self.row(key, balance)


class RunningMean(Processor):
    """With pandas frames."""

    def declare(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "n long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n, total = self.sums.get() or (0, 0.0)
        for frame in rows:
            n, total = n + len(frame), total + float(frame["n"].sum())
        self.sums.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "text": [f"mean: {total / n}"]})


@pytest.mark.long
@ON_BACKENDS
def test_programs_without_time_have_the_same_answers(both: Both, spark: Any, backends: Any) -> None:
    initial = spark.createDataFrame([("a", 10), ("z", 5)], "k string, n int")
    initial = initial.select("k", f.col("n").cast("decimal(10,2)").alias("amount")).groupBy("k")

    def built(frame: DataFrame) -> DataFrame:
        grouped = frame.groupBy("k")
        plain = [RunningCount(), Deduplication(), LastThree(), Histogram()]
        made = [grouped.transformWithState(each, OUT, "append", "none") for each in plain]
        made.append(grouped.transformWithState(Balance(), OUT, "append", "none", initial))
        made.append(grouped.transformWithStateInPandas(RunningMean(), OUT, "append", "none"))
        return reduce(DataFrame.union, made)

    first = [rows(("a", 1, 1), ("b", 2, 2), ("a", 3, 3), ("a", 4, 1)), rows(("a", 5, 4), ("z", 6, 6))]
    found = both.compare(built, first, [rows(("b", 7, 2), ("a", 8, 8))], conf=CONF, backends=backends)
    programs = {text.partition(":")[0] for some in found.values() for _, text in some}
    assert len(programs) == 6
    assert ("b", "RunningCount: 2") in found[2]


class Sessions(Processor):
    """A session ends ten seconds after its last row."""

    def declare(self, handle: Any) -> None:
        self.session = handle.getValueState("session", "first timestamp, last timestamp, n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        times = [row.ts.replace(tzinfo=None) for row in rows]
        first, last, n = self.session.get() or (min(times), min(times), 0)
        last = max([last, *times])
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        # Timestamps of states are local ones without a zone, and the tests run in UTC.
        end = last.replace(tzinfo=dt.timezone.utc).timestamp() * 1000
        self.handle.registerTimer(int(end) + 10_000)
        self.session.update((first, last, n + len(times)))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        first, last, n = self.session.get()
        self.session.clear()
        yield self.row(key, (first.isoformat(), last.isoformat(), n, expiredTimerInfo.getExpiryTimeInMs()))


class Heartbeat(Sessions):
    """Alerts, again and again, while a key is silent for five seconds."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        super().handleInputRows(key, rows, timerValues)
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 5_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        silent = timerValues.getCurrentWatermarkInMs() - expiredTimerInfo.getExpiryTimeInMs()
        if silent < 20_000:
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 5_000)
        yield self.row(key, f"silent at {expiredTimerInfo.getExpiryTimeInMs()} for {silent}")


def pandas_sessions(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
    """Ends a session twelve seconds after its last row."""
    (n,) = state.getOption or (0,)
    if state.hasTimedOut:
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "text": [f"pandas sessions: {n}"]})
        return
    for frame in frames:
        n, last = n + len(frame), frame["ts"].max()
    state.update((n,))
    state.setTimeoutTimestamp(int(last.timestamp() * 1000) + 12_000)


@pytest.mark.long
@ON_BACKENDS
@pytest.mark.parametrize("program", [Sessions(), Heartbeat(), pandas_sessions])
def test_programs_of_event_time_have_the_same_answers(both: Both, program: Any, backends: Any) -> None:
    def built(frame: DataFrame) -> DataFrame:
        grouped = frame.withWatermark("ts", "2 seconds").groupBy("k")
        if isinstance(program, Processor):
            return grouped.transformWithState(program, OUT, "append", "eventTime")
        return grouped.applyInPandasWithState(program, OUT, "n long", "append", "EventTimeTimeout")

    first = [rows(("a", 1, 1), ("b", 2, 2), ("a", 8, 3)), rows(("c", 25, 4))]
    runs = [first, [rows(("c", 40, 1), ("a", 41, 1)), rows(("b", 90, 2))]]
    found = both.compare(built, *runs, conf=CONF, backends=backends)
    assert sum(len(some) for some in found.values()) >= 4


class Passed(Processor):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=key[0], at=row.ts)


@pytest.mark.long
@ON_BACKENDS
def test_the_output_is_aggregated_alike(both: Both, backends: Any) -> None:
    def built(frame: DataFrame) -> DataFrame:
        passed = (
            frame.withWatermark("ts", "1 second")
            .groupBy("k")
            .transformWithState(
                Passed(), "k string, at timestamp", "append", "eventTime", eventTimeColumnName="at"
            )
        )
        minutes = passed.groupBy(f.window("at", "1 minute"), "k").count()
        return minutes.select("k", f.col("window.start").cast("string"), "count")

    batches = [rows(("a", 1, 1), ("b", 2, 1)), rows(("a", 70, 1)), rows(("a", 140, 1)), rows(("a", 300, 1))]
    # The watermark reaches Spark's aggregation by other micro-batches: their rows are the same, not when.
    both.compare(built, batches, conf=CONF, by_epoch=False, backends=backends)


class Downloads(Processor):
    """Shows a file of a user once in an hour."""

    def declare(self, handle: Any) -> None:
        self.seen = handle.getMapState("seen", "n long", "at timestamp", 3_600_000)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if not self.seen.containsKey((row.n,)):
                self.seen.updateValue((row.n,), (row.ts,))
                yield self.row(key, row.n)


@pytest.mark.long
@ON_BACKENDS
def test_a_program_of_processing_time_has_the_same_answers(both: Both, backends: Any) -> None:
    def built(frame: DataFrame) -> DataFrame:
        return frame.groupBy("k").transformWithState(Downloads(), OUT, "append", "processingTime")

    runs = [[rows(("a", 1, 1), ("a", 2, 1), ("b", 3, 1))], [rows(("a", 1, 1), ("a", 1, 2))]]
    found = both.compare(built, *runs, once=True, conf=CONF, backends=backends)
    assert found == {0: [("a", "Downloads: 1"), ("b", "Downloads: 1")], 1: [("a", "Downloads: 2")]}
