"""Bytes that Flink's serializers would have written, and bytes that none of them can have written."""

from __future__ import annotations

import datetime as dt
import math
import struct
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest

from keyedstate import types
from keyedstate.memory import DataInputView, DataOutputView
from keyedstate.types import CorruptDataError, TypeSerializer
from keyedstate.types.text import read_string, write_string

UTC = dt.timezone.utc

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
    (types.FLOAT64, struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0], "7ff8000000000000"),
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
    (types.nullable(types.INT8), None, "01"),
    (types.nullable(types.INT8), 7, "0007"),
    (types.list_of(types.INT8), [], "00000000"),
    (types.list_of(types.INT16), [1, 2], "0000000200010002"),
    (types.set_of(types.INT16), {3}, "00000001000003"),
    (types.set_of(types.nullable(types.INT16)), {None}, "0000000101"),
    (types.map_of(types.STRING, types.INT8), {"a": 1, "b": None}, "0000000202610001026201"),
    (types.tuple_of(types.STRING, types.INT8), ("a", 1), "026101"),
    (types.tuple_of(types.nullable(types.STRING), types.INT8), (None, 1), "0101"),
]


@pytest.mark.parametrize(("serializer", "value", "expected"), GOLDEN, ids=str)
def test_a_value_has_the_bytes_that_flink_writes(
    serializer: TypeSerializer[Any], value: Any, expected: str
) -> None:
    """SER-05 for strings; the layouts of reference section 1.5 for the rest."""
    data = serializer.to_bytes(value)
    assert data.hex() == expected
    back = serializer.from_bytes(data)
    assert back == value or (back != back and value != value)


def test_no_string_is_a_zero_byte_and_refused_where_a_string_is_expected() -> None:
    """SER-05: 0 stands for null."""
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
