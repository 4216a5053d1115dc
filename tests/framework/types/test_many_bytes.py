"""Bytes of many values at once are those of each value by itself."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from keyedstate import types
from keyedstate.errors import CorruptDataError, ValueTypeError
from keyedstate.memory import DataOutputView
from keyedstate.testing.contract.suites.golden import TYPES, same

COLUMNS: dict[str, tuple[types.TypeSerializer[Any], list[Any]]] = {
    **{name: (type_, [value, value]) for name, (type_, value) in TYPES.items()},
    "longs": (types.INT64, [0, -1, 2**63 - 1, -(2**63), 255]),
    "bytes of a number": (types.INT8, [0, -128, 127]),
    "short texts": (types.STRING, ["", "a", "x" * 126]),
    "texts of one byte more": (types.STRING, ["", "x" * 127, "x" * 128, "x" * 20_000]),
    "texts beyond ASCII": (types.STRING, ["", "a", "\u00e9", "\U0001f600", "\x7f", "\x80"]),
    "nullable texts": (types.nullable(types.STRING), ["a", None, ""]),
    "nullable texts without null": (types.nullable(types.STRING), ["a", "\u00e9"]),
    "nullable numbers": (types.nullable(types.INT32), [1, None, -1]),
    "nullable rows": (types.nullable(types.tuple_of(types.INT32)), [(1,), None]),
    "none": (types.INT64, []),
    "lists of numbers": (types.list_of(types.INT16), [[], [1], [-(2**15), 2**15 - 1], list(range(300))]),
    "lists of fractions": (types.list_of(types.FLOAT64), [[0.5, -0.0], [float("inf"), 1.0]]),
    "maps of numbers": (
        types.map_of(types.INT64, types.INT32),
        [{}, {1: 2}, {-(2**63): -1, 2**63 - 1: 2**31 - 1}, {5: None, 6: 7}, {n: n for n in range(300)}],
    ),
    "maps of numbers without null": (
        types.map_of(types.INT64, types.INT32),
        [{}, {1: 2}, {-(2**63): -1, 2**63 - 1: 2**31 - 1}, {n: n for n in range(300)}],
    ),
    "empty maps": (types.map_of(types.INT64, types.INT64), [{}, {}]),
    "maps of numbers and fractions": (
        types.map_of(types.FLOAT64, types.FLOAT64),
        [{0.5: -0.0}, {2.0: float("inf")}],
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_bytes_of_many_are_those_of_each_as_serialize_writes_them(name: str) -> None:
    serializer, values = COLUMNS[name]
    data = []
    for value in values:
        out = DataOutputView()
        serializer.serialize(value, out)
        data.append(out.to_bytes())
    assert serializer.to_bytes_many(values) == data
    assert [serializer.to_bytes(value) for value in values] == data
    for found in (serializer.from_bytes_many(data), list(map(serializer.from_bytes, data))):
        assert all(same(one, wanted) for one, wanted in zip(found, values, strict=True))


@pytest.mark.parametrize("value", [True, 2**63, "1", 1.0, None])
def test_a_wrong_number_among_many_is_refused_as_by_itself(value: Any) -> None:
    for write in (lambda: types.INT64.to_bytes_many([1, value]), lambda: types.INT64.to_bytes(value)):
        with pytest.raises(ValueTypeError):
            write()


def test_a_wrong_text_among_many_is_refused_as_by_itself() -> None:
    for write in (lambda: types.STRING.to_bytes_many(["a", 1]), lambda: types.STRING.to_bytes(1)):  # type: ignore[arg-type, list-item]
        with pytest.raises(ValueTypeError):
            write()


def test_bytes_of_a_wrong_length_among_many_are_refused() -> None:
    for data in ([b"\0" * 8, b"\0" * 7], [b"\0" * 9, b"\0" * 7]):
        with pytest.raises(CorruptDataError):
            types.INT64.from_bytes_many(data)


@pytest.mark.parametrize(
    "value", [{1: True}, {True: 1}, {2**63: 1}, {1: 2**63}, {1: 1.0}, {"1": 1}, {1: "1"}]
)
def test_a_wrong_number_in_a_map_is_refused_by_its_name(value: Any) -> None:
    numbers = types.map_of(types.INT64, types.INT64)
    for write in (lambda: numbers.to_bytes(value), lambda: numbers.to_bytes_many([{1: 1}, value])):
        with pytest.raises(ValueTypeError):
            write()


@pytest.mark.parametrize("value", [[1, True], [2**63], [1.0], ["1"], [None], (1,)])
def test_a_wrong_number_in_a_list_is_refused_by_its_name(value: Any) -> None:
    numbers = types.list_of(types.INT64)
    for write in (lambda: numbers.to_bytes(value), lambda: numbers.to_bytes_many([[1], value])):
        with pytest.raises(ValueTypeError):
            write()


@pytest.mark.parametrize("data", [b"", b"\0\0\0\1", b"\0\0\0\2" + b"\0" * 8, b"\0\0\0\1" + b"\0" * 9])
def test_a_damaged_list_of_numbers_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        types.list_of(types.INT64).from_bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"\0\0\0\1",
        b"\0\0\0\2" + b"\0" * 17,
        b"\0\0\0\0" + b"\0" * 17,
        b"\0\0\0\1" + b"\0" * 18,
        b"\xff\xff\xff\xff" + b"\0" * 17,
    ],
)
def test_a_damaged_map_of_numbers_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        types.map_of(types.INT64, types.INT64).from_bytes(data)


def test_every_nan_in_a_list_or_map_has_the_same_bytes() -> None:
    one, other = float("nan"), struct.unpack(">d", b"\xff\xf8\0\0\0\0\0\1")[0]
    for serializer, made in (
        (types.list_of(types.FLOAT64), lambda nan: [1.0, nan]),
        (types.map_of(types.FLOAT64, types.FLOAT64), lambda nan: {1.0: nan}),
        (types.map_of(types.FLOAT64, types.FLOAT64), lambda nan: {nan: 1.0}),
    ):
        assert serializer.to_bytes(made(one)) == serializer.to_bytes(made(other))
