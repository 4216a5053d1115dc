"""Warnings: rows that change when a batch runs again, and queries without a checkpoint location."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyedstate import keyed
from keyedstate.errors import ExactlyOnceWarning
from keyedstate.runtime import Context, KeyedProcessFunction


class Copy(KeyedProcessFunction):
    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        yield (row.v,)


def built(stream: Any, rows: DataFrame, uid: str, key: str = "k") -> DataFrame:
    config = {"checkpoint.dir": str(stream.state), "parallelism": 1, "backend": "nested-map"}
    return keyed(rows, key, uid=uid, config=config).process(Copy(), "v long")


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("uuid", lambda df: df.withColumn("id", f.expr("uuid()")), "the column 'id' is made by uuid()"),
        (
            "rand",
            lambda df: df.withColumn("id", (f.rand() * 8).cast("int")).select("*"),
            "'id' is made by rand()",
        ),
        ("filter", lambda df: df.where(f.rand() < 2).withColumn("id", f.col("k")), "restart: rand() gives"),
        (
            "udf",
            lambda df: df.withColumn("id", f.udf(lambda: "x").asNondeterministic()()),
            "'id' is made by <lambda>()",
        ),
    ],
)
def test_rows_that_change_when_a_batch_runs_again_are_warned_of_once(
    stream: Any, name: str, make: Any, said: str
) -> None:
    rows = make(stream.frame())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        built(stream, rows, f"random-{name}", "id")
        built(stream, rows, f"random-{name}", "id")
    (warning,) = (one for one in caught if one.category is ExactlyOnceWarning)
    assert f"the rows of the operator 'random-{name}'" in str(warning.message)
    assert said in str(warning.message)
    assert warning.filename == __file__


def test_deterministic_rows_are_not_warned_of(stream: Any) -> None:
    rows = stream.frame().withColumn("id", f.sha2("k", 256)).withColumn("at", f.current_timestamp())
    with warnings.catch_warnings():
        warnings.simplefilter("error", ExactlyOnceWarning)
        built(stream, rows.withColumn("file", f.input_file_name()), "same", "id")
        # Nor is a batch DataFrame, which keeps no state.
        built(stream, stream.spark.range(3).withColumn("v", f.col("id")).withColumn("k", f.rand()), "none")


@pytest.mark.parametrize("located", [True, False])
def test_a_query_without_checkpoint_location_is_warned_of_once(
    stream: Any, tmp_path: Path, located: bool
) -> None:
    stream.add([{"k": "a", "v": 1}])
    stream.add([{"k": "a", "v": 2}])
    out = built(stream, stream.frame(), "located" if located else "lost")
    writer = out.writeStream.format("noop").trigger(availableNow=True)
    if located:
        writer = writer.option("checkpointLocation", str(tmp_path / "temporary-views"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ExactlyOnceWarning)
        writer.start().awaitTermination()
        stream.settle()
    said = [str(warning.message) for warning in caught if warning.category is ExactlyOnceWarning]
    assert len(said) == (0 if located else 1)
    assert all("the query of the operator 'lost' has no checkpointLocation" in text for text in said)
