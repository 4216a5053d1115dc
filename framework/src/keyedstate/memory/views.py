"""Views through which serializers write and read bytes, big-endian like Java's ``DataOutput``.

They correspond to Flink's ``DataOutputView`` and ``DataInputView``.
"""

from __future__ import annotations

import struct

from keyedstate.errors import CorruptDataError

_SHORT = struct.Struct(">h")
_UNSIGNED_SHORT = struct.Struct(">H")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_FLOAT = struct.Struct(">f")
_DOUBLE = struct.Struct(">d")

#: Bytes of the longest variable-length int: 32 bits in groups of seven.
_VAR_INT_BYTES = 5
_UINT32_MAX = 0xFFFFFFFF
#: Bytes of the longest string that ``writeUTF`` takes.
_UTF_BYTES = 0xFFFF


class DataOutputView:
    """A growable buffer of big-endian values, reusable after `clear`."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def position(self) -> int:
        """Number of bytes written since the start or the last `clear`."""
        return len(self._buffer)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes as they are, without a length."""
        self._buffer += data

    def write_boolean(self, value: bool) -> None:
        """Append one byte, 1 for true and 0 for false."""
        self._buffer.append(1 if value else 0)

    def write_byte(self, value: int) -> None:
        """Append the low eight bits of `value`."""
        self._buffer.append(value & 0xFF)

    def write_short(self, value: int) -> None:
        """Append a signed 16-bit number."""
        self._buffer += _SHORT.pack(value)

    def write_int(self, value: int) -> None:
        """Append a signed 32-bit number."""
        self._buffer += _INT.pack(value)

    def write_long(self, value: int) -> None:
        """Append a signed 64-bit number."""
        self._buffer += _LONG.pack(value)

    def write_float(self, value: float) -> None:
        """Append a 32-bit IEEE 754 number, rounded to nearest."""
        self._buffer += _FLOAT.pack(value)

    def write_double(self, value: float) -> None:
        """Append a 64-bit IEEE 754 number."""
        self._buffer += _DOUBLE.pack(value)

    def write_bytes(self, data: bytes | bytearray | memoryview) -> None:
        """Append the length as a 32-bit number, then the bytes."""
        self._buffer += _INT.pack(len(data))
        self._buffer += data

    def write_var_int(self, value: int) -> None:
        """Append a number from 0 to 2**32 - 1 in groups of seven bits, the lowest first.

        The high bit of a byte means that another one follows, as in Flink's ``StringValue``.
        """
        if not 0 <= value <= _UINT32_MAX:
            raise ValueError(f"a variable-length int is between 0 and {_UINT32_MAX}, got {value}")
        buffer = self._buffer
        while value >= 0x80:
            buffer.append(value & 0x7F | 0x80)
            value >>= 7
        buffer.append(value)

    def write_utf(self, value: str) -> None:
        """Append a string in Java's modified UTF-8 behind its length in bytes (``DataOutput.writeUTF``).

        Raises
        ------
        ValueError
            For a string of more than 65,535 bytes.
        """
        encoded = value.encode() if value.isascii() else _cesu8(value)
        encoded = encoded.replace(b"\0", b"\xc0\x80")
        if len(encoded) > _UTF_BYTES:
            raise ValueError(f"a string of {len(encoded)} bytes, and its length has 16 bits")
        self._buffer += _UNSIGNED_SHORT.pack(len(encoded)) + encoded

    def to_bytes(self) -> bytes:
        """Return a copy of what was written."""
        return bytes(self._buffer)

    def clear(self) -> None:
        """Drop what was written, so that the view can be used for the next record."""
        self._buffer.clear()


class DataInputView:
    """A reader over bytes that checks every length before it uses it.

    Parameters
    ----------
    data : bytes, bytearray or memoryview
        A memoryview must be contiguous.  Bytes are copied when they are read.

    Raises
    ------
    CorruptDataError
        From every method that would read more than remains.
    """

    __slots__ = ("_data", "_end", "_position")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data: bytes | memoryview = data if type(data) is bytes else memoryview(data).cast("B")
        self._position = 0
        self._end = len(self._data)

    @property
    def position(self) -> int:
        """Offset of the next byte."""
        return self._position

    @property
    def remaining(self) -> int:
        """Number of bytes not read yet."""
        return self._end - self._position

    def _advance(self, size: int) -> int:
        """Move over `size` bytes and return where they start."""
        start = self._position
        if not 0 <= size <= self._end - start:
            raise self.corrupt(f"{size} bytes wanted, {self._end - start} left")
        self._position = start + size
        return start

    def corrupt(self, reason: str) -> CorruptDataError:
        """Return the error with a reason and the position; for serializers to raise."""
        return CorruptDataError(reason, self._position)

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        start = self._advance(size)
        return bytes(self._data[start : start + size])

    def peek(self, limit: int) -> bytes:
        """Return up to `limit` of the next bytes without moving."""
        return bytes(self._data[self._position : self._position + limit])

    def skip(self, size: int) -> None:
        """Move over `size` bytes."""
        self._advance(size)

    def read_boolean(self) -> bool:
        """Return a byte as a truth value; only 0 and 1 are ever written."""
        value = self._data[self._advance(1)]
        if value > 1:
            self._position -= 1
            raise self.corrupt(f"a boolean is 0 or 1, found {value}")
        return value == 1

    def read_byte(self) -> int:
        """Return a signed 8-bit number."""
        value = self._data[self._advance(1)]
        return value - 256 if value > 127 else value

    def read_unsigned_byte(self) -> int:
        """Return a number from 0 to 255."""
        return self._data[self._advance(1)]

    def read_short(self) -> int:
        """Return a signed 16-bit number."""
        value: int = _SHORT.unpack_from(self._data, self._advance(2))[0]
        return value

    def read_int(self) -> int:
        """Return a signed 32-bit number."""
        value: int = _INT.unpack_from(self._data, self._advance(4))[0]
        return value

    def read_long(self) -> int:
        """Return a signed 64-bit number."""
        value: int = _LONG.unpack_from(self._data, self._advance(8))[0]
        return value

    def read_float(self) -> float:
        """Return a 32-bit IEEE 754 number."""
        value: float = _FLOAT.unpack_from(self._data, self._advance(4))[0]
        return value

    def read_double(self) -> float:
        """Return a 64-bit IEEE 754 number."""
        value: float = _DOUBLE.unpack_from(self._data, self._advance(8))[0]
        return value

    def read_bytes(self) -> bytes:
        """Return bytes that `DataOutputView.write_bytes` wrote."""
        return self.read(self.read_count())

    def read_utf(self) -> str:
        """Return a string that `DataOutputView.write_utf` wrote."""
        start = self._position
        length = self.read_short() & _UTF_BYTES
        encoded = self.read(length).replace(b"\xc0\x80", b"\0")
        try:
            if encoded.isascii():
                return encoded.decode()
            units = encoded.decode("utf-8", "surrogatepass").encode("utf-16-be", "surrogatepass")
            return units.decode("utf-16-be")
        except UnicodeDecodeError as error:
            self._position = start
            raise self.corrupt(f"a string that is no modified UTF-8 ({error.reason})") from None

    def read_count(self) -> int:
        """Return a 32-bit count of items of at least one byte each.

        A count above the remaining bytes is refused before anything is allocated for the items.
        """
        start = self._position
        count = self.read_int()
        if not 0 <= count <= self.remaining:
            self._position = start
            raise self.corrupt(f"a count of {count} where {self._end - start - 4} bytes follow")
        return count

    def read_var_int(self) -> int:
        """Return a number that `DataOutputView.write_var_int` wrote."""
        start = self._position
        value = 0
        for group in range(_VAR_INT_BYTES):
            byte = self._data[self._advance(1)]
            value |= (byte & 0x7F) << (7 * group)
            if byte < 0x80:
                if value > _UINT32_MAX:
                    break
                return value
        self._position = start
        raise self.corrupt("a variable-length int of more than 32 bits")


def _cesu8(value: str) -> bytes:
    """Return UTF-8 in which each UTF-16 unit is a character of its own, as Java writes it."""
    units = value.encode("utf-16-be", "surrogatepass")
    characters = [chr(units[index] << 8 | units[index + 1]) for index in range(0, len(units), 2)]
    return "".join(characters).encode("utf-8", "surrogatepass")
