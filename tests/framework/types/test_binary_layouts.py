"""Bytes that Flink's serializers would have written, and bytes that none of them can have written."""

from __future__ import annotations

import datetime as dt
import enum
import math
import struct
import tracemalloc
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pytest

from keyedstate import types
from keyedstate.errors import CorruptDataError
from keyedstate.memory import DataInputView, DataOutputView
from keyedstate.types import TypeSerializer
from keyedstate.types.scalars.text import read_string, write_string

UTC = dt.timezone.utc


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclass
class Pair:
    b: Annotated[int, types.INT8]
    a: str | None


@dataclass
class Triple(Pair):
    c: Annotated[int, types.INT8]


@dataclass
class Other(Pair):
    pass


@dataclass
class Nothing:
    pass


ROW = types.row_of({"name": types.nullable(types.STRING), "count": types.INT8})
WIDE_ROW = types.row_of(
    {**{f"n{index}": types.nullable(types.INT8) for index in range(6)}, "last": types.INT8}
)
TAGGED = types.record_of(Pair, tagged=[Triple], subclasses=[types.record_of(Other, name="Other")])


def other_nan() -> float:
    value: float = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    return value


GOLDEN: list[tuple[TypeSerializer[Any], Any, str]] = [
    (types.BOOLEAN, True, "01"),
    (types.BOOLEAN, False, "00"),
    (types.INT8, -1, "ff"),
    (types.INT16, 258, "0102"),
    (types.INT32, -2, "fffffffe"),
    (types.INT64, 1, "0000000000000001"),
    (types.INT64, -(2**63), "8000000000000000"),
    (types.FLOAT32, 1.5, "3fc00000"),
    (types.FLOAT64, 1.5, "3ff8000000000000"),
    (types.FLOAT64, -0.0, "8000000000000000"),
    (types.FLOAT64, math.nan, "7ff8000000000000"),
    # DataOutput.writeDouble knows one NaN (Double.doubleToLongBits).
    (types.FLOAT64, other_nan(), "7ff8000000000000"),
    (types.STRING, "", "01"),
    (types.STRING, "a", "0261"),
    (types.STRING, "\u6d4b", "02cbda01"),
    # A surrogate pair is two units: D83D DE00.
    (types.STRING, "\U0001f600", "03bdb00380bc03"),
    (types.STRING, "\xe9", "02e901"),
    (types.BYTES, b"", "00000000"),
    (types.BYTES, b"\x00\xff", "0000000200ff"),
    (types.DATE, dt.date(1970, 1, 1), "0000000000000000"),
    (types.DATE, dt.date(1969, 12, 31), "fffffffffad9a400"),
    (types.TIMESTAMP, dt.datetime(1970, 1, 1, 0, 0, 1, 234567, UTC), "00000000000004d20008a6d8"),
    # Before 1970 the milliseconds are floored, so that the nanoseconds are positive.
    (types.TIMESTAMP, dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "ffffffffffffffff000f3e58"),
    (types.TIMESTAMP_NTZ, dt.datetime(1970, 1, 1, 0, 0, 0, 1), "0000000000000000000003e8"),
    (types.decimal(18, 2), Decimal("-1.50"), "ffffffffffffff6a"),
    (types.decimal(18, 2), Decimal("1.5"), "0000000000000096"),
    (types.decimal(19, 2), Decimal("1.50"), "000000020096"),
    (types.decimal(19, 2), Decimal("1.27"), "000000017f"),
    (types.decimal(19, 2), Decimal("-1.28"), "0000000180"),
    (types.decimal(19, 0), Decimal(0), "0000000100"),
    (types.VOID, types.VOID_NAMESPACE, "00"),
    (types.TIME_WINDOW, types.TimeWindow(-1, 258), "ffffffffffffffff0000000000000102"),
    (types.GLOBAL_WINDOW_TYPE, types.GLOBAL_WINDOW, "00"),
    (types.nullable(types.INT8), None, "01"),
    (types.nullable(types.INT8), 7, "0007"),
    (types.list_of(types.INT8), [], "00000000"),
    (types.list_of(types.INT16), [1, 2], "0000000200010002"),
    (types.set_of(types.INT16), {3}, "00000001000003"),
    (types.set_of(types.nullable(types.INT16)), {None}, "0000000101"),
    (types.map_of(types.STRING, types.INT8), {"a": 1, "b": None}, "0000000202610001026201"),
    (types.tuple_of(types.STRING, types.INT8), ("a", 1), "026101"),
    (types.tuple_of(types.nullable(types.STRING), types.INT8), (None, 1), "0101"),
    # LocalTimeSerializer: hour, minute, second, nanoseconds.
    (types.TIME, dt.time(23, 59, 58, 1), "173b3a000003e8"),
    (types.DURATION, dt.timedelta(days=-1, microseconds=1), "ffffffebe228a001"),
    (types.UUID, uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"), "00112233445566778899aabbccddeeff"),
    # EnumSerializer: the position.
    (types.enum_of(Level), Level.LOW, "00000000"),
    (types.enum_of(Level), Level.HIGH, "00000001"),
    # IntPrimitiveArraySerializer and its like: a count, then the elements.
    (types.array_of(types.INT16), np.array([1, -1], np.int16), "000000020001ffff"),
    (types.array_of(types.BOOLEAN), np.array([True, False]), "000000020100"),
    (types.array_of(types.FLOAT64), np.array([1.5]), "000000013ff8000000000000"),
    (types.array_of(types.FLOAT32), np.array([other_nan()], np.float32), "000000017fc00000"),
    (types.array_of(types.INT64), np.array([], np.int64), "00000000"),
    (types.numpy_scalar("uint16"), np.uint16(258), "0102"),
    (types.numpy_scalar("float32"), np.float32(1.5), "3fc00000"),
    (types.numpy_scalar("bool"), np.True_, "01"),
    # TimestampDataSerializer of precision 9.
    (types.pandas_timestamp(None), pd.Timestamp(1_000_001), "000000000000000100000001"),
    (types.pandas_timestamp(), pd.Timestamp(-1, tz="UTC"), "ffffffffffffffff000f423f"),
    (types.pickled(), 1, "0000000580054b012e"),
    # RowSerializer: two bits of the kind of row, a bit for each None, the fields that are there.
    (ROW, ROW.python_type(None, 1), "2001"),
    (ROW, ROW.python_type("a", 1), "00026101"),
    (WIDE_ROW, WIDE_ROW.make([None] * 6 + [7]), "3f0007"),
    (WIDE_ROW, WIDE_ROW.make([1] * 6 + [7]), "000001010101010107"),
    # PojoSerializer (SER-04): a header, then each field in the order of the names behind a null flag.
    (types.record_of(Pair), Pair(b=1, a=None), "02010001"),
    (types.record_of(Pair), Pair(b=1, a="a"), "020002610001"),
    (types.nullable(types.record_of(Pair)), None, "01"),
    (types.nullable(types.record_of(Pair)), Pair(b=1, a=None), "02010001"),
    (TAGGED, Pair(b=1, a=None), "02010001"),
    (TAGGED, Triple(b=1, a=None, c=3), "0800020100010003"),
    (TAGGED, Other(b=1, a=None), "040005" + b"Other".hex() + "02010001"),
    (types.nullable(TAGGED), None, "01"),
    (types.record_of(Nothing), Nothing(), "02"),
]


@pytest.mark.parametrize(("serializer", "value", "expected"), GOLDEN, ids=str)
def test_a_value_has_the_bytes_that_flink_writes(
    serializer: TypeSerializer[Any], value: Any, expected: str
) -> None:
    """SER-05 for strings, SER-04 for records; the layouts of reference section 1.5 for the rest."""
    data = serializer.to_bytes(value)
    assert data.hex() == expected
    back = serializer.from_bytes(data)
    assert type(back) is type(value)
    if isinstance(value, np.ndarray):
        np.testing.assert_array_equal(back, value)
    else:
        assert back == value or (back != back and value != value)


def test_no_string_is_a_zero_byte_and_refused_where_a_string_is_expected() -> None:
    """SER-05: 0 means null."""
    out = DataOutputView()
    write_string(None, out)
    assert out.to_bytes() == b"\x00"
    assert read_string(DataInputView(b"\x00")) is None
    with pytest.raises(CorruptDataError, match="no string"):
        types.STRING.from_bytes(b"\x00")


@pytest.mark.parametrize(("length", "prefix"), [(126, "7f"), (127, "8001"), (128, "8101"), (16383, "808001")])
def test_the_length_of_a_string_takes_one_more_byte_for_every_seven_bits(length: int, prefix: str) -> None:
    """SER-05: a string of length 127 needs a two-byte length."""
    data = types.STRING.to_bytes("x" * length)
    assert data[: len(data) - length].hex() == prefix


@pytest.mark.parametrize("character", ["x", "\xe9", "\u6d4b", "\uffff", "\U0001f600"])
def test_strings_longer_than_any_buffer_survive_their_bytes(character: str) -> None:
    """SER-05: lengths above 2048, with surrogate pairs."""
    text = character * 3000
    assert types.STRING.from_bytes(types.STRING.to_bytes(text)) == text


CORRUPT: list[tuple[TypeSerializer[Any], str, str]] = [
    (types.INT64, "00", "8 bytes wanted, 1 left"),
    (types.INT8, "0000", "1 bytes follow"),
    (types.BOOLEAN, "02", "a boolean is 0 or 1"),
    (types.nullable(types.INT8), "ff07", "a boolean is 0 or 1"),
    (types.VOID, "01", "byte 0"),
    (types.TIME_WINDOW, "00" * 15, "8 bytes wanted, 7 left"),
    (types.GLOBAL_WINDOW_TYPE, "01", "byte 0"),
    (types.STRING, "ffffffffff0f", "more than 32 bits"),
    (types.STRING, "ffffffff7f", "more than 32 bits"),
    (types.STRING, "0280808001", "more than 16 bits"),
    (types.STRING, "02ff", "ends too early"),
    (types.STRING, "0380b00361", "not valid UTF-16"),
    (types.STRING, "ffffffff0f61", "4294967294 UTF-16 units where 1 bytes follow"),
    (types.BYTES, "7fffffff00", "a count of 2147483647 where 1 bytes follow"),
    (types.BYTES, "ffffffff00", "a count of -1"),
    (types.list_of(types.INT8), "7fffffff00", "a count of 2147483647"),
    (types.list_of(types.VOID), "7fffffff00", "a count of 2147483647"),
    (types.list_of(types.list_of(types.INT64)), "000000017fffffff", "a count of 2147483647"),
    (types.map_of(types.INT8, types.INT8), "80000000", "a count of -2147483648"),
    (types.set_of(types.INT8), "0000000101", "a null in a set of INT8"),
    (types.DATE, "0000000000000001", "no midnight"),
    (types.DATE, "7ffffffffffffc00", "no midnight"),
    (types.TIMESTAMP, "000000000000000000000001", "no whole microseconds"),
    (types.TIMESTAMP, "00000000000000007fffff18", "no whole microseconds"),
    (types.TIMESTAMP_NTZ, "7fffffffffffffff00000000", "outside the years"),
    (types.decimal(2, 1), "0000000000000064", "more than 2 digits"),
    (types.decimal(38, 0), "00000020" + "7f" * 32, "more than 38 digits"),
    (types.TIME, "18000000000000", "a clock of microseconds"),
    (types.TIME, "00000000000001", "a clock of microseconds"),
    (types.TIME, "80800080000000", "a clock of microseconds"),
    (types.UUID, "00" * 15, "16 bytes wanted, 15 left"),
    (types.enum_of(Level), "00000002", "the constant 2 of .*Level, which has 2"),
    (types.enum_of(Level), "ffffffff", "the constant -1"),
    (types.array_of(types.INT64), "7fffffff00", "a count of 2147483647"),
    (types.array_of(types.INT64), "0000000100", "8 bytes wanted, 1 left"),
    (types.array_of(types.BOOLEAN), "0000000102", "a boolean is 0 or 1"),
    (types.numpy_scalar("bool"), "02", "a boolean is 0 or 1"),
    (types.pandas_timestamp(), "7fffffffffffffff00000000", "outside the years 1677"),
    (types.pandas_timestamp(), "0000000000000000000f4240", "outside the years 1677"),
    (types.pickled().snapshot().restore_serializer(), "7fffffff00", "a count of 2147483647"),
    (ROW, "a001", "no insertion"),
    (ROW, "2101", "more bits"),
    (ROW, "30", "no value in the field 'count'"),
    (types.record_of(Pair), "01", "has the header 1"),
    (types.record_of(Pair), "0800", "has the header 8"),
    (types.record_of(Pair), "020101", "no value in the field 'b'"),
    (types.record_of(Pair), "0202", "a boolean is 0 or 1"),
    (TAGGED, "0801", "the tag 1 of .*Pair, which has 1"),
    (TAGGED, "040003" + b"bad".hex(), "'bad' is no subclass"),
    (TAGGED, "040002c080", "no subclass"),
    (TAGGED, "040001ff", "no modified UTF-8"),
    (TAGGED, "04ffff", "65535 bytes wanted"),
    (TAGGED, "080208", "the tag 2"),
    (TAGGED, "03", "has the header 3"),
]


@pytest.mark.parametrize(("serializer", "data", "reason"), CORRUPT, ids=str)
def test_absurd_bytes_are_refused_before_anything_is_allocated_for_them(
    serializer: TypeSerializer[Any], data: str, reason: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match=reason) as raised:
            serializer.from_bytes(bytes.fromhex(data))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert 0 <= raised.value.position <= len(data) // 2


def test_a_view_reads_what_was_written_and_can_be_used_again() -> None:
    out = DataOutputView()
    for _ in range(2):
        out.write_boolean(True)
        out.write_byte(-2)
        out.write_byte(200)
        out.write_short(-3)
        out.write_int(-4)
        out.write_long(-5)
        out.write_float(0.5)
        out.write_double(0.25)
        out.write_bytes(b"abc")
        out.write_var_int(300)
        out.write(b"rest")
        assert out.position == 42
        source = DataInputView(memoryview(b"--" + out.to_bytes())[2:])
        assert source.read_boolean() is True
        assert (source.read_byte(), source.read_unsigned_byte()) == (-2, 200)
        assert (source.read_short(), source.read_int(), source.read_long()) == (-3, -4, -5)
        assert (source.read_float(), source.read_double()) == (0.5, 0.25)
        assert source.read_bytes() == b"abc"
        assert source.read_var_int() == 300
        assert source.peek(100) == b"rest"
        source.skip(1)
        assert source.remaining == 3
        assert source.read(3) == b"est"
        with pytest.raises(CorruptDataError, match="1 bytes wanted, 0 left"):
            source.read_byte()
        out.clear()
        assert out.position == 0


@pytest.mark.parametrize("value", [-1, 2**32])
def test_a_number_of_more_than_32_bits_is_no_variable_length_int(value: int) -> None:
    with pytest.raises(ValueError, match="between 0 and 4294967295"):
        DataOutputView().write_var_int(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "0000"),
        ("Ab", "00024162"),
        ("\0", "0002c080"),
        ("\xe9", "0002c3a9"),
        # Each half of a surrogate pair is a character of three bytes: modified UTF-8, not UTF-8.
        ("\U0001f600", "0006eda0bdedb880"),
    ],
)
def test_a_class_name_has_the_bytes_that_java_writes(text: str, expected: str) -> None:
    """``DataOutput.writeUTF``, as records write the names of subclasses."""
    out = DataOutputView()
    out.write_utf(text)
    assert out.to_bytes().hex() == expected
    assert DataInputView(out.to_bytes()).read_utf() == text


def test_a_string_that_java_cannot_write_with_its_length_is_refused() -> None:
    out = DataOutputView()
    out.write_utf("x" * 65_535)
    assert DataInputView(out.to_bytes()).read_utf() == "x" * 65_535
    with pytest.raises(ValueError, match="65536 bytes"):
        out.write_utf("x" * 65_536)
