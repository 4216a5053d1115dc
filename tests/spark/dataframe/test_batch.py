"""The same call on a batch DataFrame: it begins without state, and keeps none."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyedstate import keyed, types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ValueState

#: One column of each type that can be a key: its DDL type and two keys, each in all the ways to write it.
KEYS: dict[str, tuple[str, list[Any], list[Any]]] = {
    "boolean": ("boolean", [True], [False]),
    "byte": ("byte", [-128], [127]),
    "short": ("short", [-5], [5]),
    "int": ("int", [-5], [2**31 - 1]),
    "long": ("long", [-5], [2**63 - 1]),
    "float": ("float", [float("nan"), -math.nan], [0.0, -0.0]),
    "double": ("double", [float("nan"), -math.nan], [0.0, -0.0]),
    "string": ("string", [""], ["ä\U0001f600"]),
    "binary": ("binary", [b""], [b"\x00\xff"]),
    "date": ("date", [dt.date(1, 1, 1)], [dt.date(2013, 1, 1)]),
    "timestamp": ("timestamp", [dt.datetime(2013, 1, 1, 5)], [dt.datetime(1960, 1, 1, 5, 6, 7, 89)]),
    "timestamp_ntz": ("timestamp_ntz", [dt.datetime(2013, 1, 1, 5)], [dt.datetime(1960, 1, 1, 5, 6, 7, 89)]),
    "decimal": ("decimal(20,2)", [Decimal("1.5"), Decimal("1.50")], [Decimal("-7")]),
    "struct": ("struct<a:int,b:string>", [(1, None)], [(1, "x")]),
}


class Count(KeyedProcessFunction):
    """Numbers the rows of each key."""

    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield row.id, self.n.value(), repr(ctx.key)


class Yields(KeyedProcessFunction):
    """Yields what it was made with."""

    def __init__(self, output: Any) -> None:
        self.output = output

    def process(self, row: Any, ctx: Context) -> Iterator[Any]:
        yield self.output


def numbered(frame: DataFrame, backend: str, *keys: str, **options: object) -> list[Any]:
    config = {"backend": backend, "parallelism": 3, **options}
    return keyed(frame, *keys, config=config).process(Count(), "id long, n long, key string").collect()


def test_running_counts_equal_spark_s_own_group_by(spark: SparkSession, backend_name: str) -> None:
    frame = spark.range(0, 5_000, 1, 3).withColumn("k", f.concat(f.lit("key "), f.col("id") % 97))
    rows = numbered(frame, backend_name, "k")
    assert len(rows) == 5_000
    found = {}
    for row in rows:
        found.setdefault(row.key, []).append(row.n)
    expected = {repr(row.k): row["count"] for row in frame.groupBy("k").count().collect()}
    assert {key: sorted(numbers) for key, numbers in found.items()} == {
        key: list(range(1, count + 1)) for key, count in expected.items()
    }


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_are_distinguished_as_by_group_by(
    spark: SparkSession, one_backend: str, kind: str
) -> None:
    """NaN is one key and so are both zeros; null is a key like any other."""
    ddl, first, second = KEYS[kind]
    values = [*first, *second, None, *first, None]
    frame = spark.createDataFrame(list(enumerate(values)), f"id long, k {ddl}").repartition(2)
    last = {row.key: row.n for row in sorted(numbered(frame, one_backend, "k"), key=lambda row: row.n)}
    expected = sorted([2 * len(first), len(second), 2])
    assert sorted(last.values()) == expected
    assert last["None"] == 2
    assert sorted(row["count"] for row in frame.groupBy("k").count().collect()) == expected


def test_several_key_columns_make_a_tuple_in_which_each_part_may_be_null(
    spark: SparkSession, one_backend: str
) -> None:
    rows = [
        (n, f"k{n % 3}" if n % 3 else None, n % 2 if n % 5 else None, dt.date(2013, 1, 1)) for n in range(60)
    ]
    frame = spark.createDataFrame(rows, "id long, s string, i int, d date")
    last = {
        row.key: row.n for row in sorted(numbered(frame, one_backend, "i", "s", "d"), key=lambda row: row.n)
    }
    expected = {
        repr((row.i, row.s, row.d)): row["count"] for row in frame.groupBy("i", "s", "d").count().collect()
    }
    assert last == expected
    assert repr((None, None, dt.date(2013, 1, 1))) in last


def test_rows_of_a_key_keep_their_order_and_have_no_key_group_column(
    spark: SparkSession, one_backend: str
) -> None:
    class Columns(KeyedProcessFunction):
        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            yield row.id, ",".join(row.as_dict())

    frame = spark.range(0, 30_000, 1, 1).withColumn("k", f.lit("one key"))
    out = keyed(frame, "k", config={"backend": one_backend}).process(Columns(), "id long, columns string")
    rows = out.collect()
    assert [row.id for row in rows] == list(range(30_000))
    assert {row.columns for row in rows} == {"id,k"}


def test_no_rows_in_give_no_rows_out(spark: SparkSession, one_backend: str) -> None:
    assert numbered(spark.range(5).where("id > 7"), one_backend, "id") == []
    assert numbered(spark.createDataFrame([], "id long"), one_backend, "id") == []


def test_state_does_not_survive_a_batch(spark: SparkSession, one_backend: str) -> None:
    frame = spark.range(5)
    for _ in range(2):
        assert {row.n for row in numbered(frame, one_backend, "id")} == {1}


def test_a_batch_result_may_be_looked_at_in_part_coalesced_and_put_behind_others(
    spark: SparkSession, one_backend: str
) -> None:
    frame = spark.range(0, 50, 1, 2)
    out = keyed(frame, "id", config={"backend": one_backend, "parallelism": 3}).process(
        Count(), "id long, n long, key string"
    )
    assert len(out.take(3)) == 3
    assert out.coalesce(1).count() == 50
    other = frame.select("id", f.lit(1).cast("long"), f.lit("x"))
    assert sorted(row.id for row in other.union(out).collect()) == sorted(2 * list(range(50)))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            ("N1", "1"),
            "OutputTypeError: the output column 'n' is declared as int64 (int), but for the key 7 the",
        ),
        (("N1", 1.0), "function gave float 1.0"),
        (("N1",), "OutputRowError: the output row ('N1',) for the key 7 has 1 value(s)"),
        ({"k": "N1", "nn": 1}, "has the unknown column 'nn'"),
        ({"k": "N1"}, "lacks the column(s) 'n'"),
        ("N1", "is a str and no row"),
        ((1, 2), "the output column 'k' is declared as string (str)"),
    ],
    ids=repr,
)
def test_an_output_that_is_not_of_the_declared_schema_is_refused_with_its_key(
    spark: SparkSession, one_backend: str, output: Any, said: str
) -> None:
    frame = spark.range(7, 8)
    out = keyed(frame, "id", config={"backend": one_backend}).process(Yields(output), "k string, n long")
    with pytest.raises(PythonException) as caught:
        out.collect()
    assert said in str(caught.value)


def test_outputs_of_every_type_arrive_in_spark(spark: SparkSession, one_backend: str) -> None:
    utc = dt.timezone.utc
    given = {
        "b": True,
        "i": 2**31 - 1,
        "x": 1.5,
        "s": "ä\U0001f600",
        "y": b"\x00\xff",
        "d": dt.date(2013, 1, 1),
        "t": dt.datetime(2013, 1, 1, 5, 6, 7, 89, utc),
        "u": dt.datetime(2013, 1, 1, 5, 6, 7, 89),
        "m": Decimal("1.50"),
        "a": ["x", None],
        "o": {"k": 1},
        "r": {"p": 1, "q": None},
        "nothing": None,
    }
    schema = (
        "b boolean, i int, x double, s string, y binary, d date, t timestamp, u timestamp_ntz, "
        "m decimal(10,2), a array<string>, o map<string,long>, r struct<p:int,q:string>, nothing string"
    )
    out = keyed(spark.range(1), "id", config={"backend": one_backend}).process(Yields(given), schema)
    (row,) = out.withColumn("t", f.date_format("t", "yyyy-MM-dd HH:mm:ss.SSSSSS")).collect()
    assert row.asDict(recursive=True) == given | {"t": "2013-01-01 05:06:07.000089"}


def test_a_function_that_the_workers_cannot_import_says_how_to_send_it(
    spark: SparkSession, one_backend: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that only the driver finds, as one that was not sent along with --py-files."""
    (tmp_path / "only_on_the_driver.py").write_text(
        "from keyedstate.runtime import KeyedProcessFunction\n"
        "class Nothing(KeyedProcessFunction):\n"
        "    def process(self, row, ctx): return []\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_on_the_driver

    out = keyed(spark.range(1), "id", config={"backend": one_backend}).process(
        only_on_the_driver.Nothing(), "k long"
    )
    with pytest.raises(PythonException) as caught:
        out.collect()
    assert "FunctionTransportError" in str(caught.value)
    assert "the function Nothing cannot be loaded in a Spark task: ModuleNotFoundError" in str(caught.value)
    assert "--py-files" in str(caught.value)
