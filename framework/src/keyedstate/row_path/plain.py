"""The steps of the per-record path as plain Python; `compiled.pyx` has the same ones."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

C = TypeVar("C", bound=type)

_NAIVE_EPOCH = dt.datetime(1970, 1, 1)
_UTC_EPOCH = _NAIVE_EPOCH.replace(tzinfo=dt.timezone.utc)

_ROWS = frozenset((tuple, list))
_INTEGERS = frozenset((int,))
_TEXTS = frozenset((str,))
#: What precedes a short string in ASCII: its length and one.
_HEADS = [chr(length + 1) for length in range(0x7F)]


#: Replaces ``hashes[i]`` by Spark's hash, with it as the seed, of the bytes of row ``rows[i]``.
#: None where NumPy does so for many rows at once.
fold_bytes: Callable[[Any, Any, Any, Any, Any], None] | None = None
#: Writes the number of each text, in the order of their first appearance, and the first row of each number;
#: returns how many there are, or -1 where too many texts have the same hash.  Takes the ends of the texts and
#: their bytes as an Arrow array has them, and the arrays for both, of 64 bits and as many rows.  None and -1
#: leave it to pyarrow.
numbered_texts: Callable[[Any, Any, Any, Any], int] | None = None


def columns_of(rows: list[Any], width: int) -> list[list[Any]] | None:
    """Return the values of rows by column; None unless each row is a tuple or list of so many values."""
    if not _ROWS.issuperset(map(type, rows)) or not {width}.issuperset(map(len, rows)):
        return None
    # zip(*rows) would make an iterator for each row, which triggers the garbage collector.
    return [list(map(itemgetter(index), rows)) for index in range(width)]


def are_of(values: Sequence[Any], types: frozenset[type]) -> bool:
    """Return whether the class of each value is one of `types`, exactly."""
    return types.issuperset(map(type, values))


def packed_longs(values: Sequence[Any]) -> bytes | None:
    """Return integers as the bytes of an Arrow array; None if one is no integer of 64 bits."""
    if not are_of(values, _INTEGERS):
        return None
    try:
        # A quarter of the time of pa.array.
        return struct.pack(f"{len(values)}q", *values)
    except struct.error:
        return None


def packed_text(values: Sequence[Any]) -> tuple[bytes, bytes] | None:
    """Return strings as the offsets and the bytes of an Arrow array, or None for pyarrow to do it."""
    return None


def short_texts(
    prefixes: list[bytes], numbers: list[int], texts: list[Any], end: bytes
) -> list[bytes] | None:
    """Return for each text the prefix of its number, the bytes of `keyedstate.types.STRING`, and the end.

    None for the caller to make them, unless all are short strings in ASCII. Raises ValueError where there are
    not as many numbers as texts.
    """
    if not are_of(texts, _TEXTS) or max(map(len, texts), default=0) >= len(_HEADS):
        return None
    if not "".join(texts).isascii():
        return None
    # Joining text takes a third of the time of joining bytes; each character is a byte.
    begins, tail = [prefix.decode("latin-1") for prefix in prefixes], end.decode("latin-1")
    rows = [
        f"{begins[number]}{_HEADS[len(text)]}{text}{tail}"
        for number, text in zip(numbers, texts, strict=True)
    ]
    return [row.encode("latin-1") for row in rows]


def packed_instants(values: Sequence[Any], in_utc: bool) -> bytes | None:
    """Return datetimes as the microseconds of an Arrow array, or None for pyarrow to do it.

    Their time zone is ``timezone.utc``, or none at all.
    """
    return None


def instants_of(micros: npt.NDArray[np.int64], in_utc: bool) -> list[dt.datetime]:
    """Return the instants so many microseconds after 1970, all of them in the years 1 to 9999."""
    epoch = _UTC_EPOCH if in_utc else _NAIVE_EPOCH
    # A thirtieth of the time of pyarrow's to_pylist, which looks up the zone for every value.
    return list(map(epoch.__add__, micros.astype("timedelta64[us]").tolist()))


def repeated(values: list[Any], counts: list[int]) -> list[Any]:
    """Return a list in which each value is as many times, consecutively, as its count says; none is negative.

    Raises ValueError where there are not as many counts as values.
    """
    repeats = (repeat(value, count) for value, count in zip(values, counts, strict=True))
    return list(chain.from_iterable(repeats))


def tuples_of(cls: type[Any], columns: Sequence[list[Any]]) -> Iterator[Any]:
    """Iterate over rows, which are instances of a class of tuples, with these values by column.

    Raises ValueError where columns have different lengths.
    """
    # As `_make` of a named tuple, which is a Python function and half as fast.
    return map(tuple.__new__, repeat(cls), zip(*columns, strict=True))


#: Takes what `TypeSerializer.check_parts` returns, and returns the check.
#: None where one that is generated for the type is faster.
checker: Callable[[Any], Callable[[Any], bool]] | None = None


#: Takes the `Parts` of `keyedstate.types.contract.compiled_bytes`, and returns what writes and reads the
#: bytes of a tuple, or None for unknown fields; its `to_bytes`, `from_bytes` and `read` return None for
#: whatever is rare.  None where functions that are generated for the type are faster.
coder: Callable[[Any], Any] | None = None


def with_cached_access(context_class: type) -> Callable[[C], C]:
    """Return a decorator for the class of an accessor, which may replace its `value` and `update`.

    `context_class` is that of its `_context`.
    """
    return lambda cls: cls
