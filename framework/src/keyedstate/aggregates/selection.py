"""Aggregates that pick one of the values: min, max, first, last, any and all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.aggregates.declaration import (
    Aggregate,
    BoundAggregate,
    Part,
    SingleValue,
    check_column,
    merged,
    values_type,
    wrong_type,
)
from keyedstate.aggregates.number_columns import Numbers, merged_columns, part_of
from keyedstate.backend import Column
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.tables import column_of, is_numeric
from keyedstate.types import BOOLEAN, TypeSerializer, nullable, tuple_of


def min_(column: str) -> Aggregate:
    """Return the smallest value of a column, nulls left out; null where there is no value.

    Of numbers, strings (by their UTF-8 bytes), binary, booleans, dates, times and intervals.  NaN is larger
    than any other number, as in Spark.

    Parameters
    ----------
    column : str
    """
    return _extreme("min", column, largest=False)


def max_(column: str) -> Aggregate:
    """Return the largest value of a column, nulls left out; null where there is no value.

    See `min_` for types and order.

    Parameters
    ----------
    column : str
    """
    return _extreme("max", column, largest=True)


def _extreme(function: str, column: str, *, largest: bool) -> Aggregate:
    check_column(f"{function}_", column)

    def bind(name: str, columns: tuple[str, ...], types: Sequence[pa.DataType]) -> BoundAggregate:
        if pa.types.is_nested(types[0]) or pa.types.is_null(types[0]):
            raise wrong_type(name, types[0], "values with an order")
        type = values_type(name, types[0])
        return _Extreme(name, columns, type, largest, is_numeric(types[0]) and types[0] == type.arrow_type)

    return Aggregate(function, (column,), bind)


class _Extreme(SingleValue):
    def __init__(
        self,
        name: str,
        columns: tuple[str, ...],
        type: TypeSerializer[Any],
        largest: bool,
        by_columns: bool,
    ) -> None:
        super().__init__(name, columns, type)
        self._largest = largest
        self._pick: Callable[[Any, Any], Any] = max if largest else min
        if pa.types.is_floating(self.result_type):
            self._pick = _larger_float if largest else _smaller_float
        self.by_columns = by_columns

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        if pa.types.is_floating(self.result_type):
            return [part_of(column) for column in self.reduce_columns(columns, rows)]
        (column,) = columns
        try:
            found = rows.aggregated(column, "max" if self._largest else "min")
        except pa.ArrowNotImplementedError:  # older versions of pyarrow for text, for example
            return [self._by_value(column, rows)]
        return [self.serializer.from_arrow(found)]

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        (column,) = columns
        if pa.types.is_duration(column.type):
            # Arrow finds the least and the greatest of numbers alone, and not of these.
            column = column.view(pa.int64())
        found = rows.aggregated(column, "max" if self._largest else "min")
        made = column_of(found.combine_chunks())
        if pa.types.is_floating(column.type):
            made = Column(self._with_nan(made.values, column, rows), made.present)
        return [made]

    def _with_nan(self, values: np.ndarray[Any, Any], column: pa.Array, rows: GroupedRows) -> Any:
        """Return what Arrow has found, with the NaNs that it leaves out where there is another number."""
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

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return [merged_columns(stored[0], new[0], _larger if self._largest else _smaller)]

    def _by_value(self, column: pa.Array, rows: GroupedRows) -> Part:
        found: Part = [None] * len(rows)
        for code, value in zip(rows.codes.tolist(), self.serializer.from_arrow(column), strict=True):
            if value is not None:
                before = found[code]
                found[code] = value if before is None else self._pick(before, value)
        return found

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        return [merged(stored[0], new[0], self._pick)]


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

    First in the order in which rows reach the operator: of two rows of one micro-batch Spark does not define
    which comes first.

    Parameters
    ----------
    column : str
    ignore_nulls : bool, default False
        The first value that is not null; null as long as there is none.
    """
    return _picked("first", column, ignore_nulls, last_one=False)


def last(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Return the value of a column in the last row of a key.

    Parameters
    ----------
    column : str
    ignore_nulls : bool, default False
        The last value that is not null.

    Notes
    -----
    See `first` for the order of rows.
    """
    return _picked("last", column, ignore_nulls, last_one=True)


def _picked(function: str, column: str, ignore_nulls: bool, *, last_one: bool) -> Aggregate:
    check_column(function, column)

    def bind(name: str, columns: tuple[str, ...], types: Sequence[pa.DataType]) -> BoundAggregate:
        return _Picked(name, columns, values_type(name, types[0]), last_one, ignore_nulls)

    return Aggregate(function, (column,), bind, "ignore nulls" if ignore_nulls else "")


class _Picked(BoundAggregate):
    """The accumulator is a tuple of the value, which may be None: that is something else than no row."""

    def __init__(
        self,
        name: str,
        columns: tuple[str, ...],
        type: TypeSerializer[Any],
        last: bool,
        ignore_nulls: bool,
    ) -> None:
        self.name = name
        self.columns = columns
        self.parts = {"": tuple_of(nullable(type))}
        self.result_type = type.arrow_type
        self._type = type
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
        found = column.take(pa.array(picked, mask=picked < 0))
        values = self._type.from_arrow(found)
        return [
            [None if place < 0 else (value,) for place, value in zip(picked.tolist(), values, strict=True)]
        ]

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        if self._last:
            stored, new = new, stored
        return [[n if o is None else o for o, n in zip(stored[0], new[0], strict=True)]]

    def results(self, parts: list[Part]) -> pa.Array:
        return self._type.to_arrow([None if value is None else value[0] for value in parts[0]])


def any_(column: str) -> Aggregate:
    """Return whether a boolean column is true in any row, nulls left out; null where there is no value.

    Parameters
    ----------
    column : str
    """
    return _truth("any", column, all_of_them=False)


def all_(column: str) -> Aggregate:
    """Return whether a boolean column is true in all rows, nulls left out; null where there is no value.

    Parameters
    ----------
    column : str
    """
    return _truth("all", column, all_of_them=True)


def _truth(function: str, column: str, *, all_of_them: bool) -> Aggregate:
    check_column(f"{function}_", column)

    def bind(name: str, columns: tuple[str, ...], types: Sequence[pa.DataType]) -> BoundAggregate:
        if not pa.types.is_boolean(types[0]):
            raise wrong_type(name, types[0], "booleans")
        return _Truth(name, columns, all_of_them)

    return Aggregate(function, (column,), bind)


class _Truth(SingleValue):
    by_columns = True

    def __init__(self, name: str, columns: tuple[str, ...], all_of_them: bool) -> None:
        super().__init__(name, columns, BOOLEAN)
        self._all = all_of_them

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        (truth,) = self.reduce_columns(columns, rows)
        return [part_of(Column(truth.values.astype(np.bool_), truth.present))]

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        (column,) = columns
        known, values = rows.present(column)
        deciding = np.bincount(known[values != self._all], minlength=len(rows)) > 0
        there = np.bincount(known, minlength=len(rows)) > 0
        truth = (~deciding if self._all else deciding).astype(np.int64)
        return [Column(truth, None if there.all() else there)]

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        return [merged(stored[0], new[0], min if self._all else max)]

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return [merged_columns(stored[0], new[0], np.minimum if self._all else np.maximum)]
