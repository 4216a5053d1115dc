"""Normalized keys order values as Python does, once nulls, NaN and constants of enums have their places."""

from __future__ import annotations

import datetime as dt
import decimal as pydecimal
import enum
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate import types
from keyedstate.errors import ColumnTypeError, UnknownEnumConstantError, UnorderedTypeError, ValueTypeError
from keyedstate.memory.sorting.index_sort import sorted_places
from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.types import TypeSerializer
from keyedstate.types.orders import MAX_KEY_BYTES, ColumnOrder

COMMON = settings(deadline=None, derandomize=True, max_examples=60)
UTC = dt.timezone.utc


class Color(enum.Enum):
    RED = 3
    GREEN = "g"
    BLUE = 1


@dataclass
class Visit:
    user: str
    seconds: float
    color: Color | None = None


@dataclass(frozen=True)
class Ordered:
    """A type with an order, its values, and what Python compares instead of a value."""

    serializer: TypeSerializer[Any]
    values: st.SearchStrategy[Any]
    model: Callable[[Any], Any] = lambda value: value

    def __repr__(self) -> str:
        return repr(self.serializer)


def float_model(value: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(value) else (False, value + 0.0)


def integers(bits: int, low: int | None = None) -> st.SearchStrategy[int]:
    low = -(2 ** (bits - 1)) if low is None else low
    return st.integers(low, low + 2**bits - 1) | st.integers(max(low, -2), 2)


def decimals(precision: int, scale: int) -> Ordered:
    wide = pydecimal.Context(prec=80)
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1) | st.integers(-2, 2)
    return Ordered(
        types.decimal(precision, scale),
        unscaled.map(lambda number: wide.scaleb(pydecimal.Decimal(number), -scale)),
    )


#: Few characters, among them those that end a prefix or need an escape: many texts begin alike, also with
#: as many bytes as a normalized key has, or a sort of whole keys compares in words.
BEGINNINGS = st.sampled_from(["", "", "aaaaaaa", "a" * 70])
TEXT = st.builds(str.__add__, BEGINNINGS, st.text("a\0\u0001\u00ff\U0001f600", max_size=5))
BYTES = st.builds(
    bytes.__add__, BEGINNINGS.map(str.encode), st.lists(st.sampled_from([0, 1, 255]), max_size=5).map(bytes)
)
WINDOWS = st.tuples(integers(64), integers(64)).map(lambda ends: types.TimeWindow(*ends))

SCALARS = [
    Ordered(types.BOOLEAN, st.booleans()),
    Ordered(types.INT8, integers(8)),
    Ordered(types.INT16, integers(16)),
    Ordered(types.INT32, integers(32)),
    Ordered(types.INT64, integers(64)),
    Ordered(types.FLOAT32, st.floats(width=32), float_model),
    Ordered(types.FLOAT64, st.floats(), float_model),
    Ordered(types.STRING, TEXT, str.encode),
    Ordered(types.BYTES, BYTES),
    Ordered(types.UUID, st.uuids()),
    Ordered(types.DATE, st.dates()),
    Ordered(types.TIMESTAMP, st.datetimes(timezones=st.just(UTC))),
    Ordered(types.TIMESTAMP_NTZ, st.datetimes()),
    Ordered(types.TIME, st.times()),
    Ordered(types.DURATION, st.timedeltas(dt.timedelta(-(10**8)), dt.timedelta(10**8))),
    decimals(9, 2),
    decimals(18, 18),
    decimals(38, 5),
    Ordered(types.enum_of(Color), st.sampled_from(Color), list(Color).index),
    Ordered(types.numpy_scalar("uint64"), integers(64, 0).map(np.uint64), int),
    Ordered(types.numpy_scalar("int16"), integers(16).map(np.int16), int),
    Ordered(types.numpy_scalar("bool"), st.booleans().map(np.bool_), bool),
    Ordered(types.numpy_scalar("float32"), st.floats(width=32).map(np.float32), float_model),
    Ordered(types.pandas_timestamp(None), integers(62).map(pd.Timestamp)),
    Ordered(types.TIME_WINDOW, WINDOWS),
    Ordered(types.VOID, st.just(types.VOID_NAMESPACE), lambda value: 0),
]  # fmt: skip


def nullable(inner: Ordered) -> Ordered:
    return Ordered(
        types.nullable(inner.serializer),
        st.none() | inner.values,
        lambda value: () if value is None else (inner.model(value),),
    )


def tuple_of(*fields: Ordered) -> Ordered:
    return Ordered(
        types.tuple_of(*[field.serializer for field in fields]),
        st.tuples(*[field.values for field in fields]),
        lambda value: tuple(field.model(part) for field, part in zip(fields, value, strict=True)),
    )


NULLABLE = [nullable(one) for one in SCALARS[:-1]]
NESTED = st.recursive(
    st.sampled_from(SCALARS + NULLABLE),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda fields: tuple_of(*fields)),
    max_leaves=5,
)


INSTANT = pa.timestamp("us", "UTC")


def order_of(order: ColumnOrder, columns: list[pa.Array]) -> list[int]:
    """Return the places of the rows in their order, as a sorter gets it."""
    keys = order.normalized_keys(columns)
    assert keys.length == order.key_bytes <= MAX_KEY_BYTES
    return sorted_places(
        keys, lambda places: order.whole_keys([column.take(pa.array(places)) for column in columns])
    ).tolist()


def check_order(ordered: Ordered, values: list[Any]) -> None:
    model = list(map(ordered.model, values))
    column = ordered.serializer.to_arrow(values)
    for columns in ([column], [pa.chunked_array([column.slice(0, 1), column.slice(1)])]):
        assert order_of(ColumnOrder([ordered.serializer]), columns) == sorted(
            range(len(values)), key=model.__getitem__
        )
    # Equal values keep their order, also in the descending order.
    assert order_of(ColumnOrder([ordered.serializer], [True]), [column]) == sorted(
        range(len(values)), key=model.__getitem__, reverse=True
    )


@pytest.mark.parametrize("ordered", SCALARS, ids=repr)
@COMMON
@given(data=st.data())
def test_keys_of_a_scalar_type_have_the_order_of_its_values(ordered: Ordered, data: st.DataObject):
    check_order(ordered, data.draw(st.lists(ordered.values, max_size=12)))


@pytest.mark.parametrize("ordered", NULLABLE, ids=repr)
@COMMON
@given(data=st.data())
def test_none_comes_first_and_last_in_the_descending_order(ordered: Ordered, data: st.DataObject):
    check_order(ordered, data.draw(st.lists(ordered.values, max_size=12)))


@settings(COMMON, max_examples=300)
@given(data=st.data())
def test_the_first_field_of_a_tuple_that_differs_decides(data: st.DataObject):
    ordered = data.draw(NESTED)
    check_order(ordered, data.draw(st.lists(ordered.values, max_size=12)))


@COMMON
@given(st.lists(st.tuples(TEXT, st.integers(-2, 2)), max_size=12))
def test_each_column_of_an_order_has_its_own_direction(rows: list[tuple[str, int]]):
    texts = types.STRING.to_arrow([text for text, _ in rows])
    numbers = types.INT64.to_arrow([number for _, number in rows])
    order = ColumnOrder([types.INT64, types.STRING], [True, False])
    expected = sorted(range(len(rows)), key=lambda place: (-rows[place][1], rows[place][0].encode()))
    assert order_of(order, [numbers, texts]) == expected


def test_a_zero_at_the_end_of_a_text_is_compared_before_the_next_part():
    texts = ["aaaaaaab", "aaaaaaab\0"]
    column = types.STRING.to_arrow(texts)
    assert order_of(ColumnOrder([types.STRING], [True]), [column]) == [1, 0]
    # Without the end of the text, the number's first byte would be that which follows a zero in a text.
    numbers = types.INT64.to_arrow([2**63 - 1, 0])
    assert order_of(ColumnOrder([types.STRING, types.INT64]), [column, numbers]) == [0, 1]


@COMMON
@given(data=st.data())
def test_equal_normalized_keys_that_decide_are_of_equal_values(data: st.DataObject):
    ordered = data.draw(NESTED)
    values = data.draw(st.lists(ordered.values, min_size=2, max_size=12))
    keys = ordered.serializer.normalized_keys(ordered.serializer.to_arrow(values))
    assert keys.length == ordered.serializer.normalized_key_bytes
    if ordered.serializer.normalized_key_decides:
        assert keys.prefix_only is None
    prefix_only = [False] * len(values) if keys.prefix_only is None else keys.prefix_only.tolist()
    for key, value, open_ in zip(keys.data, values, prefix_only, strict=True):
        for other, compared in zip(keys.data, values, strict=True):
            if not open_ and bytes(key) == bytes(other):
                assert ordered.model(value) == ordered.model(compared)


@COMMON
@given(st.lists(st.builds(Visit, TEXT, st.floats(), st.none() | st.sampled_from(Color)), max_size=12))
def test_records_and_rows_are_compared_field_by_field(visits: list[Visit]):
    record = types.record_of(Visit)

    def model(visit: Visit) -> Any:
        color = () if visit.color is None else (list(Color).index(visit.color),)
        return visit.user.encode(), float_model(visit.seconds), color

    check_order(Ordered(record, st.nothing(), model), visits)
    row = types.row_of(dict(zip(record.names, record.field_serializers, strict=True)))  # type: ignore[attr-defined]
    rows = [row.python_type(visit.user, visit.seconds, visit.color) for visit in visits]
    check_order(Ordered(row, st.nothing(), lambda one: model(Visit(*one))), rows)


def test_a_short_text_is_decided_by_its_key_and_a_long_one_is_not():
    keys = types.STRING.normalized_keys(pa.array(["", "seven b", "eight by"]))
    assert keys.prefix_only is not None
    assert keys.prefix_only.tolist() == [False, False, True]


def test_negative_zero_has_the_key_of_zero_and_each_nan_the_same_last_one():
    # With another payload, and one that signals.
    others = np.frombuffer(b"\x01\0\0\0\0\0\xf8\xff\x01\0\0\0\0\0\xf0\x7f", "<f8")
    column = pa.array(np.concatenate([[-0.0, 0.0, math.nan, math.inf], others]), from_pandas=False)
    with np.errstate(all="raise"):
        keys = [bytes(key) for key in types.FLOAT64.normalized_keys(column).data]
    assert keys[0] == keys[1] < keys[3] < keys[2] == keys[4] == keys[5]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([3, 1, 2], pa.timestamp("s", "Europe/Berlin")),
        pa.chunked_array([pa.array([3, 1], INSTANT), pa.array([2], INSTANT)]),
        pa.array([3, 1, 2], pa.timestamp("ms", "UTC")).dictionary_encode(),
    ],
    ids=["another unit", "chunks", "a dictionary"],
)  # fmt: skip
def test_other_columns_that_a_type_reads_have_keys_too(column: pa.Array):
    assert order_of(ColumnOrder([types.TIMESTAMP]), [column]) == [1, 2, 0]


@pytest.mark.parametrize("large", [pa.large_string(), pa.string()])
def test_a_slice_of_a_column_has_the_keys_of_its_own_values(large: pa.DataType):
    column = pa.array(["zz", "b", "", "a"], large)
    assert order_of(ColumnOrder([types.STRING]), [column[1:]]) == [1, 2, 0]
    structs = pa.array([("z", 9), ("b", 1), ("a", 2)], pa.struct([("f0", large), ("f1", pa.int64())]))
    assert order_of(ColumnOrder([types.tuple_of(types.STRING, types.INT64)]), [structs[1:]]) == [1, 0]


@pytest.mark.parametrize(
    "serializer",
    [
        types.list_of(types.INT64),
        types.set_of(types.INT64),
        types.map_of(types.STRING, types.INT64),
        types.array_of(types.INT64),
        types.pickled(),
        types.tuple_of(types.INT64, types.list_of(types.INT64)),
        types.nullable(types.pickled()),
        types.TtlSerializer(types.INT64, "processing-time"),
    ],
    ids=repr,
)
def test_a_type_without_an_order_is_refused_by_name(serializer: TypeSerializer[Any]):
    assert serializer.normalized_key_bytes is None
    with pytest.raises(UnorderedTypeError, match="have no order to sort by"):
        serializer.normalized_keys(pa.nulls(0, serializer.arrow_type))
    with pytest.raises(UnorderedTypeError, match=repr(serializer).split("(")[0]):
        ColumnOrder([serializer])


def test_columns_that_are_not_of_the_type_are_refused():
    with pytest.raises(ColumnTypeError, match="INT64"):
        types.INT64.normalized_keys(pa.array(["1"]))
    with pytest.raises(ColumnTypeError, match="TIMESTAMP"):
        types.TIMESTAMP.whole_keys(pa.array([2**62], pa.timestamp("s", "UTC")))
    with pytest.raises(ValueTypeError, match=r"nullable\(INT64\)"):
        types.INT64.normalized_keys(pa.array([1, None]))
    with pytest.raises(UnknownEnumConstantError, match="YELLOW"):
        types.enum_of(Color).normalized_keys(pa.array(["RED", "YELLOW"]))


def test_a_uuid_has_the_order_of_its_number():
    assert types.UUID.whole_keys(types.UUID.to_arrow([uuid.UUID(int=7)])).to_pylist() == [bytes(15) + b"\7"]


def test_inverted_keys_keep_what_is_only_a_prefix():
    keys = NormalizedKeys(np.zeros((1, 2), np.uint8), np.ones(1, np.bool_)).inverted()
    assert keys.data.tolist() == [[255, 255]]
    assert keys.prefix_only is not None and keys.prefix_only.all()
