"""Arrow arrays as columns that NumPy can fold into the hashes of many rows at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.errors import LossyKeyTimeError, UnsupportedKeyTypeError
from keyedstate.murmur3.mixing import Words, absorb, absorb_all, absorb_words, finish, finish_all, hash_bytes
from keyedstate.murmur3.types import (
    MAX_DECIMAL_DIGITS,
    MAX_LONG_DIGITS,
    is_binary,
    is_text,
    spark_time_type,
)
from keyedstate.row_path import fold_bytes

Rows: TypeAlias = npt.NDArray[np.int64]
"""Row numbers, or byte positions and lengths."""

# Below so many rows a NumPy call for one word of each costs more than a Python loop over the words.
_FEW_ROWS = 32


class Column(ABC):
    """The values of one Arrow array, which can be folded into hashes.

    `fold` takes any rows in any order, so that lists can fold their n-th elements together, and dictionaries
    the values of their indices.
    """

    def __init__(self, array: pa.Array) -> None:
        self.valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None

    def fold(self, hashes: Words, rows: Rows) -> None:
        """Replace ``hashes[i]`` by the hash of row ``rows[i]`` with it as the seed, unless that is null."""
        if self.valid is None:
            self._fold_valid(hashes, rows)
            return
        present = np.flatnonzero(self.valid[rows])
        part = hashes[present]
        self._fold_valid(part, rows[present])
        hashes[present] = part

    def fold_one(self, h: int, row: int) -> int:
        """Return the hash of one row with the seed `h`."""
        return h if self.valid is not None and not self.valid[row] else self._fold_one_valid(h, row)

    @abstractmethod
    def _fold_valid(self, hashes: Words, rows: Rows) -> None: ...

    @abstractmethod
    def _fold_one_valid(self, h: int, row: int) -> int: ...


class _NullColumn(Column):
    def _fold_valid(self, hashes: Words, rows: Rows) -> None: ...

    def _fold_one_valid(self, h: int, row: int) -> int:
        return h


class _WordColumn(Column):
    """Values of a fixed width; `words` has shape (rows, words per value), the low word first."""

    def __init__(self, array: pa.Array, words: Words) -> None:
        super().__init__(array)
        self.words = words

    def _fold_valid(self, hashes: Words, rows: Rows) -> None:
        width = self.words.shape[1]
        for position in range(width):
            absorb_all(self.words[rows, position], hashes)
        finish_all(hashes, np.uint32(4 * width))

    def _fold_one_valid(self, h: int, row: int) -> int:
        words = self.words[row].tolist()
        for word in words:
            h = absorb(word, h)
        return finish(h, 4 * len(words))


class _VariableColumn(Column):
    """Values of any length: row i is at ``starts[i]`` to ``starts[i] + lengths[i]``."""

    def __init__(self, array: pa.Array, starts: Rows, lengths: Rows) -> None:
        super().__init__(array)
        self.starts = starts
        self.lengths = lengths

    def _longest_first(self, rows: Rows) -> tuple[Rows, Rows, Rows]:
        """Return the order of rows by descending length, with the sorted starts and lengths.

        The rows that still have a word in a round are then a prefix, so that the work of all rounds grows
        with the bytes, however unequal the rows are.
        """
        lengths = self.lengths[rows]
        # NumPy sorts 16-bit integers by radix, in linear time.
        narrow = lengths.astype(np.uint16) if len(lengths) and lengths.max() < 1 << 16 else lengths
        order = np.argsort(narrow, kind="stable")[::-1]
        return order, self.starts[rows[order]], lengths[order]


class _BytesColumn(_VariableColumn):
    """Values of any length: row i is ``data[starts[i] : starts[i] + lengths[i]]``."""

    def __init__(self, array: pa.Array, data: npt.NDArray[np.uint8], starts: Rows, lengths: Rows) -> None:
        super().__init__(array, starts, lengths)
        self.data = data
        # Entry i is the word that starts at byte i, so words overlap and need no alignment.
        self.words: Words = np.ndarray(shape=(max(len(data) - 3, 0),), dtype="<u4", buffer=data, strides=(1,))

    def _fold_valid(self, hashes: Words, rows: Rows) -> None:
        if fold_bytes is not None:
            fold_bytes(hashes, self.data, self.starts, self.lengths, rows)
            return
        order, starts, lengths = self._longest_first(rows)
        folded = hashes[order]
        full_words = lengths >> 2
        done = 0
        while (active := _rows_longer_than(full_words, done)) >= _FEW_ROWS:
            absorb_all(self.words[starts[:active] + 4 * done], folded[:active])
            done += 1
        for row in range(active):
            first = int(starts[row]) + 4 * done
            words = self.data[first : int(starts[row] + 4 * full_words[row])].view("<u4")
            folded[row] = absorb_words(words, int(folded[row]))
        self._absorb_tails(folded, starts + 4 * full_words, lengths & 3)
        finish_all(folded, lengths.astype(np.uint32))
        hashes[order] = folded

    def _absorb_tails(self, hashes: Words, tails: Rows, tail_lengths: Rows) -> None:
        for position in range(3):
            some = np.flatnonzero(tail_lengths > position)
            part = hashes[some]
            signed = self.data[tails[some] + position].view(np.int8).astype(np.int32)
            absorb_all(signed.view(np.uint32), part)
            hashes[some] = part

    def _fold_one_valid(self, h: int, row: int) -> int:
        start = int(self.starts[row])
        return hash_bytes(self.data[start : start + int(self.lengths[row])].tobytes(), h)


class _StructColumn(Column):
    """The fields one after the other."""

    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        self.fields = [column_of(array.field(position)) for position in range(array.type.num_fields)]

    def _fold_valid(self, hashes: Words, rows: Rows) -> None:
        for field in self.fields:
            field.fold(hashes, rows)

    def _fold_one_valid(self, h: int, row: int) -> int:
        for field in self.fields:
            h = field.fold_one(h, row)
        return h


class _ListColumn(_VariableColumn):
    """The elements one after the other: row i is ``elements[starts[i] : starts[i] + lengths[i]]``."""

    def __init__(self, array: pa.Array, elements: pa.Array, starts: Rows, lengths: Rows) -> None:
        super().__init__(array, starts, lengths)
        self.elements = column_of(elements)

    def _fold_valid(self, hashes: Words, rows: Rows) -> None:
        order, starts, lengths = self._longest_first(rows)
        folded = hashes[order]
        done = 0
        while (active := _rows_longer_than(lengths, done)) >= _FEW_ROWS:
            self.elements.fold(folded[:active], starts[:active] + done)
            done += 1
        for row in range(active):
            first = int(starts[row])
            folded[row] = self._fold_elements(int(folded[row]), first + done, first + int(lengths[row]))
        hashes[order] = folded

    def _fold_elements(self, h: int, start: int, stop: int) -> int:
        for element in range(start, stop):
            h = self.elements.fold_one(h, element)
        return h

    def _fold_one_valid(self, h: int, row: int) -> int:
        start = int(self.starts[row])
        return self._fold_elements(h, start, start + int(self.lengths[row]))


class _DictionaryColumn(Column):
    """Row i is ``values[indices[i]]``."""

    def __init__(self, array: pa.DictionaryArray) -> None:
        super().__init__(array)
        self.values = column_of(array.dictionary)
        self.indices: Rows = array.indices.fill_null(0).to_numpy().astype(np.int64)

    def _fold_valid(self, hashes: Words, rows: Rows) -> None:
        self.values.fold(hashes, self.indices[rows])

    def _fold_one_valid(self, h: int, row: int) -> int:
        return self.values.fold_one(h, int(self.indices[row]))


def _rows_longer_than(lengths: Rows, done: int) -> int:
    """Count the rows with a length above `done`; the lengths are sorted in descending order."""
    return len(lengths) - int(np.searchsorted(lengths[::-1], done, side="right"))


# -- from Arrow to columns -------------------------------------------------------------------------


def column_of(array: pa.Array) -> Column:
    """Return the column of an array; raises as `keyedstate.murmur3.hash_columns`."""
    arrow_type = array.type
    types = pa.types
    if types.is_null(arrow_type):
        return _NullColumn(array)
    if types.is_boolean(arrow_type):
        return _WordColumn(array, _words(array.cast(pa.int8()), "i1", "<i4"))
    if types.is_signed_integer(arrow_type):
        width = arrow_type.bit_width // 8
        return _WordColumn(array, _words(array, f"<i{width}", "<i8" if width == 8 else "<i4"))
    if types.is_floating(arrow_type) and not types.is_float16(arrow_type):
        return _WordColumn(array, _canonical_float_words(array))
    if types.is_date32(arrow_type):
        return _WordColumn(array, _words(array, "<i4", "<i4"))
    if (spark_type := spark_time_type(arrow_type)) is not None:
        try:
            return _WordColumn(array, _words(array.cast(spark_type), "<i8", "<i8"))
        except pa.ArrowInvalid as error:
            raise LossyKeyTimeError(arrow_type, spark_type, str(error)) from error
    if types.is_decimal(arrow_type) and arrow_type.precision <= MAX_DECIMAL_DIGITS:
        return _decimal_column(array.cast(pa.decimal128(arrow_type.precision, arrow_type.scale)))
    if is_text(arrow_type) or is_binary(arrow_type):
        return _bytes_column(array)
    if types.is_struct(arrow_type):
        return _StructColumn(array)
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        return _list_column(array, array.offsets.to_numpy())
    if types.is_fixed_size_list(arrow_type):
        size = arrow_type.list_size
        return _list_column(array, np.arange(array.offset, array.offset + len(array) + 1) * size)
    if types.is_dictionary(arrow_type):
        return _DictionaryColumn(array)
    raise UnsupportedKeyTypeError(arrow_type)


def _values(array: pa.Array, dtype: str, per_row: int = 1, extra: int = 0) -> npt.NDArray[Any]:
    """Return the values of an array's first buffer as they are in memory, also those of nulls."""
    return _view(array.buffers()[1], dtype, array.offset * per_row, len(array) * per_row + extra)


def _view(buffer: pa.Buffer | None, dtype: str, start: int, count: int) -> npt.NDArray[Any]:
    # Arrow may leave out the buffers of an array without rows.
    if buffer is None or buffer.size == 0:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=start * np.dtype(dtype).itemsize)


def _words(array: pa.Array, dtype: str, widened: str) -> Words:
    return _as_words(_values(array, dtype).astype(widened, copy=False))


def _as_words(values: npt.NDArray[Any]) -> Words:
    return values.view("<u4").reshape(len(values), values.itemsize // 4)


def _canonical_float_words(array: pa.Array) -> Words:
    """Return the words of floats, with Java's one NaN for every NaN and 0.0 for -0.0."""
    single = pa.types.is_float32(array.type)
    # On the bits, since a comparison of floats may warn about a signalling NaN.
    bits = _values(array, "<u4" if single else "<u8")
    unsigned = bits.dtype.type
    magnitude = bits & unsigned(0x7FFF_FFFF if single else 0x7FFF_FFFF_FFFF_FFFF)
    infinity = unsigned(0x7F80_0000 if single else 0x7FF0 << 48)
    nan = unsigned(0x7FC0_0000 if single else 0x7FF8 << 48)
    canonical = np.where(magnitude > infinity, nan, bits)
    canonical[magnitude == 0] = 0
    return _as_words(canonical)


def _decimal_column(array: pa.Array) -> Column:
    """Return decimals as longs, or above 18 digits as the fewest big-endian bytes of the unscaled value."""
    if array.type.precision <= MAX_LONG_DIGITS:
        return _WordColumn(array, _values(array, "<u4", per_row=4).reshape(-1, 4)[:, :2])
    little_endian = _values(array, "u1", per_row=16).reshape(-1, 16)
    data = np.ascontiguousarray(little_endian[:, ::-1])
    # A leading byte is redundant if it repeats the sign bit of the next byte.
    sign_bytes = np.where(data[:, 1:] >= 0x80, np.uint8(0xFF), np.uint8(0))
    redundant = np.logical_and.accumulate(data[:, :-1] == sign_bytes, axis=1).sum(axis=1)
    starts = np.arange(len(data), dtype=np.int64) * 16 + redundant
    return _BytesColumn(array, data.reshape(-1), starts, 16 - redundant)


def _bytes_column(array: pa.Array) -> Column:
    types = pa.types
    if types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    elif types.is_binary_view(array.type) or types.is_fixed_size_binary(array.type):
        array = array.cast(pa.large_binary())
    large = types.is_large_string(array.type) or types.is_large_binary(array.type)
    starts, lengths = _starts_and_lengths(_values(array, "<i8" if large else "<i4", extra=1))
    data = _view(array.buffers()[2], "u1", 0, -1)
    return _BytesColumn(array, data, starts, lengths)


def _list_column(array: pa.Array, offsets: npt.NDArray[Any]) -> Column:
    starts, lengths = _starts_and_lengths(offsets)
    # Only the elements of these rows, so that a short slice of a long array costs little.
    first = int(starts[0]) if len(starts) else 0
    elements = array.values.slice(first, int(lengths.sum()))
    return _ListColumn(array, elements, starts - first, lengths)


def _starts_and_lengths(offsets: npt.NDArray[Any]) -> tuple[Rows, Rows]:
    wide = offsets.astype(np.int64)
    return wide[:-1], np.diff(wide)
