"""The steps of Spark's Murmur3_x86_32, for one value (Python numbers) and for many (NumPy).

Hashes are unsigned 32-bit numbers here; only the public functions make them signed.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint32]
"""One unsigned 32-bit number per row: words to absorb, or hashes so far."""

LOW_32 = 0xFFFF_FFFF

_C1, _C2, _C3 = 0xCC9E2D51, 0x1B873593, 0xE6546B64
_F1, _F2 = 0x85EBCA6B, 0xC2B2AE35
_U32_C1, _U32_C2, _U32_C3, _U32_5 = np.uint32(_C1), np.uint32(_C2), np.uint32(_C3), np.uint32(5)
_U32_F1, _U32_F2 = np.uint32(_F1), np.uint32(_F2)
_S13, _S15, _S16, _S17, _S19 = (np.uint32(bits) for bits in (13, 15, 16, 17, 19))

# Words of one long value that are converted to Python numbers at a time.
_CHUNK_WORDS = 65_536
# Up to so many bytes Python is faster than NumPy.
_SHORT_BYTES = 64


# -- one value -------------------------------------------------------------------------------------


def absorb(word: int, h: int) -> int:
    """Return `h` with one unsigned 32-bit word mixed in."""
    word = word * _C1 & LOW_32
    h ^= (word << 15 | word >> 17) * _C2 & LOW_32
    # Bits above 32 only move up from here, so one cut at the end is enough.
    return ((h << 13 | h >> 19) * 5 + _C3) & LOW_32


def absorb_words(words: Words, h: int) -> int:
    """Return `h` with the words of one long value mixed in.

    The words are scrambled together; only the chain through `h` must be a loop.
    """
    for start in range(0, len(words), _CHUNK_WORDS):
        for word in _scramble(words[start : start + _CHUNK_WORDS].copy()).tolist():
            h ^= word
            h = ((h << 13 | h >> 19) * 5 + _C3) & LOW_32
    return h


def finish(h: int, length: int) -> int:
    """Return the hash of a value of `length` bytes, all of which `h` has absorbed."""
    h ^= length & LOW_32
    h = (h ^ h >> 16) * _F1 & LOW_32
    h = (h ^ h >> 13) * _F2 & LOW_32
    return h ^ h >> 16


def hash_int(value: int, h: int) -> int:
    """Return the hash of a 32-bit number, signed or not, with the seed `h`."""
    return finish(absorb(value & LOW_32, h), 4)


def hash_long(value: int, h: int) -> int:
    """Return the hash of a 64-bit number, signed or not, with the seed `h`."""
    return finish(absorb(value >> 32 & LOW_32, absorb(value & LOW_32, h)), 8)


def hash_bytes(data: bytes, h: int) -> int:
    """Return the hash of a string of bytes with the seed `h`."""
    aligned = len(data) & ~3
    if len(data) <= _SHORT_BYTES:
        for (word,) in struct.iter_unpack("<I", data[:aligned]):
            h = absorb(word, h)
    else:
        h = absorb_words(np.frombuffer(data, dtype="<u4", count=aligned >> 2), h)
    for byte in data[aligned:]:
        # Java's bytes are signed.
        h = absorb(byte if byte < 0x80 else byte | 0xFFFF_FF00, h)
    return finish(h, len(data))


# -- many values -----------------------------------------------------------------------------------


def absorb_all(words: Words, hashes: Words) -> None:
    """Mix one word per row into the hashes, in place; overwrites `words`."""
    hashes ^= _scramble(words)
    high = hashes >> _S19
    hashes <<= _S13
    hashes |= high
    hashes *= _U32_5
    hashes += _U32_C3


def finish_all(hashes: Words, lengths: Words | np.uint32) -> None:
    """Finish the hashes, in place, of values of `lengths` bytes that they have absorbed."""
    hashes ^= lengths
    hashes ^= hashes >> _S16
    hashes *= _U32_F1
    hashes ^= hashes >> _S13
    hashes *= _U32_F2
    hashes ^= hashes >> _S16


def _scramble(words: Words) -> Words:
    words *= _U32_C1
    high = words >> _S17
    words <<= _S15
    words |= high
    words *= _U32_C2
    return words
