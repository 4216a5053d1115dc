"""Functions under Spark's own ``applyInPandasWithState`` and under keyedstate give the same rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyspark.sql.streaming.stateful_processor", reason="the drop-in needs Spark 4.0 or newer")

from pyspark.errors import AnalysisException, IllegalArgumentException, UnsupportedOperationException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from keyedstate.spark import drop_in

SCHEMA = "k string, ts timestamp, n long, i int, b boolean, a array<int>, m map<string,int>, `a b` string"
OUT = "k string, text string"
Function = Callable[[Any, Iterator[Any], GroupState], Any]


def at(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).isoformat()


def rows(*given: tuple[Any, float, int]) -> list[dict[str, Any]]:
    return [{"k": key, "ts": at(seconds), "n": n} for key, seconds, n in given]


class Both:
    """Runs one function under Spark's own implementation and under ours, over the same micro-batches."""

    def __init__(self, new_stream: Callable[..., Any], folder: Path) -> None:
        self._new_stream = new_stream
        self._folder = folder

    def run(
        self,
        function: Function,
        *runs: list[list[dict[str, Any]]],
        state: str = "n long",
        timeout: str = GroupStateTimeout.NoTimeout,
        mode: str = "update",
        keys: tuple[str, ...] = ("k",),
    ) -> dict[int, list[tuple[Any, ...]]]:
        """Return the rows of each epoch, which are the same under both, after a query has run in parts."""
        found = []
        for switch, name in ((drop_in.disable, "spark"), (drop_in.enable, "keyedstate")):
            folder = self._folder / name
            folder.mkdir()
            stream = self._new_stream(folder, SCHEMA)
            for batches in runs:
                for batch in batches:
                    stream.add(batch)
                grouped = stream.frame().withWatermark("ts", "10 seconds").groupBy(*keys)
                with switch():
                    made = grouped.applyInPandasWithState(function, OUT, state, mode, timeout)
                run(stream, made, mode, once=timeout == GroupStateTimeout.ProcessingTimeTimeout)
            found.append({epoch: sorted(some, key=repr) for epoch, some in stream.rows.items()})
        of_spark, ours = found
        for epoch in sorted({*of_spark, *ours}):
            assert ours.get(epoch, "no epoch") == of_spark.get(epoch, "no epoch"), epoch
        assert any(of_spark.values())
        return ours


def run(stream: Any, made: Any, mode: str = "update", *, once: bool = False) -> None:
    """Run a query over all input in an output mode, which Spark compares with that of the function."""

    def collect(batch: Any, epoch: int) -> None:
        stream.rows[epoch] = [tuple(row) for row in batch.collect()]

    try:
        (
            made.writeStream.outputMode(mode)
            .foreachBatch(collect)
            .option("checkpointLocation", str(stream.spark_checkpoint))
            .trigger(**({"once": True} if once else {"availableNow": True}))
            .start()
            .awaitTermination()
        )
    finally:
        stream.settle()


@pytest.fixture
def both(new_stream: Callable[..., Any], tmp_path: Path) -> Both:
    return Both(new_stream, tmp_path)


def attempts(*calls: Callable[[], Any]) -> list[str]:
    """Return what each call returns or raises."""
    found = []
    for call in calls:
        try:
            found.append(repr(call()))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def sessions(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
    """Does what the number of the first row says, and shows all that it is given."""
    taken = list(frames)
    seen = [
        key,
        state.hasTimedOut,
        state.exists,
        state.getOption,
        state.getCurrentWatermarkMs(),
        state.oldTimeoutTimestamp,
        str(state),
        [(frame.dtypes.astype(str).to_dict(), frame.to_dict("list")) for frame in taken],
    ]
    yield pd.DataFrame({"text": [repr(seen)], "k": [str(key[0])]})
    name = str(key[0])
    if state.hasTimedOut:
        if name == "again":
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 1)
        elif name == "removed":
            state.remove()
        elif name == "updated":
            state.update((state.get[0] + 1,))
        # "left" leaves all as it is: Spark calls it in each micro-batch.
        return
    (n,) = state.getOption or (0,)
    n += sum(map(len, taken))
    if name == "gone":
        # A timeout without a value.
        state.update((n,))
        state.remove()
        state.setTimeoutTimestamp(int(taken[0]["n"].iloc[0]))
        return
    state.update((np.int64(n),))
    time = int(taken[0]["n"].iloc[0])
    if time == 1:
        state.setTimeoutTimestamp(dt.datetime(1970, 1, 1, 0, 0, 25))
    elif time:
        state.setTimeoutTimestamp(time)


@pytest.mark.long
def test_keys_time_out_after_the_rows_and_late_rows_are_dropped(both: Both) -> None:
    found = both.run(
        sessions,
        [
            [
                *rows(("again", 1, 5000), ("removed", 2, 9999), ("updated", 3, 10_000), ("left", 4, 7000)),
                *rows(("gone", 20, 8000), ("reset", 20, 11_000), ("date", 20, 1), ("none", 20, 0)),
                {"k": "again", "ts": at(2), "n": 3, "i": 5, "b": True, "a": [1], "m": {"x": 1}, "a b": "y"},
            ],
            # The watermark is 10 s: what is before it times out, and rows are late that came before 0.
            rows(("reset", 20, 0), ("late", -1, 0), ("removed", 21, 60_000)),
        ],
        [rows(("late", 9, 0), ("on time", 11.001, 90_000)), rows(("again", 50, 45_000), ("far", 300, 0))],
        keys=("k", "i"),
        timeout=GroupStateTimeout.EventTimeTimeout,
    )
    texts = [text for epoch in sorted(found) for _, text in found[epoch]]
    left = [text for text in texts if text.startswith("[('left'") and "True, True, (1,)" in text]
    assert len(left) > 2
    assert not [text for text in texts if text.startswith("[('reset'") and ", True, True, (2,)" in text]


def everything(key: Any, frames: Iterator[Any], state: GroupState) -> list[Any]:
    """Stores values of many types, and calls what Spark refuses."""
    before = state.getOption
    instant = dt.datetime(2024, 5, 6, 7, 8, 9, 123456)
    refused = attempts(
        lambda: state.setTimeoutDuration(5),
        lambda: state.setTimeoutDuration("5 seconds"),  # type: ignore[arg-type]
        lambda: state.setTimeoutTimestamp(5),
        lambda: state.update(None),  # type: ignore[arg-type]
        lambda: state.get if before is None else "exists",
        lambda: state.getCurrentProcessingTimeMs() > 1_600_000_000_000,
        lambda: state.getCurrentWatermarkMs(),
    )
    if before is None:
        state.update(
            (
                np.int64(5),
                7,
                "text",
                True,
                1.5,
                np.float32(0.5),
                b"bytes",
                instant,
                pd.Timestamp(instant),
                dt.date(2024, 1, 2),
                Decimal("12.34"),
                Row(p=1, q="x"),
            )
        )
    elif before[0] == 5:
        state.update((2**40, 2**40, "t", None, 1.0, 2.5, *[None] * 5, (2, None)))
    else:
        state.remove()
    after = state.getOption
    return [
        pd.DataFrame({"k": [str(key[0])] * 3, "text": [repr(before), repr(after), repr(refused)]}),
        pd.DataFrame(),
        pd.DataFrame({"text": [repr([len(frame) for frame in frames])], "k": ["in another order"]}),
    ]


def test_values_of_all_types_are_stored_and_returned_alike(both: Both, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    try:
        both.run(
            everything,
            [rows(*(("a", 1, n) for n in range(5))), rows(("a", 2, 1))],
            [rows(("a", 3, 1)), rows(("a", 3, 1))],
            mode="append",
            state=(
                "l long, i int, s string, b boolean, d double, f float, x binary, t timestamp, "
                # Spark 4.3 fails with arrays and maps in a state.
                "u timestamp_ntz, day date, c decimal(10,2), r struct<p:int,q:string>"
            ),
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def passing(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
    seen = [key, state.hasTimedOut, state.getOption, sum(map(len, frames))]
    refused = attempts(lambda: state.setTimeoutDuration(0), lambda: state.setTimeoutTimestamp(9))
    yield pd.DataFrame({"k": [key[0]], "text": [repr([*seen, refused])]})
    if state.hasTimedOut:
        state.remove()
    else:
        state.update((seen[-1],))
        state.setTimeoutDuration(1 if key[0] == "short" else 10_000_000)


@pytest.mark.long
def test_keys_time_out_by_processing_time(both: Both) -> None:
    found = both.run(
        passing,
        [rows(("short", 1, 1), ("long", 1, 1), ("short", 1, 1))],
        [rows(("long", 1, 1))],
        [rows(("short", 1, 1))],
        timeout=GroupStateTimeout.ProcessingTimeTimeout,
    )
    assert [text[:22] for _, text in found[1]] == ["[('long',), False, (1,", "[('short',), True, (2,"]


def wrong(key: Any, frames: Iterator[Any], state: GroupState) -> list[Any]:
    return [pd.DataFrame({"k": ["a"]})]


def test_the_errors_of_a_call_are_sparks(stream: Any) -> None:
    stream.add([{"k": "a", "v": 1}])
    grouped = stream.frame().groupBy("k")
    with drop_in.enable():
        with pytest.raises(IllegalArgumentException, match="should be append or update"):
            grouped.applyInPandasWithState(wrong, OUT, "n long", "complete", "NoTimeout")
        with pytest.raises(IllegalArgumentException, match="Invalid streaming output mode: any"):
            grouped.applyInPandasWithState(wrong, OUT, "n long", "any", "NoTimeout")
        with pytest.raises(AssertionError):
            grouped.applyInPandasWithState(wrong, OUT, "n long", "update", "Never")
        with pytest.raises(AnalysisException, match="Watermark must be specified"):
            grouped.applyInPandasWithState(wrong, OUT, "n long", "update", "EventTimeTimeout")
        with pytest.raises(UnsupportedOperationException, match="Use applyInPandas instead"):
            stream.batch().groupBy("k").applyInPandasWithState(wrong, OUT, "n long", "update", "NoTimeout")
        made = grouped.applyInPandasWithState(wrong, OUT, "n long", "append", "NoTimeout")
    assert "[RESULT_COLUMN_SCHEMA_MISMATCH]" in stream.failure(made)
