"""Spark's SQL function ``hash``, which decides the key group of a key, over Arrow columns and Python values.

The JVM computes key groups with ``pmod(hash(keys...), max_parallelism)``.  Tools, the test harness and checks
in Python compute the same number here.  The algorithm is that of Spark's ``Murmur3Hash`` expression:
Murmur3_x86_32 with seed 42.  The hash so far is the seed of each column, struct field and list element; a
null does not change it.  The one to three bytes after the last full word of a string are mixed in one by one
as signed numbers (``Murmur3_x86_32.hashUnsafeBytes``; standard Murmur3 differs there).

`hash_columns` hashes whole columns with NumPy, `hash_value` one Python value.  Tests compare both with Spark
and with each other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.errors import InvalidKeyValueError
from keyedstate.keygroups import check_max_parallelism
from keyedstate.murmur3.columns import column_of
from keyedstate.murmur3.mixing import LOW_32
from keyedstate.murmur3.values import value_fold

__all__ = ["SPARK_SEED", "hash_columns", "hash_value", "key_groups"]

SPARK_SEED = 42
"""The seed of Spark's ``hash``, and its value for a key whose columns are all null."""

# Rows hashed at a time, so that a block stays in the processor's cache.
_BLOCK_ROWS = 16_384


def hash_columns(arrays: Sequence[pa.Array | pa.ChunkedArray]) -> npt.NDArray[np.int32]:
    """Return Spark's ``hash(column, ...)`` of every row.

    Parameters
    ----------
    arrays : sequence of pyarrow.Array or pyarrow.ChunkedArray
        The key columns in order, all of one length.  Timestamps and durations of another unit than Spark's
        microseconds are converted, dictionaries are decoded.

    Returns
    -------
    ndarray of int32, shape (rows,)

    Raises
    ------
    UnsupportedKeyTypeError
        If a column has a type without a hash.
    LossyKeyTimeError
        If a time cannot be converted to Spark's unit.
    ValueError
        If there is no column, or if the columns differ in length.
    """
    if not arrays:
        raise ValueError("no key column was given: pass at least one.")
    rows = len(arrays[0])
    if any(len(array) != rows for array in arrays):
        lengths = ", ".join(str(len(array)) for array in arrays)
        raise ValueError(
            f"the key columns have different lengths ({lengths}): pass columns of the same rows."
        )
    hashes = np.full(rows, SPARK_SEED, dtype=np.uint32)
    for array in arrays:
        done = 0
        # The type is checked also where there is no chunk.
        chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
        for chunk in chunks or [pa.array([], type=array.type)]:
            column = column_of(chunk)
            for start in range(0, len(chunk), _BLOCK_ROWS):
                block = np.arange(start, min(start + _BLOCK_ROWS, len(chunk)), dtype=np.int64)
                column.fold(hashes[done + start : done + start + len(block)], block)
            done += len(chunk)
    return hashes.view(np.int32)


def key_groups(arrays: Sequence[pa.Array | pa.ChunkedArray], max_parallelism: int) -> npt.NDArray[np.int32]:
    """Return the key group of every row: ``pmod(hash(column, ...), max_parallelism)``.

    Parameters, result and errors are those of `hash_columns`; `max_parallelism` is from 1 to 32,768.

    Raises
    ------
    InvalidParallelismError
    """
    check_max_parallelism(max_parallelism)
    # numpy's remainder takes the sign of the divisor, as pmod does.
    groups: npt.NDArray[np.int32] = np.remainder(hash_columns(arrays), np.int32(max_parallelism))
    return groups


def hash_value(value: object, arrow_type: pa.DataType, *, seed: int = SPARK_SEED) -> int:
    """Return Spark's ``hash`` of one Python value, as a signed 32-bit number.

    Parameters
    ----------
    value : object
        ``None`` or what ``as_py()`` gives for the type; a struct may also be a tuple in field order.
    arrow_type : pyarrow.DataType
        The type of the key column: the same number hashes differently as int32 and as int64.
    seed : int
        The hash of the key columns before this one.

    Raises
    ------
    UnsupportedKeyTypeError
        If the type has no hash.
    InvalidKeyValueError
        If the value does not fit the type.
    """
    fold = value_fold(arrow_type)
    try:
        unsigned = fold(value, seed & LOW_32)
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        raise InvalidKeyValueError(value, arrow_type, str(error)) from error
    return unsigned - (1 << 32) if unsigned >> 31 else unsigned
