"""Columns of the built-in serializers: chunks, dictionaries, nulls and errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import is_
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from keyedstate.errors import ColumnSizeError, ColumnTypeError, UnorderedTypeError, ValueTypeError
from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.row_path import are_of, packed_instants, packed_longs, packed_text
from keyedstate.types.contract.normalized_keys import is_text, whole_number_keys
from keyedstate.types.contract.serializer import TypeSerializer

T = TypeVar("T")

#: What pyarrow and Python raise for a value that does not fit into a column.
_CONVERSION_ERRORS = (pa.ArrowException, ArithmeticError, TypeError, ValueError, ValueTypeError)


class ColumnarSerializer(TypeSerializer[T], Generic[T]):
    """A serializer whose columns are read and written as a whole.

    A subclass implements `reads` and `read_column` for one plain array, and `write_column`.  One whose values
    have an order sets `normalized_key_bytes` and implements `key_column`.
    """

    @abstractmethod
    def reads(self, arrow_type: pa.DataType) -> bool:
        """Return whether `read_column` can read plain arrays of that type, parts aside."""

    @abstractmethod
    def read_column(self, array: pa.Array) -> list[T | None]:
        """Return the values of an array that `reads` accepts."""

    @abstractmethod
    def write_column(self, values: Sequence[T | None]) -> pa.Array:
        """Return the column of `values`; any conversion error may escape."""

    def key_column(self, array: pa.Array) -> NormalizedKeys:
        """Return the normalized keys of a plain array of values."""
        raise UnorderedTypeError(repr(self))

    def whole_key_column(self, array: pa.Array) -> pa.LargeBinaryArray:
        """Return the whole keys of a plain array of values."""
        return whole_number_keys(self.key_column(array))

    def normalized_keys(self, column: pa.Array | pa.ChunkedArray) -> NormalizedKeys:
        return self.key_column(self._plain(column))

    def whole_keys(self, column: pa.Array | pa.ChunkedArray) -> pa.LargeBinaryArray:
        return self.whole_key_column(self._plain(column))

    def _plain(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return a column as one plain array of values, for keys."""
        if self.normalized_key_bytes is None:
            raise UnorderedTypeError(repr(self))
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        try:
            if pa.types.is_null(column.type):
                column = column.cast(self.arrow_type)
            if not self.reads(column.type):
                raise ColumnTypeError(repr(self), str(self.arrow_type), str(column.type))
            if not (pa.types.is_nested(column.type) or is_text(column.type)):
                column = column.cast(self.arrow_type)
        except pa.ArrowInvalid:
            raise ColumnTypeError(repr(self), str(self.arrow_type), str(column.type)) from None
        if column.null_count and not self.null_is_value:
            self.check(None)
        return column

    def to_arrow(self, values: Sequence[T | None]) -> pa.Array:
        try:
            array = self.write_column(values)
        except _CONVERSION_ERRORS:
            # Conversion errors name no row and no reason that a user understands; check does.
            for row, value in enumerate(values):
                if value is not None:
                    try:
                        self.check(value)
                    except ValueTypeError as error:
                        raise error.within("", row) from None
            raise
        if isinstance(array, pa.ChunkedArray):  # pyarrow's answer to more bytes than 32-bit offsets address
            raise ColumnSizeError(repr(self))
        return array

    def from_arrow(self, array: pa.Array | pa.ChunkedArray) -> list[T | None]:
        if isinstance(array, pa.ChunkedArray):
            values: list[T | None] = []
            for chunk in array.chunks:
                values.extend(self.from_arrow(chunk))
            return values
        if pa.types.is_dictionary(array.type):
            return self._read_dictionary(array)
        if pa.types.is_null(array.type) and not self.reads(array.type):
            return [None] * len(array)
        if not self.reads(array.type):
            raise ColumnTypeError(repr(self), str(self.arrow_type), str(array.type))
        return self.read_column(array)

    def _read_dictionary(self, array: pa.DictionaryArray) -> list[T | None]:
        if not self.immutable or len(array.dictionary) > len(array):
            return self.from_arrow(array.dictionary_decode())
        # Immutable values can be shared, so that each is made once.
        values = self.from_arrow(array.dictionary)
        values.append(None)
        indices = array.indices.cast(pa.int64())
        if indices.null_count:
            indices = indices.fill_null(len(values) - 1)
        return list(map(values.__getitem__, indices.to_numpy().tolist()))


def has_none(values: Iterable[object]) -> bool:
    """Return whether None is among the values; never calls their ``__eq__``."""
    return any(map(is_, values, repeat(None)))


def drop_none(values: Sequence[T | None]) -> Sequence[T]:
    """Return the values that are not None."""
    return [value for value in values if value is not None] if has_none(values) else values  # type: ignore[return-value]


def require_types(values: Sequence[object], allowed: frozenset[type]) -> None:
    """Raise TypeError where a value's exact class is not among `allowed`.

    For columns in which pyarrow would convert silently, for example a datetime to its date.  Where it has to
    find the type itself, it even ends the process for a `numpy.datetime64` beside a number.
    """
    if not are_of(values, allowed):
        raise TypeError(f"unexpected types in a column: {set(map(type, values)) - allowed}")


def longs_column(values: Sequence[object], arrow_type: pa.DataType) -> pa.Array | None:
    """Return a column of 64-bit integers; None where one of the values is none."""
    return _of_buffers(arrow_type, len(values), packed_longs(values))


def text_column(values: Sequence[object], arrow_type: pa.DataType) -> pa.Array | None:
    """Return a column of strings with 32-bit offsets; None where pyarrow has to make it."""
    packed = packed_text(values)
    return None if packed is None else _of_buffers(arrow_type, len(values), *packed)


def instants_column(values: Sequence[object], arrow_type: pa.DataType) -> pa.Array | None:
    """Return a column of microseconds, in UTC or without zone; None where pyarrow has to make it."""
    return _of_buffers(arrow_type, len(values), packed_instants(values, arrow_type.tz is not None))


def _of_buffers(arrow_type: pa.DataType, count: int, *data: bytes | None) -> pa.Array | None:
    if None in data:
        return None
    return pa.Array.from_buffers(arrow_type, count, [None, *map(pa.py_buffer, data)])


def plain_numbers(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return a fixed-width array as NumPy values, with 0 in place of nulls."""
    if array.null_count:
        array = array.fill_null(pa.scalar(0, pa.int8()).cast(array.type))
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def put_nones(values: list[Any], array: pa.Array) -> list[Any]:
    """Put None where `array` has nulls, into values that were read from it with some fill value."""
    if array.null_count:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values


def spread(dense: list[Any], array: pa.Array) -> list[Any]:
    """Put None between values that were read from ``array.drop_null()``, where the array has nulls."""
    following = iter(dense)
    validity = array.is_valid().to_numpy(zero_copy_only=False).tolist()
    return [next(following) if valid else None for valid in validity]


def spread_column(dense: pa.Array, values: Sequence[object]) -> pa.Array:
    """Put nulls between the slots of a column that was made from ``drop_none(values)``."""
    if len(dense) == len(values):
        return dense
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return dense.take(pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid))


def offsets_of(lengths: Iterable[int], count: int, serializer: object) -> pa.Array:
    """Return the 32-bit Arrow offsets of `count` consecutive slots; raises `ColumnSizeError`."""
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, count), out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ColumnSizeError(repr(serializer), int(offsets[-1]))
    return pa.array(offsets.astype(np.int32))
