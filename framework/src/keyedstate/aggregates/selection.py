"""Aggregates that pick one of the values: min, max, first, last, any and all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.aggregates.declaration import (
    Aggregate,
    Part,
    SinglePart,
    merged,
    of_column,
    values_type,
    wrong_type,
)
from keyedstate.aggregates.number_columns import Numbers, merged_columns, part_of
from keyedstate.backend import Column
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.tables import column_of, is_numeric
from keyedstate.types import BOOLEAN, nullable, tuple_of


def min_(column: str) -> Aggregate:
    """Return the smallest value of a column, nulls left out; null where there is no value.

    The column has numbers, strings (compared by their UTF-8 bytes), binary, booleans, dates, times or
    intervals.  NaN is larger than any other number, as in Spark.
    """
    return of_column("min_", column, partial(_Extreme, largest=False))


def max_(column: str) -> Aggregate:
    """Return the largest value of a column, nulls left out; null where there is no value.

    See `min_` for types and order.
    """
    return of_column("max_", column, partial(_Extreme, largest=True))


class _Extreme(SinglePart):
    def __init__(
        self, name: str, columns: tuple[str, ...], arrow_type: pa.DataType, *, largest: bool
    ) -> None:
        if pa.types.is_nested(arrow_type) or pa.types.is_null(arrow_type):
            raise wrong_type(name, arrow_type, "values with an order")
        super().__init__(name, columns, values_type(name, arrow_type))
        self._largest = largest
        self._function = "max" if largest else "min"
        self._is_floating = pa.types.is_floating(self.result_type)
        self._pick: Callable[[Any, Any], Any] = max if largest else min
        if self._is_floating:
            self._pick = _larger_float if largest else _smaller_float
        self.by_columns = is_numeric(arrow_type) and arrow_type == self.result_type

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        if self._is_floating:
            return [part_of(column) for column in self.reduce_columns(columns, rows)]
        (column,) = columns
        try:
            return [self.type.from_arrow(rows.aggregated(column, self._function))]
        except pa.ArrowNotImplementedError:  # older versions of pyarrow for text, for example
            return [self._by_value(column, rows)]

    def _by_value(self, column: pa.Array, rows: GroupedRows) -> Part:
        found: Part = [None] * len(rows)
        for code, value in zip(rows.codes.tolist(), self.type.from_arrow(column), strict=True):
            if value is not None:
                before = found[code]
                found[code] = value if before is None else self._pick(before, value)
        return found

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        (column,) = columns
        if pa.types.is_duration(column.type):
            # Arrow has no such aggregation of durations.
            column = column.view(pa.int64())
        found = column_of(rows.aggregated(column, self._function).combine_chunks())
        if pa.types.is_floating(column.type):
            found = Column(self._with_nan(found.values, column, rows), found.present)
        return [found]

    def _with_nan(self, values: Numbers, column: pa.Array, rows: GroupedRows) -> Numbers:
        """Return Arrow's result with NaN where Spark has it: Arrow ignores NaN if there is another number."""
        nans = np.isnan(column.fill_null(0.0).to_numpy())
        if not nans.any():
            return values
        codes = rows.codes[nans]
        if not self._largest:
            # The least of NaNs alone, for which older versions of Arrow give infinity.
            has_number = np.zeros(len(values), np.bool_)
            has_number[rows.codes[~nans & column.is_valid().to_numpy(zero_copy_only=False)]] = True
            codes = codes[~has_number[codes]]
        values = values.copy()
        values[codes] = np.nan
        return values

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        return [merged(stored[0], new[0], self._pick)]

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return [merged_columns(stored[0], new[0], _larger if self._largest else _smaller)]


def _larger_float(one: float, other: float) -> float:
    return other if other != other or other > one else one


def _smaller_float(one: float, other: float) -> float:
    return other if one != one or other < one else one


def _larger(stored: Numbers, new: Numbers) -> Numbers:
    return np.where((new != new) | (new > stored), new, stored)


def _smaller(stored: Numbers, new: Numbers) -> Numbers:
    return np.where((stored != stored) | (new < stored), new, stored)


def first(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Return the value of a column in the first row of a key.

    First in the order in which rows reach the operator: Spark does not define the order of the rows of one
    micro-batch.

    Parameters
    ----------
    column : str
    ignore_nulls : bool, default False
        Return the first value that is not null; null as long as there is none.
    """
    return _picked("first", column, ignore_nulls, last=False)


def last(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Return the value of a column in the last row of a key, in the order that `first` describes.

    With `ignore_nulls`, return the last value that is not null.
    """
    return _picked("last", column, ignore_nulls, last=True)


def _picked(function: str, column: str, ignore_nulls: bool, *, last: bool) -> Aggregate:
    bind = partial(_Picked, last=last, ignore_nulls=ignore_nulls)
    return of_column(function, column, bind, "ignore nulls" if ignore_nulls else "")


class _Picked(SinglePart):
    """The accumulator is a tuple of the value, since a row with a null is something else than no row."""

    def __init__(
        self,
        name: str,
        columns: tuple[str, ...],
        arrow_type: pa.DataType,
        *,
        last: bool,
        ignore_nulls: bool,
    ) -> None:
        value_type = values_type(name, arrow_type)
        super().__init__(name, columns, tuple_of(nullable(value_type)), value_type.arrow_type)
        self._value_type = value_type
        self._last = last
        self._ignore_nulls = ignore_nulls

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        (column,) = columns
        places, codes = np.arange(len(column)), rows.codes
        if self._ignore_nulls and column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            places, codes = places[valid], codes[valid]
        if not self._last:
            places, codes = places[::-1], codes[::-1]
        picked = np.full(len(rows), -1)
        # Of several assignments to one place the last one counts.
        picked[codes] = places
        values = self._value_type.from_arrow(column.take(pa.array(picked, mask=picked < 0)))
        return [
            [None if place < 0 else (value,) for place, value in zip(picked.tolist(), values, strict=True)]
        ]

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        preferred, other = (new, stored) if self._last else (stored, new)
        return [[o if p is None else p for p, o in zip(preferred[0], other[0], strict=True)]]

    def results(self, parts: list[Part]) -> pa.Array:
        return self._value_type.to_arrow([None if value is None else value[0] for value in parts[0]])


def any_(column: str) -> Aggregate:
    """Return whether a boolean column is true in any row, nulls left out; null where there is no value."""
    return of_column("any_", column, partial(_Truth, of_all=False))


def all_(column: str) -> Aggregate:
    """Return whether a boolean column is true in all rows, nulls left out; null where there is no value."""
    return of_column("all_", column, partial(_Truth, of_all=True))


class _Truth(SinglePart):
    by_columns = True

    def __init__(self, name: str, columns: tuple[str, ...], arrow_type: pa.DataType, *, of_all: bool) -> None:
        if not pa.types.is_boolean(arrow_type):
            raise wrong_type(name, arrow_type, "booleans")
        super().__init__(name, columns, BOOLEAN)
        self._of_all = of_all

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        (truth,) = self.reduce_columns(columns, rows)
        return [part_of(Column(truth.values.astype(np.bool_), truth.present))]

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        known, values = rows.present(columns[0])
        deciding = np.bincount(known[values != self._of_all], minlength=len(rows)) > 0
        there = np.bincount(known, minlength=len(rows)) > 0
        truth = (~deciding if self._of_all else deciding).astype(np.int64)
        return [Column(truth, None if there.all() else there)]

    def both(self, stored: bool, new: bool) -> bool:
        return stored and new if self._of_all else stored or new

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return [merged_columns(stored[0], new[0], np.minimum if self._of_all else np.maximum)]
