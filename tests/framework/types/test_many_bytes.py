"""Bytes of many values at once are those of each value by itself."""

from __future__ import annotations

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
