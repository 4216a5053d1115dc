"""Strings, bytes and UUIDs.

Sources: Flink's ``StringValue.writeString`` and ``BytePrimitiveArraySerializer``,
and ``UuidSerializer`` (sixteen bytes, the most significant first).
"""

from __future__ import annotations

import sys
import uuid
from array import array as machine_array
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import add, itemgetter
from struct import Struct
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import require_types, text_column
from keyedstate.types.contract.normalized_keys import (
    TEXT_KEY_BYTES,
    fixed_bytes_keys,
    text_keys,
    whole_text_keys,
)
from keyedstate.types.scalars.scalar import ClassSerializer, SingletonSerializer, register_singleton

T = TypeVar("T")

_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
#: The first byte of a string by its length, where the length takes one byte.
SHORT_STRING_HEADS = [bytes((length + 1,)) for length in range(0x7F)]
#: A UTF-16 unit of 16 bits takes up to three groups of seven bits.
_UNIT_BYTES = 3
_UUID_BYTES = 16
#: What precedes bytes.
_LENGTH = Struct(">i")
_FIRST = itemgetter(0)


def write_string(value: str | None, out: DataOutputView) -> None:
    """Append a string or None as ``StringValue.writeString`` does (SER-05).

    The number of UTF-16 units plus one, 0 for None, then each unit; all in groups of seven bits, the lowest
    first.

    Raises `UnicodeEncodeError` for a lone surrogate.
    """
    if value is None:
        out.write_byte(0)
    elif value.isascii():
        out.write_var_int(len(value) + 1)
        out.write(value.encode("ascii"))
    else:
        units = machine_array("H", value.encode(_UTF16))
        encoded = bytearray()
        for unit in units:
            if unit < 0x80:
                encoded.append(unit)
            elif unit < 0x4000:
                encoded += bytes((unit & 0x7F | 0x80, unit >> 7))
            else:
                encoded += bytes((unit & 0x7F | 0x80, unit >> 7 & 0x7F | 0x80, unit >> 14))
        out.write_var_int(len(units) + 1)
        out.write(encoded)


def read_string(source: DataInputView) -> str | None:
    """Read what `write_string` wrote; raises `CorruptDataError`."""
    count = source.read_var_int() - 1
    if count < 0:
        return None
    if count > source.remaining:
        raise source.corrupt(f"a string of {count} UTF-16 units where {source.remaining} bytes follow")
    encoded = source.peek(count)
    if encoded.isascii():
        source.skip(count)
        return encoded.decode("ascii")
    encoded = source.peek(count * _UNIT_BYTES)
    units = machine_array("H")
    position = 0
    try:
        for _ in range(count):
            unit = encoded[position]
            position += 1
            if unit >= 0x80:
                following = encoded[position]
                position += 1
                unit = unit & 0x7F | (following & 0x7F) << 7
                if following >= 0x80:
                    unit |= encoded[position] << 14
                    position += 1
            units.append(unit)
        text = units.tobytes().decode(_UTF16)
    except IndexError:
        raise source.corrupt(f"a string of {count} UTF-16 units ends too early") from None
    except OverflowError:
        raise source.corrupt("a UTF-16 unit of more than 16 bits") from None
    except UnicodeDecodeError as error:
        raise source.corrupt(f"a string that is not valid UTF-16 ({error.reason})") from None
    source.skip(position)
    return text


def are_short(values: Collection[str]) -> bool:
    """Return whether the bytes of each string are one of `SHORT_STRING_HEADS` and its characters."""
    return max(map(len, values), default=0) < len(SHORT_STRING_HEADS) and "".join(values).isascii()


class _TextSerializer(SingletonSerializer[T], Generic[T]):
    """What strings and bytes share: their keys."""

    normalized_key_bytes = TEXT_KEY_BYTES
    normalized_key_decides = False

    def key_column(self, array: pa.Array) -> NormalizedKeys:
        return text_keys(array)

    def whole_key_column(self, array: pa.Array) -> pa.LargeBinaryArray:
        return whole_text_keys(array)


class StringSerializer(_TextSerializer[str]):
    """Strings of any length, without lone surrogates: Arrow columns are UTF-8, which has none."""

    type_name = "string"
    python_type = str
    constraint = "a str without lone surrogates"
    advice = ((bytes, "Decode it, or declare the state as BYTES."),)
    advice_within = (
        "Lone surrogates are halves of characters and no valid Unicode: replace them with "
        "value.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace'), or store BYTES."
    )

    def to_bytes(self, value: str) -> bytes:
        if value.__class__ is str and value.isascii() and len(value) < len(SHORT_STRING_HEADS):
            return SHORT_STRING_HEADS[len(value)] + value.encode()
        return super().to_bytes(value)

    def to_bytes_many(self, values: Sequence[str]) -> list[bytes]:
        if not {str}.issuperset(map(type, values)):
            return super().to_bytes_many(values)
        if are_short(values):
            return [SHORT_STRING_HEADS[len(value)] + value.encode() for value in values]
        return super().to_bytes_many(values)

    def from_bytes_many(self, data: Sequence[bytes]) -> list[str]:
        # The first byte of a short string is the number of all its bytes.
        ends = list(accumulate(map(len, data)))
        joined = b"".join(data)
        if not joined.isascii() or not all(data) or list(map(_FIRST, data)) != list(map(len, data)):
            return super().from_bytes_many(data)
        text = joined.decode()
        return [text[start + 1 : end] for start, end in zip((0, *ends), ends, strict=False)]

    arrow_type = pa.string()

    def is_value(self, value: object) -> bool:
        if value.__class__ is not str:
            return False
        text: str = value
        if text.isascii():
            return True
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
        return True

    def condition(self, first: str, value: str, given: dict[str, Any]) -> str:
        look_closer = super().condition(value, value, given)
        return f"({first}.__class__ is str and ({value}.isascii() or {look_closer}))"

    def check_parts(self) -> tuple[Any, ...]:
        return ("text",)

    def are_values(self, values: Collection[Any]) -> bool:
        return {str}.issuperset(map(type, values)) and (
            all(map(str.isascii, values)) or all(map(self.is_value, values))
        )

    def serialize(self, value: str, out: DataOutputView) -> None:
        if value.__class__ is not str:
            raise self.mismatch(value)
        try:
            write_string(value, out)
        except UnicodeEncodeError:
            raise self.mismatch(value) from None

    def deserialize(self, source: DataInputView) -> str:
        value = read_string(source)
        if value is None:
            raise source.corrupt("the mark of no string where a string is expected")
        return value

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type))

    def write_column(self, values: Sequence[str | None]) -> pa.Array:
        made = text_column(values, pa.string())
        return super().write_column(values) if made is None else made


class BytesSerializer(_TextSerializer[bytes], ClassSerializer[bytes]):
    """Bytes of any length: a 32-bit length, then the bytes."""

    type_name = "bytes"
    python_type = bytes
    constraint = "bytes"

    arrow_type = pa.binary()

    advice = (
        (
            (bytearray, memoryview),
            "Convert it with bytes(): what can change in place cannot be shared with a snapshot.",
        ),
        (str, "Encode it, or declare the state as STRING."),
    )

    def serialize(self, value: bytes, out: DataOutputView) -> None:
        if value.__class__ is not bytes:
            raise self.mismatch(value)
        out.write_bytes(value)

    def deserialize(self, source: DataInputView) -> bytes:
        return source.read_bytes()

    def to_bytes_many(self, values: Sequence[bytes]) -> list[bytes]:
        if not {bytes}.issuperset(map(type, values)):
            return super().to_bytes_many(values)
        return list(map(add, map(_LENGTH.pack, map(len, values)), values))

    def from_bytes_many(self, data: Sequence[bytes]) -> list[bytes]:
        heads = b"".join([one[: _LENGTH.size] for one in data])
        if len(heads) < _LENGTH.size * len(data):
            return super().from_bytes_many(data)
        lengths = np.frombuffer(heads, ">i4").tolist()
        found = [one[_LENGTH.size :] for one in data]
        return found if lengths == list(map(len, found)) else super().from_bytes_many(data)

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type))


class UuidSerializer(ClassSerializer[uuid.UUID]):
    """``uuid.UUID``; a column of sixteen bytes each.  ``is_safe`` is not kept."""

    type_name = "uuid"
    python_type = uuid.UUID
    constraint = "a uuid.UUID"

    arrow_type = pa.binary(_UUID_BYTES)
    normalized_key_bytes = _UUID_BYTES

    def key_column(self, array: pa.Array) -> NormalizedKeys:
        return fixed_bytes_keys(array)

    advice = ((str, "Convert it with uuid.UUID(), or declare the state as STRING."),)

    def serialize(self, value: uuid.UUID, out: DataOutputView) -> None:
        if value.__class__ is not uuid.UUID:
            raise self.mismatch(value)
        out.write(value.bytes)

    def deserialize(self, source: DataInputView) -> uuid.UUID:
        return uuid.UUID(bytes=source.read(_UUID_BYTES))

    def read_column(self, array: pa.Array) -> list[uuid.UUID | None]:
        found = array.to_numpy(zero_copy_only=False).tolist()
        return [None if value is None else uuid.UUID(bytes=value) for value in found]

    def write_column(self, values: Sequence[uuid.UUID | None]) -> pa.Array:
        require_types(values, frozenset((uuid.UUID, type(None))))
        return pa.array([None if value is None else value.bytes for value in values], self.arrow_type)


STRING = StringSerializer()
BYTES = BytesSerializer()
UUID = UuidSerializer()

for _serializer in (STRING, BYTES, UUID):
    register_singleton(_serializer)
