"""The order of rows by some of their columns, as whole numbers: that of Spark, in which NaN comes last.

Rows with a null in one of the columns have no place in the order.  A null inside a struct comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.aggregates.declaration import values_type, wrong_type
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.state.type_order import sort_key
from keyedstate.tables import column_of, is_numeric
from keyedstate.types import TypeSerializer

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_LARGEST = np.iinfo(np.int64).max


def ordered_type(name: str, arrow_type: pa.DataType) -> TypeSerializer[Any]:
    """Return the type of a column's values in state; raises `InvalidAggregateError` without an order."""
    serializer = values_type(name, arrow_type)
    if not _has_order(arrow_type) or sort_key(serializer) is None:
        raise wrong_type(name, arrow_type, "values with an order")
    return serializer


def _has_order(arrow_type: pa.DataType) -> bool:
    if pa.types.is_struct(arrow_type):
        return arrow_type.num_fields > 0 and all(_has_order(field.type) for field in arrow_type)
    return not (pa.types.is_nested(arrow_type) or pa.types.is_null(arrow_type))


def order_key(types: Sequence[TypeSerializer[Any]]) -> Callable[[Any], Any]:
    """Return the function by whose results values are compared, tuples of several columns' values."""
    keys = [sort_key(type) for type in types]
    known = [key for key in keys if key is not None]
    assert len(known) == len(types), "checked by ordered_type"
    if len(known) == 1:
        return known[0]
    return lambda values: tuple([key(value) for key, value in zip(known, values, strict=True)])


def order_of(columns: Sequence[pa.Array], descending: Sequence[bool] = ()) -> tuple[Integers, Flags | None]:
    """Return numbers in the order of rows, and which rows have a place in it; None for all.

    `descending` says which columns have their largest value first; by default none.
    """
    valid: Flags | None = None
    for column in columns:
        if column.null_count:
            of_column = column.is_valid().to_numpy(zero_copy_only=False)
            valid = of_column if valid is None else valid & of_column
    numbers = [_numbers(column) for column in columns]
    # The complement reverses the order and does not overflow.
    directed = [~each if falls else each for each, falls in zip(numbers, descending, strict=False)]
    return _combined([*directed, *numbers[len(directed) :]]), valid


def float_order(values: npt.NDArray[np.float64]) -> Integers:
    """Return whole numbers in the order of floats: both zeros are equal, and so are all NaNs, the largest."""
    # Adding a zero makes -0.0 to 0.0.
    bits = (values.astype(np.float64, copy=False) + 0.0).view(np.int64)
    ordered = np.where(bits < 0, bits ^ _LARGEST, bits)
    ordered[np.isnan(values)] = _LARGEST
    return ordered


def best_rows(
    rows: GroupedRows, order: Integers, valid: Flags | None, *, largest: bool, last: bool
) -> Integers:
    """Return the row of each key that is first or last in an order, -1 where no row has a place in it.

    Of equal ones it is the first row, or the last one with `last`.
    """
    places = None
    if valid is not None and not valid.all():
        rows, places = rows.where(valid), np.flatnonzero(valid)
        order = order[places]
    picked = np.full(len(rows), -1)
    if not len(rows.codes):
        return picked
    by_key, counts = rows.rows_by_key, np.diff(rows.bounds)
    sorted_order = order[by_key]
    reduce = np.maximum if largest else np.minimum
    best = reduce.reduceat(sorted_order, rows.bounds[:-1][counts > 0])
    found = by_key[sorted_order == np.repeat(best, counts[counts > 0])]
    # Of several assignments to one place the last one counts.
    found = found if last else found[::-1]
    picked[rows.codes[found]] = found if places is None else places[found]
    return picked


def ranked_rows(rows: GroupedRows, order: Integers, valid: Flags | None, n: int) -> tuple[Integers, Integers]:
    """Return the first `n` rows of each key in an order, consecutive by key, and the bounds of each key.

    Of equal rows the earlier one is first.
    """
    places = np.arange(len(rows.codes))
    codes = rows.codes
    if valid is not None:
        places, codes, order = places[valid], codes[valid], order[valid]
    sorting = np.lexsort((order, codes))
    places, codes = places[sorting], codes[sorting]
    counts = np.bincount(codes, minlength=len(rows))
    starts = np.concatenate([[0], np.cumsum(counts)])
    chosen = np.arange(len(codes)) - starts[codes] < n
    return places[chosen], np.concatenate([[0], np.cumsum(np.minimum(counts, n))])


def _numbers(column: pa.Array) -> Integers:
    """Return whole numbers in the order of a column's values, any for nulls."""
    arrow_type = column.type
    if pa.types.is_floating(arrow_type):
        return float_order(column.fill_null(0.0).to_numpy(zero_copy_only=False))
    if is_numeric(arrow_type):
        numbers: Integers = column_of(column).values
        return numbers
    if pa.types.is_struct(arrow_type):
        parts: list[npt.NDArray[Any]] = []
        for part in column.flatten():
            of_part = _numbers(part)
            if part.null_count:
                valid = part.is_valid().to_numpy(zero_copy_only=False)
                parts.append(valid)
                of_part = np.where(valid, of_part, 0)
            parts.append(of_part)
        return _combined(parts)
    encoded = column.dictionary_encode()
    ranks = np.empty(len(encoded.dictionary), np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    if not len(ranks):
        return np.zeros(len(column), np.int64)
    of_rows: Integers = ranks[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    return of_rows


def _combined(parts: Sequence[npt.NDArray[Any]]) -> Integers:
    """Return numbers in the order of several, of which the first that differs decides."""
    if len(parts) == 1:
        return parts[0].astype(np.int64, copy=False)
    sorting = np.lexsort(tuple(reversed(parts)))
    differs = np.zeros(len(sorting), np.bool_)
    for part in parts:
        ordered = part[sorting]
        differs[1:] |= ordered[1:] != ordered[:-1]
    ranks = np.empty(len(sorting), np.int64)
    ranks[sorting] = np.cumsum(differs)
    return ranks
