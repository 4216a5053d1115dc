"""The bytes of rows, tuples and lists, written and read by compiled code where all fields have some.

It leaves to plain Python what is rare: a value of another class, a view over pages, text with surrogates,
bytes that are wrong.  So that alone decides what is an error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.row_path import coder
from keyedstate.types.contract.serializer import TypeSerializer

T = TypeVar("T")

#: A class of tuples, the bytes of the mask and how many of their last bits are no field's (0, 0 without a
#: mask), and for each field its type and whether it may be None.  The type is a name or again such a tuple.
#: Or `list` without a mask, and with one field, which is that of each element.
Parts = tuple[type, int, int, list[tuple[Any, bool]]]


class CompiledBytes(TypeSerializer[T]):
    """A type of tuples or lists; `_mask` is that of `Parts`."""

    python_type: Any
    _mask = (0, 0)

    @abstractmethod
    def _fields(self) -> list[tuple[TypeSerializer[Any], bool]]:
        """Return the type of each field without None, and whether it may be None; of a list its element's."""

    @abstractmethod
    def _write(self, value: T, out: DataOutputView) -> None:
        """Do what `serialize` says in plain Python."""

    @abstractmethod
    def _read(self, source: DataInputView) -> T:
        """Do what `deserialize` says in plain Python."""

    def _parts(self) -> Parts:
        fields = [
            (field._parts() if isinstance(field, CompiledBytes) else field.type_name, may_be_null)
            for field, may_be_null in self._fields()
        ]
        return self.python_type, *self._mask, fields

    @cached_property
    def _coder(self) -> Any:
        """What writes and reads the bytes; None where compiled code has not all fields."""
        return None if coder is None else coder(self._parts())

    def serialize(self, value: T, out: DataOutputView) -> None:
        known = self._coder
        made = None if known is None else known.to_bytes(value)
        if made is None:
            self._write(value, out)
        else:
            out.write(made)

    def to_bytes(self, value: T) -> bytes:
        known = self._coder
        made: bytes | None = None if known is None else known.to_bytes(value)
        return super().to_bytes(value) if made is None else made

    def deserialize(self, source: DataInputView) -> T:
        known = self._coder
        if known is not None and source.__class__ is DataInputView:
            found = known.read(source._data, source._position, source._end)
            if found is not None:
                value: T = found[0]
                source._position = found[1]
                return value
        return self._read(source)

    def from_bytes(self, data: bytes | bytearray | memoryview) -> T:
        known = self._coder
        value: T | None = None if known is None else known.from_bytes(data)
        return super().from_bytes(data) if value is None else value

    def to_bytes_many(self, values: Sequence[T]) -> list[bytes]:
        if self._coder is not None:
            made: list[bytes] = list(map(self._coder.to_bytes, values))
            if None not in made:
                return made
        return self._write_many(values)

    def from_bytes_many(self, data: Sequence[bytes]) -> list[T]:
        if self._coder is not None:
            made: list[T] = list(map(self._coder.from_bytes, data))
            if None not in made:
                return made
        return self._read_many(data)

    def _write_many(self, values: Sequence[T]) -> list[bytes]:
        """Do what `to_bytes_many` says in plain Python."""
        return super().to_bytes_many(values)

    def _read_many(self, data: Sequence[bytes]) -> list[T]:
        """Do what `from_bytes_many` says in plain Python."""
        return super().from_bytes_many(data)
