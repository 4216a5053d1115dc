"""The initial state of a processor: under Spark's own ``transformWithState`` and under keyedstate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "pyspark.sql.streaming.stateful_processor", reason="transformWithState came with Spark 4.0"
)

import pandas as pd
from parity import NEEDS_SPARKS_OWN, OUT, Both, rows
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyedstate.errors import InitialStateError
from keyedstate.spark import drop_in

pytestmark = NEEDS_SPARKS_OWN


class Balances(StatefulProcessor):
    """Begins with the sum and the notes of the initial rows, and has a timer for each."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sum = handle.getValueState("sum", "n long")
        self.notes = handle.getListState("notes", "text string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        (n,) = self.sum.get() or (0,)
        self.sum.update((n + initialState.amount,))
        watermark = timerValues.getCurrentWatermarkInMs()
        self.notes.appendValue((f"{key!r} {initialState!r} {watermark}",))
        if watermark >= 0:
            self.handle.registerTimer(initialState.amount)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        (n,) = self.sum.get() or (0,)
        n += sum(row.n for row in rows)
        self.sum.update((n,))
        notes = sorted(text for (text,) in self.notes.get())
        yield Row(k=key[0], text=f"{key!r} {n} {notes}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], text=f"expired {expiredTimerInfo.getExpiryTimeInMs()} {self.sum.get()}")


def balances(spark: SparkSession) -> Any:
    """Several rows of a key, a key without input, a null key; the columns of the key are not the first."""
    given = [(5, "a", "first"), (7, "a", "second"), (11, "alone", None), (1, None, "null"), (-3, "b", "x")]
    return spark.createDataFrame(given, "amount long, k string, note string")


@pytest.mark.long
def test_the_initial_state_comes_once_before_the_rows(both: Both, spark: SparkSession) -> None:
    runs = [[rows(("a", 1, 100), ("c", 2, 1))], [rows(("a", 3, 1), ("alone", 3, 2), (None, 3, 4))]]
    found = both.run(Balances(), *runs, initial=balances(spark).groupBy("k"))
    texts = dict(found[1])
    assert texts["alone"].startswith("('alone',) 13 ") and texts["a"].startswith("('a',) 113 ")


@pytest.mark.long
def test_timers_of_the_initial_state_fire_without_input(both: Both, spark: SparkSession) -> None:
    runs = [rows(("a", 0.016, 100)), rows(("c", 100, 1))], [rows(("b", 101, 2))]
    found = both.run(Balances(), *runs, time_mode="eventTime", initial=balances(spark).groupBy("k"))
    assert any(("alone", "expired 11 (11,)") in some for some in found.values())


def test_the_initial_state_is_grouped_by_several_columns(both: Both, spark: SparkSession) -> None:
    state = spark.createDataFrame([(3, 2, "a"), (4, 1, "a"), (5, 2, "b")], "amount long, n long, k string")
    given = [rows(("a", 1, 2), ("b", 2, 1))]
    both.run(
        Balances(),
        given,
        keys=("n", "k"),
        out=OUT.replace("k string", "k long"),
        initial=state.groupBy("n", "k"),
    )


class FrameBalances(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.notes = handle.getListState("notes", "text string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        types = {name: str(dtype) for name, dtype in initialState.dtypes.items()}
        self.notes.appendValue((f"{key!r} {initialState.to_dict('list')} {types}",))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n = sum(int(frame["n"].sum()) for frame in rows)
        yield pd.DataFrame({"k": [key[0]], "text": [f"{n} {[text for (text,) in self.notes.get()]}"]})


@pytest.mark.long
def test_the_initial_state_comes_as_frames(both: Both, spark: SparkSession) -> None:
    runs = [[rows(("a", 1, 100), ("c", 2, 1))], [rows(("a", 3, 1), ("alone", 3, 2))]]
    both.run(FrameBalances(), *runs, pandas=True, initial=balances(spark).orderBy("amount").groupBy("k"))


def test_a_batch_frame_begins_with_the_initial_state(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), ("b", 2), ("a", 3)], "k string, n long")
    found = []
    for switch in (drop_in.disable, drop_in.enable):
        with switch():
            made = frame.groupBy("k").transformWithState(
                Balances(), OUT, "append", "none", balances(spark).groupBy("k")
            )
            found.append(sorted(map(tuple, made.collect())))
    assert found[1] == found[0]


def test_a_batch_that_runs_again_takes_the_initial_state_once(
    spark: SparkSession, new_stream: Any, tmp_path: Path
) -> None:
    stream = new_stream(tmp_path, "k string, ts timestamp, n long")
    stream.add(rows(("a", 1, 100)))

    def out() -> Any:
        return drop_in.transform_with_state(
            stream.frame().groupBy("k"), Balances(), OUT, "update", "none", balances(spark).groupBy("k")
        )

    seen: list[list[str]] = []

    def twice(batch: Any, epoch: int) -> None:
        seen.append([row.text[:11] for _ in range(2) for row in batch.collect()])
        if len(seen) == 1:
            raise OSError("the sink fails once")

    assert "the sink fails once" in stream.failure(out(), twice)
    stream.run(out(), twice)
    assert seen == [["('a',) 112 "] * 2] * 2


def test_a_wrong_initial_state_is_refused(spark: SparkSession, stream: Any) -> None:
    grouped = stream.frame().groupBy("k")
    with pytest.raises(InitialStateError, match="types bigint and those of the input string"):
        drop_in.transform_with_state(
            grouped, Balances(), OUT, "update", "none", balances(spark).groupBy("amount")
        )
    with pytest.raises(InitialStateError, match="streaming"):
        drop_in.transform_with_state(grouped, Balances(), OUT, "update", "none", grouped)
