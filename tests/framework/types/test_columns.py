"""The columnar representation: encodings that readers meet, and conversions that must not happen silently."""

from __future__ import annotations

import datetime as dt
import enum
import pickle
import subprocess
import sys
import textwrap
import threading
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from keyedstate import types
from keyedstate.errors import (
    ColumnSizeError,
    ColumnTypeError,
    CorruptDataError,
    UnknownEnumConstantError,
    UnsupportedTypeError,
    ValueTypeError,
)
from keyedstate.types import TypeSerializer
from keyedstate.types.contract.arrow_columns import offsets_of


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Size(enum.Enum):
    RED = 1


@dataclass
class Click:
    url: str
    count: int | None


@dataclass
class NamedClick(Click):
    name: str


ROW = types.row_of({"a": types.INT64, "b": types.nullable(types.STRING)})
UTC = dt.timezone.utc
NOON = dt.datetime(2024, 1, 1, 12)


def test_a_dictionary_column_is_read_as_its_values() -> None:
    array = pa.array(["b", "a", None, "b"]).dictionary_encode()
    assert types.STRING.from_arrow(array) == ["b", "a", None, "b"]
    assert types.STRING.from_arrow(array[1:]) == ["a", None, "b"]
    assert types.STRING.from_arrow(array[3:]) == ["b"]
    with_null_value = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
    assert types.STRING.from_arrow(with_null_value) == ["a", None, None]
    assert types.nullable(types.STRING).from_arrow(array) == ["b", "a", None, "b"]
    chunks = pa.chunked_array([array, pa.array(["z"]).dictionary_encode()])
    assert types.STRING.from_arrow(chunks) == ["b", "a", None, "b", "z"]


def test_mutable_values_of_a_dictionary_column_are_not_shared() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array([[1, 2]]))
    first, second = types.list_of(types.INT64).from_arrow(array)
    assert first == second == [1, 2]
    assert first is not second


def test_a_dictionary_column_inside_a_struct_is_read() -> None:
    names = pa.array(["a", None]).dictionary_encode()
    array = pa.StructArray.from_arrays([names, pa.array([1, 2])], names=["name", "count"])
    serializer = types.tuple_of(types.nullable(types.STRING), types.INT64)
    assert serializer.from_arrow(array) == [("a", 1), (None, 2)]


@pytest.mark.parametrize(
    ("serializer", "array", "expected"),
    [
        (types.STRING, pa.array(["a"], pa.large_string()), ["a"]),
        (types.BYTES, pa.array([b"a"], pa.large_binary()), [b"a"]),
        (types.list_of(types.INT64), pa.array([[1], None], pa.large_list(pa.int64())), [[1], None]),
        (
            types.TIMESTAMP,
            pa.array([NOON], pa.timestamp("us", "America/New_York")),
            [NOON.replace(tzinfo=UTC)],
        ),
        (types.TIMESTAMP, pa.array([NOON, None], pa.timestamp("s", "UTC")), [NOON.replace(tzinfo=UTC), None]),
        (types.TIMESTAMP_NTZ, pa.array([NOON], pa.timestamp("ms")), [NOON]),
        (types.INT64, pa.nulls(2), [None, None]),
        (types.INT64, pa.nulls(0), []),
        (types.VOID, pa.nulls(2), [types.VOID_NAMESPACE] * 2),
        (types.GLOBAL_WINDOW_TYPE, pa.nulls(2), [types.GLOBAL_WINDOW] * 2),
        (
            types.TIME_WINDOW,
            types.TIME_WINDOW.to_arrow([types.TimeWindow(1, 2), None, types.TimeWindow(3, 4)])[1:],
            [None, types.TimeWindow(3, 4)],
        ),
        (types.INT64, pa.chunked_array([], pa.int64()), []),
        (types.tuple_of(types.INT64), pa.array([{"any name": 1}]), [(1,)]),
        (types.TIME, pa.array([dt.time(1, 2, 3)], pa.time64("ns")), [dt.time(1, 2, 3)]),
        (types.TIME, pa.array([dt.time(1, 2, 3), None], pa.time32("s")), [dt.time(1, 2, 3), None]),
        (types.DURATION, pa.array([-5, None], pa.duration("s")), [dt.timedelta(seconds=-5), None]),
        (
            types.enum_of(Color),
            pa.array(["RED", None, "RED"]).dictionary_encode(),
            [Color.RED, None, Color.RED],
        ),
        (types.enum_of(Color), pa.array(["BLUE"], pa.large_string()), [Color.BLUE]),
        (
            types.pandas_timestamp("Asia/Tokyo"),
            pa.array([NOON, None], pa.timestamp("ms", "UTC")),
            [pd.Timestamp(NOON, tz="UTC").tz_convert("Asia/Tokyo"), None],
        ),
        # Fields of rows and records are found by their names.
        (ROW, pa.array([{"b": "x", "a": 1}, None]), [ROW.make((1, "x")), None]),
        (types.record_of(Click), pa.array([{"count": 2, "url": "x"}]), [Click("x", 2)]),
        (types.pickled(), pa.array([pickle.dumps([1])], pa.large_binary()), [[1]]),
    ],
    ids=str,
)
def test_columns_that_spark_and_other_writers_make_are_read(
    serializer: TypeSerializer[Any], array: pa.Array, expected: list[Any]
) -> None:
    assert serializer.from_arrow(array) == expected


@pytest.mark.parametrize(
    ("serializer", "array"),
    [
        (types.INT64, pa.array([1], pa.int32())),
        (types.INT64, pa.array([1.0])),
        (types.FLOAT64, pa.array([1.0], pa.float32())),
        (types.STRING, pa.array([b"a"])),
        (types.BYTES, pa.array(["a"])),
        (types.DATE, pa.array([NOON])),
        (types.TIMESTAMP, pa.array([NOON])),
        (types.TIMESTAMP_NTZ, pa.array([NOON], pa.timestamp("us", "UTC"))),
        (types.TIMESTAMP_NTZ, pa.array([NOON], pa.timestamp("ns"))),
        (types.decimal(4, 2), pa.array([Decimal("1.00")], pa.decimal128(5, 2))),
        (types.VOID, pa.array([1])),
        (types.list_of(types.INT64), pa.array([[1.0]])),
        (types.map_of(types.STRING, types.INT64), pa.array([{"a": 1}])),
        (types.tuple_of(types.INT64), pa.array([{"a": 1, "b": 2}])),
        (types.INT64, pa.array(["a"]).dictionary_encode()),
        (types.TIME, pa.array([dt.timedelta(1)])),
        (types.TIME, pa.array([1], pa.time64("ns"))),
        (types.DURATION, pa.array([1], pa.duration("ns"))),
        (types.UUID, pa.array([b"a"])),
        (types.UUID, pa.array([b"a"], pa.binary(1))),
        (types.enum_of(Color), pa.array([1])),
        (types.array_of(types.INT64), pa.array([[1]], pa.list_(pa.int32()))),
        (types.numpy_scalar("uint8"), pa.array([1], pa.int8())),
        (types.pandas_timestamp(None), pa.array([NOON], pa.timestamp("us", "UTC"))),
        (types.pandas_timestamp(), pa.array([NOON])),
        (ROW, pa.array([{"a": 1}])),
        (ROW, pa.array([{"a": 1, "b": "x", "c": 1}])),
        (types.record_of(Click), pa.array([{"url": "x", "counts": 1}])),
        (types.record_of(Click, tagged=[NamedClick]), pa.array([{"url": "x", "count": 1}])),
        (types.pickled(), pa.array(["a"])),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_refused_with_both_types_named(
    serializer: TypeSerializer[Any], array: pa.Array
) -> None:
    with pytest.raises(ColumnTypeError) as raised:
        serializer.from_arrow(array)
    assert raised.value.given in str(raised.value)
    assert "Cast the column" in str(raised.value)


def test_nulls_inside_of_values_that_are_not_nullable_are_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="nulls in the column of the elements"):
        types.list_of(types.INT64).from_arrow(pa.array([[1, None]]))
    with pytest.raises(CorruptDataError, match="nulls in the column of the field 1"):
        types.tuple_of(types.INT64, types.INT64).from_arrow(pa.array([{"a": 1, "b": None}]))

    with pytest.raises(CorruptDataError, match="nulls in the column of the elements of array_of"):
        types.array_of(types.INT64).from_arrow(pa.array([[1, None]]))
    with pytest.raises(CorruptDataError, match="nulls in the column of the field 'a'"):
        ROW.from_arrow(pa.array([{"a": None, "b": "x"}], ROW.arrow_type))
    with pytest.raises(CorruptDataError, match="nulls in the column of the field 'url'"):
        types.record_of(Click).from_arrow(pa.array([{"url": None, "count": 1}], pa.struct(CLICK_FIELDS)))


CLICK_FIELDS = [("url", pa.string()), ("count", pa.int64())]


def test_a_record_of_no_class_or_of_two_is_corrupt() -> None:
    serializer = types.record_of(Click, tagged=[NamedClick])
    click, named = {"url": "x", "count": 1}, {"url": "x", "count": 1, "name": "n"}
    for fault in ({"Click": None, "NamedClick": None}, {"Click": click, "NamedClick": named}):
        with pytest.raises(CorruptDataError, match="exactly one class"):
            serializer.from_arrow(pa.array([{"Click": click}, fault], serializer.arrow_type))


@pytest.mark.parametrize("values", [["RED", "REDD"], ["REDD"]])
def test_a_name_that_no_constant_has_is_refused_with_the_closest_one(values: list[str]) -> None:
    with pytest.raises(
        UnknownEnumConstantError, match=r"'REDD' is no constant of .*Color.*Did you mean 'RED'"
    ) as raised:
        types.enum_of(Color).from_arrow(pa.array(values))
    assert raised.value.constant == "REDD"


@pytest.mark.parametrize(
    ("serializer", "array", "reason"),
    [
        (types.TIME, pa.array([86_400_000_000]).cast(pa.time64("us")), "beyond 24 hours"),
        (types.TIME, pa.array([-1]).cast(pa.time64("us")), "beyond 24 hours"),
        (types.pandas_timestamp(), pa.array([10**12], pa.timestamp("s", "UTC")), "of another century"),
        (types.pandas_timestamp(), pa.array([-(2**63)]).cast(pa.timestamp("ns", "UTC")), "no timestamp"),
    ],
    ids=str,
)
def test_times_that_python_has_not_are_corrupt(
    serializer: TypeSerializer[Any], array: pa.Array, reason: str
) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        serializer.from_arrow(array)


def test_arrays_that_are_read_can_be_changed_and_share_nothing() -> None:
    serializer = types.array_of(types.INT64)
    column = serializer.to_arrow([np.array([1, 2]), None, np.array([3])])
    first, _, second = serializer.from_arrow(column)
    for array in (first, second, serializer.from_bytes(serializer.to_bytes(np.array([1])))):
        assert array is not None and array.base is None
        array[0] = 99
    assert column.to_pylist() == [[1, 2], None, [3]]


def test_the_value_of_a_null_slot_is_not_read() -> None:
    under = pa.array([1, None, 3])
    structs = pa.StructArray.from_arrays([under], names=["f0"], mask=pa.array([False, True, False]))
    assert types.tuple_of(types.INT64).from_arrow(structs) == [(1,), None, (3,)]
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), under, mask=pa.array([False, True, False])
    )
    assert types.list_of(types.INT64).from_arrow(lists) == [[1], None, [3]]
    arrays = types.array_of(types.INT64).from_arrow(lists)
    assert [None if array is None else array.tolist() for array in arrays] == [[1], None, [3]]
    serializer = types.record_of(Click, tagged=[NamedClick])
    clicks = types.record_of(Click).to_arrow([Click("a", 1), Click("b", 2)])
    nothing = pa.nulls(2, types.record_of(NamedClick).arrow_type)
    records = pa.StructArray.from_arrays(
        [clicks, nothing], names=["Click", "NamedClick"], mask=pa.array([False, True])
    )
    assert serializer.from_arrow(records) == [Click("a", 1), None]


@pytest.mark.parametrize(
    ("serializer", "values"),
    [
        # pyarrow alone would write 1, 1.0, infinity, b"a", the date of the datetime, and UTC's wall clock.
        (types.INT64, [1, 1.5]),
        (types.INT64, [1, Decimal("1.5")]),
        (types.FLOAT64, [1, 2]),
        (types.FLOAT64, [1.0, 2]),
        (types.BOOLEAN, [True, np.bool_(True)]),
        (types.FLOAT32, [1.0, 1e300]),
        (types.STRING, ["a", b"a"]),
        (types.DATE, [dt.date(2024, 1, 1), NOON]),
        (types.TIMESTAMP_NTZ, [NOON.replace(tzinfo=UTC)]),
        (types.TIMESTAMP, [NOON.replace(tzinfo=UTC), NOON]),
        (types.DATE, [3]),
        (types.VOID, [0]),
        (types.TIME_WINDOW, [(0, 1)]),
        (types.GLOBAL_WINDOW_TYPE, [types.VOID_NAMESPACE]),
        (types.INT64, [True, True]),
        (types.INT64, [2**63]),
        (types.INT8, [1, 300]),
        (types.STRING, ["\ud800"]),
        (types.decimal(4, 2), [Decimal("1.234")]),
        (types.list_of(types.STRING), [["a"], "bc"]),
        (types.list_of(types.INT64), [[1], [1.5]]),
        (types.tuple_of(types.INT64), [(1,), (1, 2)]),
        # The zone would be dropped, the seconds cut, the array rounded, the name written as it is.
        (types.TIME, [dt.time(1), dt.time(1, tzinfo=UTC)]),
        (types.TIME, [NOON]),
        (types.DURATION, [dt.timedelta(1), dt.timedelta.max]),
        (types.UUID, [uuid.UUID(int=1), b"0" * 16]),
        (types.enum_of(Color), [Color.RED, "BLUE"]),
        (types.enum_of(Color), [Size.RED]),
        (types.array_of(types.INT64), [np.array([1]), np.array([1.5])]),
        (types.array_of(types.FLOAT32), [np.array([1e300])]),
        (types.numpy_scalar("int64"), [np.int64(1), 2]),
        (types.numpy_scalar("float32"), [np.float64(1e300)]),
        (types.pandas_timestamp(None), [pd.Timestamp(NOON), pd.Timestamp(NOON, tz="UTC")]),
        (types.pandas_timestamp(None), [NOON]),
        (ROW, [ROW.make((1, "x")), (1, "x")]),
        (types.record_of(Click), [Click("x", 1), NamedClick("x", 1, "y")]),
        (types.record_of(Click), [Click("x", 1.5)]),
        (types.record_of(Click, tagged=[NamedClick]), [None, Click("x", 1), "x"]),
        pytest.param(types.pickled(), ["a", threading.Lock()], id="pickled()-a lock"),
    ],
    ids=str,
)
def test_values_that_pyarrow_would_bend_are_refused_with_their_row(
    serializer: TypeSerializer[Any], values: list[Any]
) -> None:
    with pytest.raises(ValueTypeError) as raised:
        serializer.to_arrow(values)
    assert not serializer.is_value(values[raised.value.row or 0])


def test_values_for_which_pyarrow_ends_the_process_are_refused() -> None:
    """``pa.array([np.datetime64(...), np.int64(4)])`` ends the process, so this is in one of its own."""
    code = textwrap.dedent("""
        import numpy as np
        from keyedstate import types
        from keyedstate.errors import ValueTypeError

        day, number = np.datetime64("2024-01-01"), np.int64(4)
        shapes = [
            (lambda part: part, lambda value: value),
            (types.nullable, lambda value: value),
            (types.list_of, lambda value: [value]),
            (types.set_of, lambda value: {value}),
            (lambda part: types.tuple_of(types.INT64, part), lambda value: (1, value)),
            (lambda part: types.row_of({"a": part}), lambda value: types.row_of({"a": part}).make((value,))),
            (lambda part: types.map_of(types.STRING, part), lambda value: {"a": value}),
            (lambda part: types.map_of(part, types.STRING), lambda value: {value: "a"}),
        ]
        for part in (types.INT8, types.INT64, types.FLOAT32, types.FLOAT64, types.STRING, types.BYTES):
            for whole, shaped in shapes:
                for values in ([day, number], [(day, number)]):
                    try:
                        whole(part).to_arrow(list(map(shaped, values)))
                    except ValueTypeError as error:
                        assert error.row == 0, error
                    else:
                        raise AssertionError((part, values))
        print("all are refused")
    """)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "all are refused\n"), done.stderr


@pytest.mark.parametrize(
    ("serializer", "array"),
    [
        (types.DATE, pa.array([0, 2932897], pa.int32()).cast(pa.date32())),
        (types.TIMESTAMP_NTZ, pa.array([None, 253402300800], pa.timestamp("s"))),
        (types.TIMESTAMP, pa.array([-(2**63)], pa.int64()).cast(pa.timestamp("us", "UTC"))),
        (types.TIMESTAMP, pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("s", "UTC"))),
        (types.TIMESTAMP_NTZ, pa.array([-(2**62)], pa.int64()).cast(pa.timestamp("ms"))),
        (types.TIMESTAMP_NTZ, pa.array([-62135596801], pa.timestamp("s"))),
    ],
    ids=str,
)
def test_years_that_python_has_not_are_refused(serializer: TypeSerializer[Any], array: pa.Array) -> None:
    with pytest.raises(ValueTypeError, match="of the years 1 to 9999"):
        serializer.from_arrow(array)


@pytest.mark.parametrize("unit", ["s", "ms"])
@pytest.mark.parametrize("number", [2**62, -(2**62)])
def test_durations_beyond_64_bits_of_microseconds_are_refused(unit: str, number: int) -> None:
    array = pa.array([0, number], pa.int64()).cast(pa.duration(unit))
    with pytest.raises(ValueTypeError, match=f"at most 292,000 years.*got int {number}. So many {unit} are"):
        types.DURATION.from_arrow(array)


@pytest.mark.parametrize(("unit", "factor"), [("s", 10**6), ("ms", 1000), ("us", 1)])
def test_times_and_durations_of_coarser_units_are_read(unit: str, factor: int) -> None:
    numbers = [0, None, 5, -7, (2**63 - 1) // factor]
    column = pa.array(numbers, pa.int64()).cast(pa.duration(unit))
    assert types.DURATION.from_arrow(column) == [
        None if number is None else dt.timedelta(microseconds=number * factor) for number in numbers
    ]
    seconds = [-62135596800, None, 0, 253402300799]
    instants = pa.array(seconds, pa.timestamp("s")).cast(pa.timestamp(unit))
    assert types.TIMESTAMP_NTZ.from_arrow(instants) == [
        None if second is None else dt.datetime(1970, 1, 1) + dt.timedelta(seconds=second)
        for second in seconds
    ]


def test_the_first_and_the_last_instant_are_read() -> None:
    ends = [dt.datetime.min, None, dt.datetime.max]
    assert types.TIMESTAMP_NTZ.from_arrow(types.TIMESTAMP_NTZ.to_arrow(ends)) == ends
    days = [dt.date.min, None, dt.date.max]
    assert types.DATE.from_arrow(types.DATE.to_arrow(days)) == days


def test_a_timestamp_column_is_read_with_pythons_own_utc() -> None:
    [value] = types.TIMESTAMP.from_arrow(pa.array([NOON], pa.timestamp("us", "Asia/Tokyo")))
    assert value is not None
    assert value.tzinfo is dt.timezone.utc


def test_more_elements_than_an_array_addresses_are_refused() -> None:
    with pytest.raises(ColumnSizeError, match=r"4,294,967,294.*Convert fewer values"):
        offsets_of([2**31 - 1, 2**31 - 1], 2, types.list_of(types.INT64))


@pytest.mark.parametrize(
    ("arrow_type", "expected"),
    [
        (pa.bool_(), types.BOOLEAN),
        (pa.int8(), types.INT8),
        (pa.int16(), types.INT16),
        (pa.int32(), types.INT32),
        (pa.int64(), types.INT64),
        (pa.float32(), types.FLOAT32),
        (pa.float64(), types.FLOAT64),
        (pa.string(), types.STRING),
        (pa.large_string(), types.STRING),
        (pa.binary(), types.BYTES),
        (pa.date32(), types.DATE),
        (pa.timestamp("us", "Europe/Berlin"), types.TIMESTAMP),
        (pa.timestamp("us"), types.TIMESTAMP_NTZ),
        (pa.time64("ns"), types.TIME),
        (pa.duration("us"), types.DURATION),
        (pa.decimal128(20, 3), types.decimal(20, 3)),
        (pa.dictionary(pa.int8(), pa.string()), types.STRING),
        (
            pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())]),
            types.tuple_of(types.INT64, types.nullable(types.STRING)),
        ),
    ],
    ids=str,
)
def test_a_key_column_has_the_serializer_of_its_type(
    arrow_type: pa.DataType, expected: TypeSerializer[Any]
) -> None:
    assert types.from_arrow_type(arrow_type) == expected
    assert expected.from_arrow(pa.nulls(2, arrow_type)) == [None, None]


@pytest.mark.parametrize(
    ("arrow_type", "way_out"),
    [
        (pa.list_(pa.int64()), "Use a struct"),
        (pa.map_(pa.string(), pa.int64()), "Use a struct"),
        (pa.struct([("a", pa.list_(pa.int64()))]), "Use a struct"),
        (pa.struct([]), "Cast the column"),
        (pa.uint8(), "signed integer"),
        (pa.timestamp("ns"), "microseconds"),
        (pa.time32("ms"), "Cast the column"),
        (pa.decimal256(50, 2), "Cast the column"),
        (pa.null(), "Cast the column"),
    ],
    ids=str,
)
def test_a_column_that_cannot_be_a_key_is_refused_with_a_way_out(
    arrow_type: pa.DataType, way_out: str
) -> None:
    with pytest.raises(UnsupportedTypeError, match=way_out):
        types.from_arrow_type(arrow_type)
