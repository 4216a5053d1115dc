"""Output rows become Arrow batches of the declared schema, or an error that says which value does not fit."""

from __future__ import annotations

import datetime as dt
import enum
import pickle
from collections import namedtuple
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keyedstate.errors import OutputRowError, OutputSchemaError, OutputTypeError
from keyedstate.runtime.output import OutputSchema

UTC = dt.timezone.utc
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
MAP = pa.map_(pa.string(), pa.int64())
TAGS = pa.list_(pa.string())


class Colour(enum.IntEnum):
    RED = 3


def schema(**types: pa.DataType) -> OutputSchema:
    return OutputSchema(pa.schema([pa.field(name, type_) for name, type_ in types.items()]))


def one_column(type_: pa.DataType, values: list[Any]) -> list[Any]:
    batch = schema(x=type_).to_batch([(value,) for value in values])
    batch.validate(full=True)
    return batch.column(0).to_pylist()


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.int64(), [1, None, -(2**63), 2**63 - 1]),
        (pa.int8(), [-128, 127]),
        (pa.float64(), [1.5, None, float("inf")]),
        (pa.bool_(), [True, False, None]),
        (pa.string(), ["", "ä\U0001f600", None]),
        (pa.binary(), [b"", b"\x00\xff", None]),
        (pa.decimal128(10, 2), [Decimal("1.20"), None]),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        (pa.timestamp("us"), [dt.datetime(2020, 1, 1, 5), None]),
        (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, 5, tzinfo=UTC), None]),
        (pa.time64("ns"), [dt.time(1, 2, 3)]),
        (pa.duration("us"), [dt.timedelta(days=-1)]),
        (pa.null(), [None, None]),
        (TAGS, [["a", None], [], None]),
        (pa.list_(pa.list_(pa.int64())), [[[1], [], None], None]),
        (STRUCT, [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
        (pa.list_(STRUCT), [[{"a": 1, "b": "x"}], []]),
    ],
    ids=str,
)
def test_values_of_the_declared_type_come_back_as_they_were(type_: pa.DataType, values: list[Any]) -> None:
    assert one_column(type_, values) == values


@pytest.mark.parametrize(
    ("type_", "given", "expected"),
    [
        (pa.int64(), np.int32(7), 7),
        (pa.int64(), Colour.RED, 3),
        (pa.float64(), 2, 2.0),
        (pa.float64(), np.float32(0.5), 0.5),
        (pa.bool_(), np.bool_(True), True),
        (pa.decimal128(10, 2), 3, Decimal("3.00")),
        (pa.binary(), bytearray(b"x"), b"x"),
        (TAGS, ("a", "b"), ["a", "b"]),
        (TAGS, np.array(["a"]), ["a"]),
        (pa.list_(pa.int64()), [1, np.int64(2)], [1, 2]),
        (STRUCT, (1, "x"), {"a": 1, "b": "x"}),
        (STRUCT, {"b": "x", "a": np.int64(1)}, {"a": 1, "b": "x"}),
        (MAP, {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        (MAP, {}, []),
        (
            pa.timestamp("us", "UTC"),
            dt.datetime(2020, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            dt.datetime(2020, 1, 1, tzinfo=UTC),
        ),
    ],
    ids=str,
)
def test_kindred_values_are_taken_over_without_loss(type_: pa.DataType, given: Any, expected: Any) -> None:
    # Beside a plain None, so that both the quick and the careful way are used.
    assert one_column(type_, [None, given]) == [None, expected]


@pytest.mark.parametrize(
    ("type_", "value", "path"),
    [
        (pa.int64(), 1.0, "x"),
        (pa.int64(), "1", "x"),
        (pa.int64(), True, "x"),
        (pa.int64(), 2**63, "x"),
        (pa.int32(), 2**31, "x"),
        (pa.float64(), True, "x"),
        (pa.float64(), 2**53 + 1, "x"),
        (pa.bool_(), 1, "x"),
        (pa.string(), b"a", "x"),
        (pa.string(), 1, "x"),
        (pa.string(), "\ud800", "x"),
        (pa.binary(), "a", "x"),
        (pa.decimal128(10, 2), 1.5, "x"),
        (pa.decimal128(10, 2), Decimal("1.234"), "x"),
        (pa.decimal128(10, 2), Decimal("NaN"), "x"),
        (pa.date32(), dt.datetime(2020, 1, 1), "x"),
        (pa.date32(), np.datetime64("2020-01-01", "us"), "x"),
        (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1), "x"),
        (pa.timestamp("us"), dt.datetime(2020, 1, 1, tzinfo=UTC), "x"),
        (pa.timestamp("us"), dt.date(2020, 1, 1), "x"),
        (pa.null(), 1, "x"),
        (TAGS, "abc", "x"),
        (TAGS, {"a"}, "x"),
        (TAGS, ["a", 1], "x.element"),
        (pa.list_(pa.int64()), [1.5], "x.element"),
        (pa.list_(pa.list_(pa.int64())), [[1], ["a"]], "x.element.element"),
        (STRUCT, {"a": 1}, "x"),
        (STRUCT, {"a": 1, "b": "x", "c": 1}, "x"),
        (STRUCT, (1,), "x"),
        (STRUCT, {"a": "1", "b": "x"}, "x.a"),
        (STRUCT, [1, "x"], "x"),
        (MAP, {"a": "1"}, "x.value"),
        (MAP, {None: 1}, "x.key"),
        (MAP, [("a", 1)], "x"),
    ],
    ids=repr,
)
def test_a_wrong_value_is_refused_with_column_type_and_key(type_: pa.DataType, value: Any, path: str) -> None:
    rows = [("first", None), ("second", value)]
    with pytest.raises(OutputTypeError) as caught:
        schema(k=pa.string(), x=type_).to_batch(rows, lambda row: f"key of row {row}")
    error = caught.value
    assert error.column == path
    assert error.key == "key of row 1"
    for fact in (repr(path), error.expected, error.given, "'key of row 1'"):
        assert fact in str(error)


def test_the_error_names_the_culprit_and_not_the_whole_nested_value() -> None:
    with pytest.raises(OutputTypeError) as caught:
        schema(x=TAGS).to_batch([(["a"],), (["b", 7],)])
    assert caught.value.given == "int 7"
    assert caught.value.expected == "string (str)"


def test_none_is_refused_by_a_column_that_is_not_nullable() -> None:
    strict = OutputSchema(pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    with pytest.raises(OutputTypeError) as caught:
        strict.to_batch([(1,), (None,)])
    assert caught.value.expected == "int64 not null (int)"
    assert strict.to_batch([(1,)]).schema.field("x").nullable is False


@pytest.mark.parametrize(
    "row",
    [
        ("a", 1),
        ["a", 1],
        {"n": 1, "k": "a"},
        namedtuple("Other", "k n")("a", 1),
    ],
    ids=lambda row: type(row).__name__,
)
def test_tuples_lists_dicts_and_named_tuples_are_rows(row: Any) -> None:
    batch = schema(k=pa.string(), n=pa.int64()).to_batch([("z", 0), row])
    assert batch.to_pylist() == [{"k": "z", "n": 0}, {"k": "a", "n": 1}]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("a",), "has 1 value(s)"),
        (("a", 1, 2), "has 3 value(s)"),
        ((), "has 0 value(s)"),
        ({"k": "a"}, "lacks the column(s) 'flights'"),
        ({"k": "a", "flihgts": 1}, "the unknown column 'flihgts' (Did you mean 'flights'?)"),
        ("ab", "is a str and no row"),
        (None, "is a NoneType and no row"),
        (5, "is a int and no row"),
        ({"a"}, "is a set and no row"),
    ],
    ids=repr,
)
def test_a_row_without_exactly_the_declared_columns_is_refused(row: Any, said: str) -> None:
    with pytest.raises(OutputRowError) as caught:
        schema(k=pa.string(), flights=pa.int64()).to_batch([("z", 0), row], lambda index: ("N1", index))
    assert caught.value.key == ("N1", 1)
    assert said in str(caught.value)
    assert "k, flights" in str(caught.value)


def test_no_rows_make_an_empty_batch_of_the_schema() -> None:
    output = schema(k=pa.string(), s=STRUCT)
    batch = output.to_batch([])
    assert batch.num_rows == 0
    assert batch.schema == output.schema


def test_a_huge_value_is_cut_in_the_message() -> None:
    with pytest.raises(OutputTypeError) as caught:
        schema(x=pa.int64()).to_batch([("y" * 1_000_000,)], lambda row: "k" * 1_000_000)
    assert len(str(caught.value)) < 1_000
    assert len(caught.value.given) < 200


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([], "no column"),
        ([("a", pa.int64()), ("a", pa.string())], "'a' appears 2 times"),
        ([("a", pa.month_day_nano_interval())], "'a' has the type month_day_nano_interval"),
        ([("a", pa.struct([("b", pa.int64()), ("b", pa.int64())]))], "two of one name"),
    ],
)
def test_a_schema_that_rows_cannot_be_checked_against_is_refused(fields: list[Any], said: str) -> None:
    with pytest.raises(OutputSchemaError, match=said):
        OutputSchema(pa.schema(fields))


def test_schema_and_errors_survive_pickling() -> None:
    output = pickle.loads(pickle.dumps(schema(x=pa.int64())))
    assert output.to_batch([(1,)]).to_pylist() == [{"x": 1}]
    with pytest.raises(OutputTypeError) as caught:
        output.to_batch([("1",)], lambda row: 5)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.column, copy.key, str(copy)) == ("x", 5, str(caught.value))
