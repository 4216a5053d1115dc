"""Booleans, integers and floating-point numbers, in Java's big-endian layouts.

Sources: Flink's ``BooleanSerializer``, ``ByteSerializer``, ``ShortSerializer``, ``IntSerializer``,
``LongSerializer``, ``FloatSerializer`` and ``DoubleSerializer``.
"""

from __future__ import annotations

import contextlib
import math
import struct
from array import array as machine_array
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import longs_column, plain_numbers, put_nones, require_types
from keyedstate.types.contract.serializer import Compatibility, SerializerSnapshot
from keyedstate.types.scalars.scalar import ClassSerializer, SingletonSerializer, register_singleton

#: The only NaN in keys: dicts find a NaN by identity.
CANONICAL_NAN = math.nan

#: Numbers from here on round to infinity in 32 bits (half a unit above the largest float32).
_FLOAT32_LIMIT = 3.4028235677973366e38


class BooleanSerializer(ClassSerializer[bool]):
    """Truth values in one byte, 0 or 1."""

    type_name = "boolean"
    python_type = bool
    constraint = "True or False"

    arrow_type = pa.bool_()
    normalized_key_bytes = 1

    def serialize(self, value: bool, out: DataOutputView) -> None:
        if value is not True and value is not False:
            raise self.mismatch(value)
        out.write_boolean(value)

    def deserialize(self, source: DataInputView) -> bool:
        return source.read_boolean()


class IntegerSerializer(SingletonSerializer[int]):
    """Signed integers of a fixed width; a bool is not an integer."""

    python_type = int
    advice = ((bool, "Declare the state as BOOLEAN, or convert the value with int()."),)
    advice_within = "Declare the state with a wider type, or STRING for numbers beyond 64 bits."
    arrow_type = pa.int64()
    fixed_code: str

    def __init__(self, bits: int, arrow_type: pa.DataType, code: str) -> None:
        self.type_name = f"int{bits}"
        self.arrow_type = arrow_type
        #: The array module has the same code.
        self.fixed_code = code
        self._struct = struct.Struct(f">{code}")
        self.normalized_key_bytes = self._struct.size
        self._low, self._high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        self.constraint = f"an int from {self._low} to {self._high}"
        #: Names of the types whose values all fit into this one.
        self._narrower = tuple(f"int{width}" for width in (8, 16, 32) if width < bits)

    def parts(self) -> tuple[object, ...]:
        return (self.type_name,)

    def __reduce__(self) -> str:
        return repr(self)

    def is_value(self, value: object) -> bool:
        return value.__class__ is int and self._low <= value <= self._high

    def condition(self, first: str, value: str, given: dict[str, Any]) -> str:
        return f"({first}.__class__ is int and {self._low} <= {value} <= {self._high})"

    def check_parts(self) -> tuple[Any, ...]:
        return "integer", self._low, self._high

    def are_values(self, values: Collection[Any]) -> bool:
        if not {int}.issuperset(map(type, values)):
            return False
        try:
            # A machine array refuses numbers that do not fit, and is faster than min and max.
            machine_array(self.fixed_code, list(values))
        except OverflowError:
            return False
        return True

    def serialize(self, value: int, out: DataOutputView) -> None:
        if value.__class__ is not int:
            raise self.mismatch(value)
        try:
            out.write(self._struct.pack(value))
        except struct.error:
            raise self.mismatch(value) from None

    def deserialize(self, source: DataInputView) -> int:
        value: int = self._struct.unpack(source.read(self._struct.size))[0]
        return value

    def to_bytes(self, value: int) -> bytes:
        if value.__class__ is not int:
            raise self.mismatch(value)
        try:
            return self._struct.pack(value)
        except struct.error:
            raise self.mismatch(value) from None

    def from_bytes(self, data: bytes | bytearray | memoryview) -> int:
        if len(data) == self._struct.size:
            return self._struct.unpack(data)[0]  # type: ignore[no-any-return]
        return super().from_bytes(data)

    def to_bytes_many(self, values: Sequence[int]) -> list[bytes]:
        if {int}.issuperset(map(type, values)):
            with contextlib.suppress(struct.error):
                return list(map(self._struct.pack, values))
        return super().to_bytes_many(values)

    def from_bytes_many(self, data: Sequence[bytes]) -> list[int]:
        width = self._struct.size
        if not {width}.issuperset(map(len, data)):
            return super().from_bytes_many(data)
        return np.frombuffer(b"".join(data), f">i{width}").tolist()  # type: ignore[no-any-return]

    def read_column(self, array: pa.Array) -> list[int | None]:
        return put_nones(plain_numbers(array).tolist(), array)

    def write_column(self, values: Sequence[int | None]) -> pa.Array:
        made = longs_column(values, self.arrow_type) if self.fixed_code == "q" else None
        return super().write_column(values) if made is None else made

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        if old.type_name in self._narrower:
            return Compatibility.after_migration(f"{old} was widened to {self!r}")
        return super().resolve_compatibility(old)


class _FloatSerializer(SingletonSerializer[float]):
    """IEEE 754 numbers; every NaN is written as Java's one NaN, -0.0 stays -0.0.

    `canonical` returns one NaN object, and 0.0 for -0.0, as Spark normalises floats before it groups them.
    """

    python_type = float
    needs_canonical = True

    advice = ((int, "Convert it with float(): an int would come back as a float after a restart."),)

    def read_column(self, array: pa.Array) -> list[float | None]:
        return put_nones(plain_numbers(array).tolist(), array)


class Float32Serializer(_FloatSerializer):
    """Floats in four bytes.

    Bytes, columns and `canonical` round a Python float to 32 bits, so 0.1 is restored as 0.10000000149011612;
    numbers that would round to infinity are refused.
    """

    type_name = "float32"
    constraint = "a float that fits into 32 bits"

    arrow_type = pa.float32()
    normalized_key_bytes = 4

    def is_value(self, value: object) -> bool:
        return value.__class__ is float and (
            -_FLOAT32_LIMIT < value < _FLOAT32_LIMIT or not math.isfinite(value)
        )

    def serialize(self, value: float, out: DataOutputView) -> None:
        if not self.is_value(value):
            raise self.mismatch(value)
        out.write_float(value if value == value else CANONICAL_NAN)

    def deserialize(self, source: DataInputView) -> float:
        return source.read_float()

    def canonical(self, value: float) -> float:
        if value != value:
            return CANONICAL_NAN
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
        return rounded or 0.0

    def write_column(self, values: Sequence[float | None]) -> pa.Array:
        require_types(values, frozenset((float, type(None))))
        wide = pa.array(values, pa.float64())
        narrow = wide.cast(pa.float32(), safe=False)
        overflow = np.isinf(plain_numbers(narrow)) & ~np.isinf(plain_numbers(wide))
        if overflow.any():
            raise OverflowError("a number beyond 32 bits")
        return narrow


class Float64Serializer(_FloatSerializer, ClassSerializer[float]):
    """Floats in eight bytes."""

    type_name = "float64"
    constraint = "a float"
    fixed_code = "d"

    arrow_type = pa.float64()
    normalized_key_bytes = 8

    def serialize(self, value: float, out: DataOutputView) -> None:
        if value.__class__ is not float:
            raise self.mismatch(value)
        out.write_double(value if value == value else CANONICAL_NAN)

    def deserialize(self, source: DataInputView) -> float:
        return source.read_double()

    def canonical(self, value: float) -> float:
        return (value or 0.0) if value == value else CANONICAL_NAN

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        if old.type_name == FLOAT32.type_name:
            return Compatibility.after_migration(f"{old} was widened to {self!r}")
        return super().resolve_compatibility(old)


BOOLEAN = BooleanSerializer()
INT8 = IntegerSerializer(8, pa.int8(), "b")
INT16 = IntegerSerializer(16, pa.int16(), "h")
INT32 = IntegerSerializer(32, pa.int32(), "i")
INT64 = IntegerSerializer(64, pa.int64(), "q")
FLOAT32 = Float32Serializer()
FLOAT64 = Float64Serializer()

for _serializer in (BOOLEAN, INT8, INT16, INT32, INT64, FLOAT32, FLOAT64):
    register_singleton(_serializer)
