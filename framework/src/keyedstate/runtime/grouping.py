"""Rows grouped by key, on columns: a distinct key costs a Python object, a row none.

Each row gets the number of its key; keys are numbered in the order of their first appearance.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.row_path import numbered_texts
from keyedstate.types import TypeSerializer, from_arrow_type, nullable, tuple_of

Integers = npt.NDArray[np.int64]

#: Types whose values are equal where their bytes are, with ends of 32 bits.
_TEXTS = (pa.string(), pa.binary())


def key_serializer_for(types: Sequence[pa.DataType]) -> TypeSerializer[Any]:
    """Return the serializer of a key made of columns of these Arrow types; several make a tuple.

    Every column is nullable: a null key is a key like any other, as in Spark's ``GROUP BY``.
    """
    parts = [nullable(from_arrow_type(type_)) for type_ in types]
    return parts[0] if len(parts) == 1 else tuple_of(*parts)


class GroupedRows:
    """The distinct keys of some rows, and the key of each row.

    Parameters
    ----------
    columns : sequence of pyarrow.Array
        The key columns of the rows.
    key_groups : ndarray of int32
        The key group of each row.
    numbered : tuple of ndarray of int64, optional
        `codes` and `first_rows`, where they are known.

    Attributes
    ----------
    codes : ndarray of int64
        For each row the number of its key, from 0 in the order of first appearance.
    first_rows : ndarray of int64
        The first row of each key.
    key_groups : ndarray of int32
        The key group of each distinct key.
    """

    def __init__(
        self,
        columns: Sequence[pa.Array],
        key_groups: npt.NDArray[np.int32],
        numbered: tuple[Integers, Integers] | None = None,
    ) -> None:
        #: Whether each key is known to have a row; false for the result of `where`.
        self.all_have_rows = True
        self.codes, self.first_rows = _numbered(columns) if numbered is None else numbered
        self._columns = columns
        self.key_groups = key_groups[self.first_rows]

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        return len(self.first_rows)

    @property
    def last_rows(self) -> Integers:
        """The last row of each key."""
        last = np.empty(len(self), np.int64)
        # Of several assignments to one place the last one counts.
        last[self.codes] = np.arange(len(self.codes))
        return last

    @cached_property
    def keys(self) -> list[Any]:
        """The distinct keys as Python values in canonical form, tuples of several columns."""
        return joined_values(self.key_values)

    @cached_property
    def key_values(self) -> list[list[Any]]:
        """The same, a list for each key column."""
        return values_of(self._distinct)

    @cached_property
    def key_columns(self) -> list[pa.Array]:
        """The distinct keys as columns."""
        return [canonical_column(column) for column in self._distinct]

    @property
    def _distinct(self) -> list[pa.Array]:
        return [column.take(pa.array(self.first_rows)) for column in self._columns]

    @cached_property
    def rows_by_key(self) -> Integers:
        """The numbers of all rows, consecutive for each key, and in their order within a key."""
        # NumPy sorts numbers of 16 bits by their digits, in an eighth of the time.
        order = np.argsort(self.codes.astype(np.uint16), kind="stable")
        if len(self) > 1 << 16:
            order = order[np.argsort((self.codes[order] >> 16).astype(np.uint16), kind="stable")]
        return order

    @cached_property
    def bounds(self) -> Integers:
        """The start of the rows of each key in `rows_by_key`, and their number at the end."""
        bounds = np.zeros(len(self) + 1, np.int64)
        np.cumsum(np.bincount(self.codes, minlength=len(self)), out=bounds[1:])
        return bounds

    def where(self, chosen: npt.NDArray[np.bool_]) -> GroupedRows:
        """Return some of the rows with the same keys, of which some may have no row then."""
        some = copy.copy(self)
        some.codes = self.codes[chosen]
        some.all_have_rows = False
        for made_of_codes in ("rows_by_key", "bounds"):
            vars(some).pop(made_of_codes, None)
        return some

    def present(self, column: pa.Array) -> tuple[Integers, npt.NDArray[Any]]:
        """Return the key numbers of the rows in which a column is not null, and its values there."""
        if not column.null_count:
            return self.codes, column.to_numpy(zero_copy_only=False)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        return self.codes[valid], column.drop_null().to_numpy(zero_copy_only=False)

    def aggregated(self, column: pa.Array, function: str) -> pa.ChunkedArray:
        """Return one of Arrow's hash aggregations of a column for each key, in the order of the keys.

        A key without rows has a null.

        `function` is a name of `pyarrow.TableGroupBy.aggregate`, such as "sum".

        Raises
        ------
        pyarrow.ArrowNotImplementedError
            Where Arrow has no such aggregation of the column's type.
        """
        table = pa.table({"key": self.codes, "value": column})
        made = table.group_by("key", use_threads=False).aggregate([("value", function)])
        values, keys = made.column(f"value_{function}"), made.column("key")
        if len(keys) == len(self):
            return values.take(pc.sort_indices(keys))
        places = np.full(len(self), -1)
        places[keys.to_numpy()] = np.arange(len(keys))
        return values.take(pa.array(places, mask=places < 0))


def keys_of(columns: Sequence[pa.Array]) -> list[Any]:
    """Return the keys of rows, in canonical form: the values of a column, or tuples of several."""
    return joined_values(values_of(columns))


def joined_values(values: list[list[Any]]) -> list[Any]:
    """Return the values of one column as they are, those of several as tuples."""
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def values_of(columns: Sequence[pa.Array]) -> list[list[Any]]:
    """Return key columns as lists of values in canonical form."""
    return [canonical_values(column, from_arrow_type(column.type)) for column in columns]


def canonical_values(column: pa.Array, serializer: TypeSerializer[Any]) -> list[Any]:
    """Return the values of a column in canonical form, None for nulls."""
    values = serializer.from_arrow(column)
    if not serializer.needs_canonical:
        return values
    canonical = serializer.canonical
    return [None if value is None else canonical(value) for value in values]


def canonical_column(column: pa.Array) -> pa.Array:
    """Return a key column in canonical form: with one NaN, and 0.0 for -0.0."""
    if pa.types.is_floating(column.type):
        return _canonical_floats(column)
    if pa.types.is_struct(column.type) and column.type.num_fields:
        parts = [canonical_column(part) for part in column.flatten()]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(column.type), mask=mask)
    return column


def _canonical_floats(column: pa.Array) -> pa.Array:
    """Return floats with one NaN, and 0.0 for -0.0."""
    nan, zero = pa.scalar(float("nan"), column.type), pa.scalar(0.0, column.type)
    return pc.if_else(pc.equal(column, zero), zero, pc.if_else(pc.is_nan(column), nan, column))


def _numbered(columns: Sequence[pa.Array]) -> tuple[Integers, Integers]:
    """Return the number of each row's key, and the first row of each key."""
    found: tuple[Integers, Integers] | None = None
    for leaf in (leaf for column in columns for leaf in _leaves(column)):
        codes, first_rows = _numbered_values(leaf)
        if found is not None:
            # Below 2**62, since there are fewer keys than rows of one batch, which are fewer than 2**31.
            codes, first_rows = _numbered_values(pa.array(found[0] * len(first_rows) + codes))
        found = codes, first_rows
    assert found is not None, "a key has at least one column"
    return found


def _numbered_values(column: pa.Array) -> tuple[Integers, Integers]:
    """Return the number of each row's value, and the first row of each value; null is a value."""
    if numbered_texts is not None and len(column) and column.type in _TEXTS and not column.null_count:
        codes, first_rows = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
        _, ends, data = column.buffers()
        ends = np.frombuffer(ends, np.int32, len(column) + 1, 4 * column.offset)
        count = numbered_texts(ends, np.frombuffer(data or b"", np.uint8), codes, first_rows)
        if count >= 0:
            return codes, first_rows[:count].copy()
    encoded = column.dictionary_encode(null_encoding="encode")
    # 64 bits first: before NumPy 2 a product of 32-bit integers with a 64-bit scalar wraps around.
    codes = encoded.indices.to_numpy().astype(np.int64)
    first_rows = np.empty(len(encoded.dictionary), np.int64)
    # The last assignment to an index counts: backwards, that is the first row.
    first_rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, first_rows


def _leaves(column: pa.Array) -> list[pa.Array]:
    """Return columns of single values, equal in two rows exactly where Spark's ``GROUP BY`` groups them."""
    if pa.types.is_struct(column.type):
        parts = [leaf for part in column.flatten() for leaf in _leaves(part)]
        return [column.is_valid(), *parts] if column.null_count else parts
    if pa.types.is_floating(column.type):
        return [_canonical_floats(column)]
    if pa.types.is_dictionary(column.type):
        return [column.dictionary_decode()]
    return [column]
