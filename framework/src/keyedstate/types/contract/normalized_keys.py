"""The normalized keys of the parts that types are made of, computed from Arrow columns without nulls.

A type has two forms of its order in bytes.  Its normalized key has a fixed length, for index entries; that of
text is a prefix.  Its whole key has any length and always decides.  No whole key begins with another one, so
that those of parts can be joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.memory.sorting.texts import Texts

#: The normalized key of text: its first bytes, and then its length, which counts no further than this key.
TEXT_KEY_BYTES = 8
_TEXT_PREFIX = TEXT_KEY_BYTES - 1
_BYTES = pa.large_binary()


def number_keys(numbers: NDArray[Any]) -> NormalizedKeys:
    """Return the keys of booleans, integers or floats: big-endian, a signed number with its sign bit flipped.

    Floats are in their total order, but for what `TypeSerializer.canonical` makes equal: -0.0 is 0.0, and all
    NaNs are one, the last of all.
    """
    kind, width = numbers.dtype.kind, numbers.dtype.itemsize
    unsigned = np.dtype(f"u{width}")
    bits: NDArray[Any]
    if kind == "f":
        with np.errstate(invalid="ignore"):  # A sum with a signaling NaN
            # The sum turns -0.0 into 0.0.
            bits = np.where(np.isnan(numbers), numbers.dtype.type("nan"), numbers + numbers.dtype.type(0))
        bits = bits.view(unsigned)
        sign = unsigned.type(1 << (8 * width - 1))
        bits = np.where(bits & sign, ~bits, bits | sign)
    elif kind == "i":
        bits = numbers.view(unsigned) ^ unsigned.type(1 << (8 * width - 1))
    else:
        bits = numbers.view(unsigned)
    return NormalizedKeys(bits.astype(unsigned.newbyteorder(">")).view(np.uint8).reshape(len(numbers), width))


def decimal_keys(column: pa.Array, compact: bool) -> NormalizedKeys:
    """Return the keys of 128-bit decimals: their unscaled numbers, `compact` ones in 64 bits."""
    halves = np.frombuffer(column.buffers()[1], "<u8").reshape(-1, 2)
    halves = halves[column.offset : column.offset + len(column)]
    if compact:
        return number_keys(np.ascontiguousarray(halves[:, 0]).view(np.int64))
    keys = halves[:, ::-1].astype(">u8")
    keys[:, 0] ^= np.uint64(1 << 63)
    return NormalizedKeys(keys.view(np.uint8))


def fixed_bytes_keys(column: pa.Array) -> NormalizedKeys:
    """Return the keys of bytes of one length, which are themselves."""
    width = column.type.byte_width
    data = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, width)
    return NormalizedKeys(data[column.offset : column.offset + len(column)])


def text_keys(column: pa.Array) -> NormalizedKeys:
    """Return the keys of strings, as UTF-8, or bytes: the first seven bytes, and the length or at most eight.

    The order of UTF-8 is that of the code points.
    """
    texts = Texts.of(column)
    lengths = texts.lengths()
    words = texts.words(0, _TEXT_PREFIX) | np.minimum(lengths, TEXT_KEY_BYTES).astype(np.uint64)
    keys = words.astype(">u8").view(np.uint8).reshape(len(column), TEXT_KEY_BYTES)
    return NormalizedKeys(keys, lengths > _TEXT_PREFIX)


def is_text(arrow_type: pa.DataType) -> bool:
    """Return whether `text_keys` reads columns of a type."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(arrow_type) for test in tests)


def whole_number_keys(keys: NormalizedKeys) -> pa.LargeBinaryArray:
    """Return the whole keys of values whose normalized keys decide: the same bytes."""
    offsets = np.arange(len(keys) + 1, dtype=np.int64) * keys.length
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(keys.data))]
    return pa.Array.from_buffers(_BYTES, len(keys), buffers)


def whole_text_keys(column: pa.Array) -> pa.LargeBinaryArray:
    """Return the whole keys of strings or bytes: two zeros end them, and a 255 follows each other zero."""
    texts = column.cast(_BYTES)
    if not Texts.of(texts).data.all():
        texts = pc.replace_substring(texts, pattern=b"\0", replacement=b"\0\xff")
    return pc.binary_join_element_wise(texts, _scalar(b"\0\0"), _scalar(b""))


def joined(parts: Sequence[pa.LargeBinaryArray], rows: int) -> pa.LargeBinaryArray:
    """Return the whole keys of values that consist of parts."""
    if not parts:
        return pa.repeat(_scalar(b""), rows)
    return pc.binary_join_element_wise(*parts, _scalar(b"")) if len(parts) > 1 else parts[0]


def inverted(keys: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return the whole keys of the descending order."""
    offsets, data = Texts.of(keys)
    return pa.Array.from_buffers(_BYTES, len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(~data)])


def added_length(lengths: Sequence[int | None]) -> int | None:
    """Return the length of concatenated keys, and None where a part has no order."""
    known = [length for length in lengths if length is not None]
    return sum(known) if len(known) == len(lengths) else None


def _scalar(value: bytes) -> pa.LargeBinaryScalar:
    # No constants: pyarrow imports pandas to make one.
    return pa.scalar(value, _BYTES)
