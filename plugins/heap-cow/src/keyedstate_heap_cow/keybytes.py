"""Columns of keys as bytes, and bytes as columns of keys, without an object for a key.

Text and binary are their own bytes, and numbers eight bytes each.  A tuple is its parts one after the other:
a byte that says whether the part is present, the length where it is text, and the bytes.  Equal keys have
equal bytes: all NaNs are one key, and -0.0 is 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.backend import Column
from keyedstate.errors import ColumnSizeError
from keyedstate.tables import array_of, column_of, is_numeric
from keyedstate_heap_cow.keyindex import copy_bytes

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
#: The bytes of many keys, the start and the length of each; a length of -1 is the null key.
Keys = tuple[Bytes, Offsets, Lengths]

_NUMBER = 8
_LENGTH = 4
_MOST = np.iinfo(np.int32).max


class KeyBytes:
    """Encodes the keys of a table as bytes, and decodes them.

    Parameters
    ----------
    arrow_type : pyarrow.DataType
        The type of the keys; `has_bytes` is true for it.
    """

    def __init__(self, arrow_type: pa.DataType) -> None:
        self._type = arrow_type
        self._is_tuple = pa.types.is_struct(arrow_type)
        self._types = [field.type for field in arrow_type] if self._is_tuple else [arrow_type]

    def columns(self, keys: pa.Array) -> list[pa.Array]:
        """Return keys as one column for each part."""
        return list(keys.flatten()) if self._is_tuple else [keys]

    def encode(self, columns: Sequence[pa.Array]) -> Keys:
        """Return the bytes of keys.

        Parameters
        ----------
        columns : sequence of pyarrow.Array
            One for each part.
        """
        if not self._is_tuple:
            return _leaf(columns[0])
        return self._encode_tuples([_leaf(column) for column in columns])

    def _encode_tuples(self, leaves: list[Keys]) -> Keys:
        rows = len(leaves[0][1])
        lengths = np.zeros(rows, np.int64)
        for type_, (_, _, own) in zip(self._types, leaves, strict=True):
            lengths += 1 + (_NUMBER if is_numeric(type_) else _LENGTH + np.maximum(own, 0))
        starts = np.cumsum(lengths) - lengths
        data = np.zeros(max(int(lengths.sum()), 1), np.uint8)
        cursor = starts.copy()
        for type_, (source, begins, own) in zip(self._types, leaves, strict=True):
            data[cursor] = own >= 0
            cursor += 1
            if not is_numeric(type_):
                copy_bytes(own.view(np.uint8), _every(_LENGTH, rows), data, cursor, _all(_LENGTH, rows))
                cursor += _LENGTH
            copy_bytes(source, begins, data, cursor, own)
            cursor += _NUMBER if is_numeric(type_) else np.maximum(own, 0)
        return data, starts, lengths.astype(np.int32)

    def decode(self, data: Bytes, starts: Offsets, lengths: Lengths) -> pa.Array:
        """Return keys as an array of their type.

        Raises
        ------
        ColumnSizeError
            Where the array would have more bytes than its offsets can address.
        """
        if not self._is_tuple:
            return _array(self._type, data, starts, lengths)
        rows = len(starts)
        cursor = starts.astype(np.int64)
        parts = []
        for type_ in self._types:
            present = data[cursor] != 0
            cursor += 1
            if is_numeric(type_):
                own = _lengths_of(present)
                parts.append(_array(type_, data, cursor, own))
                cursor += _NUMBER
                continue
            own = np.empty(rows, np.int32)
            copy_bytes(data, cursor, own.view(np.uint8), _every(_LENGTH, rows), _all(_LENGTH, rows))
            cursor += _LENGTH
            parts.append(_array(type_, data, cursor, own))
            cursor += np.maximum(own, 0)
        return pa.StructArray.from_arrays(parts, fields=list(self._type))


def has_bytes(arrow_type: pa.DataType) -> bool:
    """Return whether `KeyBytes` can encode keys of a type."""
    if pa.types.is_struct(arrow_type):
        return bool(arrow_type.num_fields) and all(_is_leaf(field.type) for field in arrow_type)
    return _is_leaf(arrow_type)


def _is_leaf(arrow_type: pa.DataType) -> bool:
    return is_numeric(arrow_type) or bool(pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type))


def _leaf(column: pa.Array) -> Keys:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    rows = len(column)
    if is_numeric(column.type):
        found = column_of(column)
        values = found.values
        if values.dtype == np.float64:
            # Adding 0.0 makes 0.0 of -0.0.
            values = np.where(np.isnan(values), np.nan, values + 0.0)
        lengths = _all(_NUMBER, rows) if found.present is None else _lengths_of(found.present)
        data = np.ascontiguousarray(values).view(np.uint8)
        return (data if len(data) else np.zeros(1, np.uint8)), _every(_NUMBER, rows), lengths
    width = np.int64 if pa.types.is_large_string(column.type) or _is_large_binary(column.type) else np.int32
    _, offset_buffer, buffer = column.buffers()
    data = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(1, np.uint8)
    if not rows:
        return data, np.empty(0, np.int64), np.empty(0, np.int32)
    offsets = np.frombuffer(offset_buffer, width, rows + 1, column.offset * np.dtype(width).itemsize)
    lengths = np.diff(offsets).astype(np.int32, copy=False)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return data, offsets[:-1].astype(np.int64, copy=False), lengths


def _is_large_binary(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(arrow_type))


def _lengths_of(present: npt.NDArray[np.bool_]) -> Lengths:
    return np.where(present, _NUMBER, -1).astype(np.int32)


def _array(arrow_type: pa.DataType, data: Bytes, starts: Offsets, lengths: Lengths) -> pa.Array:
    rows = len(starts)
    if is_numeric(arrow_type):
        dtype: type[Any] = np.float64 if pa.types.is_floating(arrow_type) else np.int64
        values = np.zeros(rows, dtype)
        if rows:
            copy_bytes(data, starts, values.view(np.uint8), _every(_NUMBER, rows), lengths)
        return array_of(Column(values, lengths >= 0), arrow_type)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    size = int(offsets[-1])
    if size > _MOST:
        raise ColumnSizeError(repr(arrow_type), size)
    target = np.empty(max(size, 1), np.uint8)
    if rows:
        copy_bytes(data, starts, target, offsets[:-1], lengths)
    missing = lengths < 0
    validity = None
    if missing.any():
        validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(target[:size])]
    return pa.Array.from_buffers(arrow_type, rows, buffers)


def _every(step: int, rows: int) -> Offsets:
    return np.arange(0, step * rows, step, dtype=np.int64)


def _all(length: int, rows: int) -> Lengths:
    return np.full(rows, length, np.int32)
