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
from keyedstate.aggregates.number_columns import Numbers, best_so_far, merged_columns, part_of
from keyedstate.aggregates.ordering import best_rows, order_key, order_of, ordered_type
from keyedstate.aggregates.ranking import By, best
from keyedstate.backend import Column
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.tables import column_of, is_numeric
from keyedstate.types import BOOLEAN, nullable, tuple_of


def min_(column: str, *, where: str | None = None) -> Aggregate:
    """Return the smallest value of a column, nulls left out; null where there is no value.

    The column has numbers, strings (compared by their UTF-8 bytes), binary, booleans, dates, times,
    intervals or structs of these (compared field by field, a null first).  NaN is larger than any other
    number, as in Spark.
    """
    return of_column("min_", column, partial(_Extreme, largest=False), where)


def max_(column: str, *, where: str | None = None) -> Aggregate:
    """Return the largest value of a column, nulls left out; null where there is no value.

    See `min_` for types and order.
    """
    return of_column("max_", column, partial(_Extreme, largest=True), where)


class _Extreme(SinglePart):
    def __init__(
        self, name: str, columns: tuple[str, ...], arrow_type: pa.DataType, *, largest: bool
    ) -> None:
        super().__init__(name, columns, ordered_type(name, arrow_type))
        self._largest = largest
        self._function = "max" if largest else "min"
        self._is_floating = pa.types.is_floating(self.result_type)
        self._pick: Callable[[Any, Any], Any] = max if largest else min
        if self._is_floating:
            self._pick = _larger_float if largest else _smaller_float
        if pa.types.is_struct(arrow_type):
            self._pick = partial(max if largest else min, key=order_key([self.type]))
        self.by_columns = is_numeric(arrow_type) and arrow_type == self.result_type

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        if self._is_floating:
            return [part_of(column) for column in self.reduce_columns(columns, rows)]
        (column,) = columns
        if pa.types.is_struct(column.type):
            order, valid = order_of(columns)
            picked = best_rows(rows, order, valid, largest=self._largest, last=False)
            return [self.type.from_arrow(column.take(pa.array(picked, mask=picked < 0)))]
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

    def after_each(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return [best_so_far(stored[0], new[0], largest=self._largest)]


def _larger_float(one: float, other: float) -> float:
    return other if other != other or other > one else one


def _smaller_float(one: float, other: float) -> float:
    return other if one != one or other < one else one


def _larger(stored: Numbers, new: Numbers) -> Numbers:
    return np.where((new != new) | (new > stored), new, stored)


def _smaller(stored: Numbers, new: Numbers) -> Numbers:
    return np.where((stored != stored) | (new < stored), new, stored)


def first(
    column: str, *, ignore_nulls: bool = False, by: By | None = None, where: str | None = None
) -> Aggregate:
    """Return the value of a column in the first row of a key.

    Parameters
    ----------
    column : str
    ignore_nulls : bool, default False
        Return the first value that is not null; null until the first one.
    by : str or sequence of str, optional
        The columns that order the rows, such as that of the event time; rows with a null in one of them do
        not count.  Without it the first row is the one that reaches the operator first: Spark does not define
        the order of the rows of one micro-batch.
    where : str, optional
        A column of booleans: rows in which it is false or null do not count.
    """
    return _picked("first", column, ignore_nulls, by, where, last=False)


def last(
    column: str, *, ignore_nulls: bool = False, by: By | None = None, where: str | None = None
) -> Aggregate:
    """Return the value of a column in the last row of a key, in the order that `first` describes.

    With `ignore_nulls`, return the last value that is not null.
    """
    return _picked("last", column, ignore_nulls, by, where, last=True)


def _picked(
    function: str, column: str, ignore_nulls: bool, by: By | None, where: str | None, *, last: bool
) -> Aggregate:
    if by is not None:
        return best(
            function, (column,), by, largest=last, ties=function, where=where, ignore_nulls=ignore_nulls
        )
    bind = partial(_Picked, last=last, ignore_nulls=ignore_nulls)
    return of_column(function, column, bind, where, "ignore nulls" if ignore_nulls else "")


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


def any_(column: str, *, where: str | None = None) -> Aggregate:
    """Return whether a boolean column is true in any row, nulls left out; null where there is no value."""
    return of_column("any_", column, partial(_Truth, of_all=False), where)


def all_(column: str, *, where: str | None = None) -> Aggregate:
    """Return whether a boolean column is true in all rows, nulls left out; null where there is no value."""
    return of_column("all_", column, partial(_Truth, of_all=True), where)


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

    def after_each(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return [best_so_far(stored[0], new[0], largest=not self._of_all)]
