"""Keys as `groupBy` takes them: names, lists, columns, expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyedstate import connect, keyed, types
from keyedstate.aggregates import count
from keyedstate.checkpoint.reading.state_reader import reader_of
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.errors import HarnessSchemaError
from keyedstate.runtime import (
    Context,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from keyedstate.savepoints import Savepoint
from keyedstate.state import BroadcastState, ValueState
from keyedstate.testing import Harness

SCHEMA = "key string, columns string, n long"


class Counts(KeyedProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield str(ctx.key), " ".join(row.as_dict()), self.n.value()


@pytest.fixture(scope="module")
def rides(spark: SparkSession) -> DataFrame:
    rows = [("Ann", 1, ("Bonn", 5)), ("ann", 2, ("Bonn", 6)), ("Bob", 1, ("Rome", 5)), (None, 1, None)]
    return spark.createDataFrame(rows, "name string, n long, place struct<city: string, zip: long>")


def last_counts(out: DataFrame) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in out.collect():
        found[row.key] = max(row.n, found.get(row.key, 0))
    return found


@pytest.mark.parametrize(
    "keys_of",
    [
        lambda: ("name",),
        lambda: (["name"],),
        lambda: (("NAME",),),
        lambda: (f.col("name"),),
        lambda: ([f.col("name")],),
        lambda: ("`name`",),
        lambda: ("place.city",),
        lambda: (f.col("place.city"),),
        lambda: (f.col("place")["city"].alias("town"),),
        lambda: (f.lower("name"),),
        lambda: (f.lower("name").alias("lower_case"),),
        lambda: (f.col("name").alias("again"),),
        lambda: ("name", "n"),
        lambda: (["n", "name"],),
        lambda: ("place.city", f.col("n") % 2),
        lambda: (f.when(f.col("n") > 1, "many").otherwise("one"), "place.zip"),
        lambda: ("place",),
    ],
)
def test_keys_are_those_of_group_by(rides: DataFrame, keys_of: Callable[[], tuple[Any, ...]]) -> None:
    """The keys that a function sees, the names of their columns and how many rows each has."""
    keys = keys_of()
    grouped = rides.groupBy(*[list(key) if isinstance(key, tuple) else key for key in keys]).count()
    *names, _ = grouped.columns
    out = keyed(rides, *keys).process(Counts(), SCHEMA)
    expected: dict[str, int] = {}
    for *key, number in grouped.collect():
        parts = [tuple(part) if isinstance(part, tuple) else part for part in key]
        expected[str(parts[0] if len(parts) == 1 else tuple(parts))] = number
    assert last_counts(out) == expected
    aggregated = keyed(rides, *keys).aggregate(rows=count())
    assert [name.lower() for name in aggregated.columns] == [*[name.lower() for name in names], "rows"]


def test_a_column_of_the_dataframe_itself_is_a_key(rides: DataFrame) -> None:
    out = keyed(rides, rides.name, rides["n"]).process(Counts(), SCHEMA)
    assert {row.columns for row in out.collect()} == {"name n place"}


def test_a_computed_key_is_a_column_of_the_rows(rides: DataFrame) -> None:
    out = keyed(rides, f.lower("name").alias("who"), "place.city").process(Counts(), SCHEMA)
    assert {row.columns for row in out.collect()} == {"name n place who city"}
    assert out.where("key = \"('ann', 'Bonn')\"").count() == 2


class Both(KeyedCoProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process1(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield str(ctx.key), " ".join(row.as_dict()), self.n.value()

    process2 = process1


def test_connected_dataframes_have_keys_of_expressions(rides: DataFrame) -> None:
    first = keyed(rides, f.upper("name"))
    second = keyed(rides.select("name"), [f.upper("name").alias("who")])
    out = connect(first, second).process(Both(), SCHEMA)
    assert last_counts(out) == {"ANN": 4, "BOB": 2, "None": 2}
    assert {row.columns for row in out.collect()} == {"name n place upper(name)", "name who"}


class Named(KeyedBroadcastProcessFunction):
    names = BroadcastState("names", types.STRING, types.STRING)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        yield str(ctx.key), self.names.get(ctx.key), 1

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        self.names.put(row.city, row.country)


def test_a_frame_with_a_broadcast_side_has_keys_of_expressions(spark: SparkSession, rides: DataFrame) -> None:
    countries = spark.createDataFrame([("Bonn", "DE"), ("Rome", "IT")], "city string, country string")
    known = rides.where("place is not null")
    out = keyed(known, f.col("place.city")).broadcast(countries).process(Named(), SCHEMA)
    assert {(row.key, row.columns) for row in out.collect()} == {("Bonn", "DE"), ("Rome", "IT")}


def test_a_bootstrap_has_keys_of_expressions(rides: DataFrame, tmp_path: Any) -> None:
    frame = keyed(rides, f.lower("name").alias("who"), uid="op", config={"parallelism": 2})
    Savepoint.new().add(frame, Counts()).write(tmp_path / "by-function")
    values = rides.groupBy(f.lower("name").alias("who")).agg(f.count("*").alias("value"))
    of_state = keyed(values.select(f.struct("who").alias("k"), "value"), "k.who", uid="op")
    Savepoint.new().add_state(of_state, ValueState("n", types.INT64)).write(tmp_path / "by-rows")
    for folder in ("by-function", "by-rows"):
        assert stored(tmp_path / folder) == {"ann": 2, "bob": 1, None: 1}


def stored(path: Any) -> dict[Any, int]:
    reader = reader_of(OperatorSnapshot.open(path, "op"), "n")
    rows = [row for piece in reader.slices() for batch in reader.read(piece) for row in batch.to_pylist()]
    return {row["who"]: row["value"] for row in rows}


def test_a_streaming_query_keeps_state_by_an_expression(stream: Any, one_backend: str) -> None:
    def counts() -> DataFrame:
        config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": one_backend}
        rows = keyed(stream.frame(), f.upper("k"), f.col("v") % 2, uid="counts", config=config)
        return rows.process(Counts(), SCHEMA)

    stream.add([{"k": "a", "v": 1}, {"k": "A", "v": 3}, {"k": "a", "v": 2}])
    stream.run(counts())
    stream.add([{"k": "a", "v": 5}])
    stream.run(counts())
    assert [n for key, _, n in stream.all_rows() if key == "('A', 1)"] == [1, 2, 3]


def test_the_harness_takes_the_same_names() -> None:
    rides = "name string, place struct<city: string, zip: long>"
    for key in ("place.city", ["place.city"]):
        with Harness(Counts(), key=key, schema=rides, output=SCHEMA) as harness:
            made = harness.process_all([("Ann", ("Bonn", 5)), ("Bob", ("Bonn", 6)), ("Cid", None)])
        assert made == [
            ("Bonn", "name place city", 1),
            ("Bonn", "name place city", 2),
            ("None", "name place city", 1),
        ]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("place.street", "no field of a struct"),
        ("name.first", "no field of a struct"),
        (["place.city", "place.city"], "named twice"),
        ("place.name", "as a column of the rows is"),
        (5, "what Spark would compute"),
    ],
)
def test_the_harness_refuses_what_is_no_key(key: Any, said: str) -> None:
    schema = "name string, place struct<city: string, name: string>"
    with pytest.raises(HarnessSchemaError, match=said):
        Harness(Counts(), key=key, schema=schema, output=SCHEMA)
