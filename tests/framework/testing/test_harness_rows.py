"""How the columns of rows are declared, and what happens to rows that do not have them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keyedstate import types
from keyedstate.columns.declared import arrow_schema
from keyedstate.errors import HarnessSchemaError, InputRowError
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.testing import Harness


class Echo(KeyedProcessFunction):
    """Yields every row as it came."""

    def process(self, row, ctx):
        yield tuple(row)


@pytest.fixture
def echo():
    made: list[Harness] = []

    def make(schema: Any, **arguments: Any) -> Harness:
        harness = Harness(Echo(), **{"key": "user", "schema": schema, "output": schema, **arguments})
        made.append(harness)
        return harness

    yield make
    for harness in made:
        harness.close()


SAME = [
    "user string, n long",
    "user: string NOT NULL, n: BIGINT COMMENT 'how many'",
    {"user": types.STRING, "n": types.INT64},
    {"user": str, "n": int},
    {"user": pa.string(), "n": pa.int64()},
    pa.schema([("user", pa.string()), ("n", pa.int64())]),
]


@pytest.mark.parametrize("schema", SAME, ids=str)
def test_columns_are_declared_in_any_of_the_usual_ways(echo, schema):
    assert echo(schema).process_all([("ann", 1), {"n": 2, "user": "bob"}]) == [("ann", 1), ("bob", 2)]


def test_the_string_has_every_type_that_rows_have_in_spark():
    text = """
        a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h string, i binary, j date,
        k timestamp, l timestamp_ntz, m decimal(12, 2), n decimal, o array<int>, p map<string, array<long>>,
        q struct<x: int NOT NULL, `y z` struct<w: string>>, `r``,s` varchar(3), t decimal(5) not null
    """
    assert arrow_schema(text) == pa.schema(
        [
            ("a", pa.bool_()),
            ("b", pa.int8()),
            ("c", pa.int16()),
            ("d", pa.int32()),
            ("e", pa.int64()),
            ("f", pa.float32()),
            ("g", pa.float64()),
            ("h", pa.string()),
            ("i", pa.binary()),
            ("j", pa.date32()),
            ("k", pa.timestamp("us", "UTC")),
            ("l", pa.timestamp("us")),
            ("m", pa.decimal128(12, 2)),
            ("n", pa.decimal128(10, 0)),
            ("o", pa.list_(pa.field("element", pa.int32()))),
            ("p", pa.map_(pa.string(), pa.list_(pa.field("element", pa.int64())))),
            (
                "q",
                pa.struct(
                    [
                        pa.field("x", pa.int32(), nullable=False),
                        ("y z", pa.struct([("w", pa.string())])),
                    ]
                ),
            ),
            ("r`,s", pa.string()),
            pa.field("t", pa.decimal128(5, 0), nullable=False),
        ]
    )


def test_nested_values_of_a_row_can_be_put_out_again(echo):
    schema = "user string, counts map<string, long>, places array<struct<x: int, names: array<string>>>"
    row = ("ann", {"a": 1, "b": None}, [{"x": 1, "names": ["b"]}, None])
    (out,) = echo(schema).process(row)
    assert (out.counts, out.places) == ({"a": 1, "b": None}, [(1, ["b"]), None])


class Keep(KeyedProcessFunction):
    """Keeps every row on itself."""

    def open(self, ctx):
        self.rows = []

    def process(self, row, ctx):
        self.rows.append(row)


def test_values_of_every_type_reach_the_function():
    schema = (
        "user string, flag boolean, small tinyint, ratio double, raw binary, day date, at timestamp, "
        "wall timestamp_ntz, price decimal(12, 2), tags array<string>, counts map<string, long>, "
        "place struct<x: int, name: string>"
    )
    instant = dt.datetime(2024, 2, 29, 12, 30, 1, 5, dt.timezone.utc)
    values = (
        "ann", True, -5, 0.5, b"\x00", dt.date(2024, 2, 29), instant, instant.replace(tzinfo=None),
        Decimal("1.50"), ["a", None], {"a": 1}, {"x": 1, "name": None},
    )  # fmt: skip
    nulls = ("ann", *[None] * 11)
    with Harness(Keep(), key="user", schema=schema, output="n long") as harness:
        harness.process_all([values, nulls])
        row, none = harness.instances[0].function.rows
    assert row[:10] == values[:10]
    assert (row.counts, row.place.x, row.place) == ({"a": 1}, 1, (1, None))
    assert none == nulls


def test_numbers_of_numpy_are_taken_where_they_are_plain_numbers(echo):
    assert echo("user long, x double").process((np.int64(7), np.float64(0.5))) == [(7, 0.5)]


@pytest.mark.parametrize(
    ("row", "column", "message"),
    [
        ({"usr": "ann", "n": 1}, None, r"row 1 .*unknown column 'usr' \(Did you mean 'user'\?\)"),
        ({"user": "ann"}, None, r"row 1 .*lacks the column\(s\) 'n'"),
        (("ann",), None, r"row 1 .*has 1 value\(s\)"),
        ("ann", None, r"row 1 .*is a str and no row"),
        (None, None, r"row 1 .*is a NoneType and no row"),
        (("ann", "1"), "n", r"row 1 .*str '1' in the column 'n', which takes int64 \(int\)"),
        (("ann", True), "n", r"row 1 .*bool True in the column 'n'"),
        (("ann", 2**63), "n", r"row 1 .*int 9223372036854775808 in the column 'n'"),
        ((7, 1), "user", r"row 1 .*int 7 in the column 'user'"),
        (("ann", 1.0), "n", r"row 1 .*float 1.0 in the column 'n'"),
    ],
)
def test_a_row_with_a_wrong_column_or_type_is_refused(echo, row, column, message):
    harness = echo("user string, n long")
    with pytest.raises(InputRowError, match=message) as caught:
        harness.process_all([("ann", 1), row, ("bob", 1)])
    assert (caught.value.row, caught.value.column) == (1, column)
    assert harness.outputs == []


def test_none_in_a_not_null_column_is_refused_with_its_path(echo):
    with pytest.raises(InputRowError, match="column 'n', which takes int64 not null"):
        echo("user string, n long not null").process(("ann", None))
    with pytest.raises(InputRowError, match=r"column 'tags\.element'"):
        echo("user string, tags array<string>").process(("ann", ["a", 1]))
    with pytest.raises(InputRowError, match="a datetime with a time zone is needed"):
        echo("user string, at timestamp").process(("ann", dt.datetime(2024, 1, 1)))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("", "it has no column"),
        ("user", "it ends where the type of 'user' was expected"),
        ("user string,", "it ends where the name of a column was expected"),
        ("user strnig", "the column 'user' has the type 'strnig', which is not known here"),
        ("user string n long", "'n' was not expected"),
        ("user string not", "'not' was not expected"),
        ("user array<string", "'>' was expected at its end"),
        ("user array string", "'<' was expected and not 'string'"),
        ("user map<string>", "',' was expected and not '>'"),
        ("user struct<>", "the struct column 'user' has no field"),
        ("user decimal(39, 2)", "precision should be between 1 and 38"),
        ("user decimal(a)", "'a' is no number"),
        ("user decimal(1, 2, 3)", r"'\)' was expected and not ','"),
        ("user string; n long", "'; n long' was not expected"),
        (", string", "',' is no name of a column"),
        ("user string, user long", "the column 'user' appears 2 times"),
        ({}, "it has no column"),
        ({"user": "strnig"}, "the column 'user'"),
        ({1: types.STRING}, "1 is no name of a column"),
        ({"user": pa.uint64(), "month": pa.month_day_nano_interval()}, "'month' has the type"),
        (["user"], "it is a list"),
        (None, "it is a NoneType"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(echo, schema, reason):
    with pytest.raises(HarnessSchemaError, match=reason) as caught:
        echo(schema)
    assert caught.value.argument == "schema"
    with pytest.raises(HarnessSchemaError, match=reason) as caught:
        echo("user string", output=schema)
    assert caught.value.argument == "output"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("usr", r"'usr' is none of the columns user, tags, counts\. Did you mean 'user'"),
        ([], "it names no column"),
        (["user", "user"], "the column 'user' is named twice"),
        ("tags", "the column 'tags': .*no hash"),
        (["user", "counts"], "the column 'counts': .*no hash"),
        (["user", 3], r"it is \['user', 3\]"),
    ],
    ids=str,
)
def test_a_key_that_cannot_be_used_is_refused_with_the_reason(echo, key, reason):
    with pytest.raises(HarnessSchemaError, match=reason) as caught:
        echo("user string, tags array<string>, counts map<string, int>", key=key)
    assert caught.value.argument == "key"


def test_the_name_of_the_key_group_column_is_refused(echo):
    with pytest.raises(HarnessSchemaError, match="__keyedstate_key_group"):
        echo("user string, __keyedstate_key_group int")


def test_a_large_call_is_one_batch_for_one_instance(echo):
    harness = echo("user string, n long")
    rows = [(f"user-{number % 1000}", number) for number in range(50_000)]
    assert harness.process_all(rows) == rows


def test_values_stay_with_their_rows_where_the_rows_go_to_several_instances(echo):
    """A part of a batch begins at an offset in every column, nested ones too."""
    schema = (
        "user string, n long, flag boolean, price decimal(10, 2), at timestamp, tags array<string>, "
        "counts map<string, long>, place struct<x: long, names: array<string>>"
    )
    instant = dt.datetime(2024, 2, 29, tzinfo=dt.timezone.utc)
    rows = [
        (
            f"user-{n}", n, n % 3 == 0, Decimal(n), instant + dt.timedelta(hours=n), [f"tag-{n}"] * (n % 4),
            {f"key-{n}": n}, (n, [f"name-{n}"] * (n % 3)),
        )
        if n % 5
        else (f"user-{n}", *[None] * 7)
        for n in range(60)
    ]  # fmt: skip
    assert echo(schema, parallelism=5).process_all(rows) == rows
