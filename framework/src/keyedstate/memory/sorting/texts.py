"""Columns of strings or bytes as NumPy numbers: where each text begins, and eight of its bytes at a time."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

WORD_BYTES: Final = 8
#: By the number of bytes that a word has: the bits that they occupy.
_MASKS = np.array([2**64 - 2 ** (8 * (WORD_BYTES - count)) for count in range(WORD_BYTES + 1)], np.uint64)


class Texts(NamedTuple):
    """The texts of a column without nulls.

    Attributes
    ----------
    offsets : ndarray of int64
        Where each text begins in `data`, and the end of the last one.
    data : ndarray of uint8
    """

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, column: pa.Array) -> Texts:
        """Return the texts of a column of strings or bytes, with offsets of 32 or 64 bits."""
        large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
        _, places, content = column.buffers()
        if not len(column):
            return cls(np.zeros(1, np.int64), np.zeros(0, np.uint8))
        offsets: NDArray[Any] = np.frombuffer(places, np.int64 if large else np.int32)
        offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
        data = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
        return cls(offsets - offsets[0], data[offsets[0] : offsets[-1]])

    def lengths(self) -> NDArray[np.int64]:
        """Return the bytes of each text."""
        return np.diff(self.offsets)

    def words(self, depth: int, count: int = WORD_BYTES) -> NDArray[np.uint64]:
        """Return up to `count` bytes of each text from an offset on, and zeros where there are fewer."""
        # Eight bytes are read in any case, also behind the last text.
        padded = np.zeros(len(self.data) + WORD_BYTES, np.uint8)
        padded[: len(self.data)] = self.data
        everywhere: NDArray[Any] = np.ndarray((len(self.data) + 1,), ">u8", padded, strides=(1,))
        starts = np.minimum(self.offsets[:-1] + depth, len(self.data))
        words = everywhere[starts].astype(np.uint64)
        words &= _MASKS[np.clip(self.offsets[1:] - starts, 0, count)]
        return words
