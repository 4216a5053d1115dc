"""Keyed functions take the place of Spark's aggregations, deduplications and joins, with their state."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("pyspark.sql.streaming.stateful_processor", reason="Spark 4.0 reads the state of queries")

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

import keyedstate as ks
from keyedstate.errors import SparkStateError
from keyedstate.joins import JoinFunction
from keyedstate.savepoints import aggregate_states, deduplicate_states, from_spark, join_states

CONFIG = {"parallelism": 2}
AGGREGATES = {
    "rows": ks.aggregates.count(),
    "vs": ks.aggregates.count("v"),
    "total": ks.aggregates.sum_("v"),
    "mean": ks.aggregates.mean("v"),
    "least": ks.aggregates.min_("s"),
    "most": ks.aggregates.max_("v"),
    "deviation": ks.aggregates.stddev("v"),
    "price": ks.aggregates.sum_("price"),
}


def of_spark() -> list[Column]:
    """Return the same aggregates of Spark."""
    return [
        f.count(f.lit(1)).alias("rows"),
        f.count("v").alias("vs"),
        f.sum("v").alias("total"),
        f.avg("v").alias("mean"),
        f.min("s").alias("least"),
        f.max("v").alias("most"),
        f.stddev("v").alias("deviation"),
        f.sum("price").alias("price"),
    ]


def text(frame: DataFrame) -> DataFrame:
    """Return each row as a text; the last digits of a deviation may differ."""
    columns: list[str | Column] = [
        f.round(name, 6).alias(name) if kind == "double" else name for name, kind in frame.dtypes
    ]
    return frame.select(f.to_json(f.struct(*columns)).alias("text"))


def union(*frames: DataFrame) -> DataFrame:
    return reduce(DataFrame.union, map(text, frames))


class Inputs:
    """Two streams, and a query over both that continues elsewhere."""

    def __init__(self, new_stream: Callable[..., Any], folder: Path, mode: str) -> None:
        folders = [folder / name for name in ("left", "right")]
        for each in folders:
            each.mkdir()
        self.left = new_stream(folders[0], "k string, v long, s string, price decimal(10,2), ts timestamp")
        self.right = new_stream(folders[1], "r string, w long, time timestamp")
        self._mode = mode

    def add(self, *rows: tuple[str | None, int | None, int]) -> None:
        """Add a file to each stream: rows with a key, a number and a time in seconds."""
        times = [f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z" for *_, second in rows]
        self.left.add(
            {"k": k, "v": v, "s": f"s{v}", "price": None if v is None else v / 4, "ts": time}
            for (k, v, _), time in zip(rows, times, strict=True)
        )
        self.right.add(
            {"r": k, "w": v, "time": time} for (k, v, _), time in zip(rows[::2], times[::2], strict=True)
        )

    def run(self, made: DataFrame, checkpoint: Path) -> list[str]:
        """Run a query over all input; return its rows."""
        found: list[str] = []
        writer = made.writeStream.outputMode(self._mode).option("checkpointLocation", str(checkpoint))
        collect = lambda batch, epoch: found.extend(row[0] for row in batch.collect())  # noqa: E731
        writer.foreachBatch(collect).trigger(availableNow=True).start().awaitTermination()
        self.left.settle()
        return sorted(found)


@pytest.mark.long
def test_functions_continue_after_an_aggregation_a_deduplication_and_a_join(
    new_stream: Callable[..., Any], tmp_path: Path
) -> None:
    inputs = Inputs(new_stream, tmp_path, "update")

    def on_spark() -> DataFrame:
        left, right = inputs.left.frame(), inputs.right.frame()
        return union(
            left.groupBy("k").agg(*of_spark()),
            left.select("k", "v").dropDuplicates(["k", "v"]),
            left.select("k", "v")
            .join(right.select("r", "w"), f.col("k") == f.col("r"))
            .select("k", "v", "w"),
        )

    def keyed_inputs(uid: bool) -> tuple[Any, Any, Any]:
        config = {**CONFIG, "checkpoint.dir": str(tmp_path / "state")}
        own = [{"uid": name, "config": config} if uid else {} for name in ("sums", "once", "pairs")]
        left, right = inputs.left.frame(), inputs.right.frame()
        return (
            ks.keyed(left, "k", **own[0]),
            ks.keyed(left.select("k", "v"), "k", "v", **own[1]),
            ks.connect(ks.keyed(left.select("k", "v"), "k"), ks.keyed(right.select("r", "w"), "r"), **own[2]),
        )

    inputs.add(("a", 1, 1), ("b", 2, 2), ("a", 3, 3), (None, 4, 4), ("c", None, 5))
    inputs.run(on_spark(), tmp_path / "spark")
    sums, once, pairs = keyed_inputs(False)
    location = str(tmp_path / "spark")
    states = {
        0: aggregate_states(sums, AGGREGATES),
        1: deduplicate_states(once),
        2: join_states(pairs, ks.joins.join()),
    }
    uids = {0: "sums", 1: "once", 2: "pairs"}
    made = from_spark(location, tmp_path / "savepoint", states=states, uids=uids, config=CONFIG)
    made.verify()
    made.fork(tmp_path / "keyed", tmp_path / "state")
    wide = ks.connect(ks.keyed(inputs.left.frame(), "k"), ks.keyed(inputs.right.frame(), "r"))
    refused = {
        "which are not those of sum": {0: aggregate_states(sums, x=ks.aggregates.sum_("v"))},
        "is given states for dedupe": {0: deduplicate_states(once)},
        "the key of operator 0": {0: aggregate_states(ks.keyed(inputs.left.frame(), "v"), AGGREGATES)},
        "does not say which rows have found a match": {
            2: join_states(pairs, ks.joins.join("left", ttl=ks.Ttl.of("1 day")))
        },
        "have no column 's' of the type string": {2: join_states(wide, ks.joins.join())},
    }
    for message, replaced in refused.items():
        with pytest.raises(SparkStateError, match=message):
            from_spark(location, tmp_path / "no", states={**states, **replaced}, uids=uids)
    inputs.add(("a", 1, 6), ("a", 7, 7), ("b", 2, 8), (None, 4, 9), ("c", None, 10), ("d", 1, 11))
    expected = inputs.run(on_spark(), tmp_path / "spark")
    sums, once, pairs = keyed_inputs(True)
    with pytest.warns(ks.errors.UnboundedStateWarning):
        continued = union(sums.aggregate(AGGREGATES), once.deduplicate(), pairs.join().select("k", "v", "w"))
    assert inputs.run(continued, tmp_path / "keyed") == expected
    assert len(expected) > 12


@pytest.mark.long
def test_functions_continue_in_event_time(new_stream: Callable[..., Any], tmp_path: Path) -> None:
    inputs = Inputs(new_stream, tmp_path, "append")

    def watermarked() -> tuple[DataFrame, DataFrame]:
        left, right = inputs.left.frame(), inputs.right.frame()
        return (
            left.select("k", "v", "ts").withWatermark("ts", "20 seconds"),
            right.withWatermark("time", "20 seconds"),
        )

    def on_spark() -> DataFrame:
        left, right = watermarked()
        near = "k = r and time between ts and ts + interval 10 seconds"
        return union(
            left.dropDuplicatesWithinWatermark(["k"]),
            left.join(right, f.expr(near)).select("k", "v", "w"),
        )

    def keyed_inputs(uid: bool) -> tuple[Any, Any]:
        config = {**CONFIG, "checkpoint.dir": str(tmp_path / "state")}
        own = [{"uid": name, "config": config} if uid else {} for name in ("once", "pairs")]
        left, right = watermarked()
        return ks.keyed(left, "k", **own[0]), ks.connect(ks.keyed(left, "k"), ks.keyed(right, "r"), **own[1])

    inputs.add(("a", 1, 1), ("b", 2, 2), ("a", 3, 3), ("c", 4, 50))
    inputs.run(on_spark(), tmp_path / "spark")
    once, pairs = keyed_inputs(False)
    near: JoinFunction = ks.joins.interval_join("0 seconds", "10 seconds").join()
    made = from_spark(
        str(tmp_path / "spark"),
        tmp_path / "savepoint",
        states={0: deduplicate_states(once, within="20 seconds"), 1: join_states(pairs, near)},
        uids={0: "once", 1: "pairs"},
        config=CONFIG,
    )
    made.fork(tmp_path / "keyed", tmp_path / "state")
    inputs.add(("c", 5, 55), ("c", 6, 44), ("e", 7, 56), ("d", 8, 60))
    expected = inputs.run(on_spark(), tmp_path / "spark")
    once, pairs = keyed_inputs(True)
    joined = pairs.interval_join("0 seconds", "10 seconds").join()
    continued = union(once.deduplicate(within="20 seconds"), joined.select("k", "v", "w"))
    assert inputs.run(continued, tmp_path / "keyed") == expected
    assert len(expected) > 4


def visits(key: Any, frames: Any, state: Any) -> Any:
    state.update((1,))
    yield pd.DataFrame({"text": ["x"]})


def test_old_formats_and_names_of_columns_are_refused(
    new_stream: Callable[..., Any], spark: Any, tmp_path: Path
) -> None:
    inputs = Inputs(new_stream, tmp_path, "update")
    inputs.add(("a", 1, 1))
    version = "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion"
    spark.conf.set(version, "1")
    try:
        rows = inputs.left.frame()
        made = rows.groupBy("v").applyInPandasWithState(
            visits, "text string", "n long", "update", "NoTimeout"
        )
        inputs.run(made, tmp_path / "spark")
    finally:
        spark.conf.unset(version)
    location = str(tmp_path / "spark")
    with pytest.raises(SparkStateError, match="first version of Spark's state format"):
        from_spark(location, tmp_path / "savepoint")
    inputs.run(
        inputs.left.frame().withColumnRenamed("v", "value").groupBy("value").count(), tmp_path / "other"
    )
    count = ks.ValueState("count", ks.types.INT64)
    states = {0: [(count, lambda read: read())]}
    with pytest.raises(SparkStateError, match=r"operator 0 .* has the column 'value', a name that"):
        from_spark(str(tmp_path / "other"), tmp_path / "savepoint", states=states, uids={0: "counts"})
    assert not (tmp_path / "savepoint").exists()
