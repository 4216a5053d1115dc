"""Aggregates of numbers: count, sum, mean, variance and standard deviation."""

from __future__ import annotations

import decimal
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates.declaration import (
    Aggregate,
    BoundAggregate,
    Part,
    SingleValue,
    check_column,
    merged,
    wrong_type,
)
from keyedstate.aggregates.number_columns import added, column_from, integers, part_of
from keyedstate.backend import Column
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.tables import array_of, is_numeric
from keyedstate.types import FLOAT64, INT64, TypeSerializer
from keyedstate.types import decimal as decimal_type

#: Sums of whole numbers below it are exact in 64-bit floats.
_EXACT = 2**53
#: Adds numbers of up to 38 digits without rounding.
_DECIMALS = decimal.Context(prec=80, traps=[decimal.Inexact, decimal.InvalidOperation])

_Numbers = npt.NDArray[Any]


def count(column: str | None = None) -> Aggregate:
    """Return the number of rows, or of the rows in which a column is not null.

    Parameters
    ----------
    column : str, optional
    """
    if column is not None:
        check_column("count", column)
    return Aggregate("count", () if column is None else (column,), _Count)


class _Count(BoundAggregate):
    never_null = True
    by_columns = True

    def __init__(self, name: str, columns: tuple[str, ...], types: Sequence[pa.DataType]) -> None:
        self.name = name
        self.columns = columns
        self.parts = {"": INT64}
        self.result_type = pa.int64()

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        return [part_of(column) for column in self.reduce_columns(columns, rows)]

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        return [[n if o is None else o + n for o, n in zip(stored[0], new[0], strict=True)]]

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        return [Column(_counts(columns[0] if columns else None, rows))]

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return [added(stored[0], new[0])]


def sum_(column: str) -> Aggregate:
    """Return the sum of a column of numbers; null where there is no value.

    Whole numbers are summed as a long, and it is an error where that does not hold the sum (as in Spark with
    ``spark.sql.ansi.enabled``; nothing ever wraps around).  Floats are summed as a double, a
    ``decimal(p, s)`` as a ``decimal(min(p + 10, 38), s)``.

    Parameters
    ----------
    column : str
    """
    check_column("sum_", column)
    return Aggregate(
        "sum", (column,), lambda name, columns, types: _Sum(name, columns, _sum_type(name, types[0]))
    )


def _sum_type(name: str, arrow_type: pa.DataType) -> TypeSerializer[Any]:
    if pa.types.is_signed_integer(arrow_type):
        return INT64
    if pa.types.is_floating(arrow_type):
        return FLOAT64
    if pa.types.is_decimal128(arrow_type):
        return decimal_type(min(arrow_type.precision + 10, 38), arrow_type.scale)
    raise wrong_type(name, arrow_type, "numbers")


class _Sum(SingleValue):
    def __init__(self, name: str, columns: tuple[str, ...], type: TypeSerializer[Any]) -> None:
        super().__init__(name, columns, type)
        self.by_columns = is_numeric(self.result_type)

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        if not self.by_columns:
            return [_decimal_sums(columns[0], rows)]
        return [part_of(column) for column in self.reduce_columns(columns, rows)]

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        if pa.types.is_decimal(self.result_type):
            return [merged(stored[0], new[0], _DECIMALS.add)]
        # Written out: a call for each key would take as long as all the rest.
        return [
            [n if o is None else o if n is None else o + n for o, n in zip(stored[0], new[0], strict=True)]
        ]

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        return [_sums(columns[0], rows)]

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return [added(stored[0], new[0])]


def mean(column: str) -> Aggregate:
    """Return the mean of a column of numbers; null where there is no value.

    It is a double; that of a ``decimal(p, s)`` is a ``decimal(min(p + 4, 38), min(s + 4, 38))``, rounded half
    up.

    Parameters
    ----------
    column : str
    """
    check_column("mean", column)
    return Aggregate("mean", (column,), _bound_mean)


def _bound_mean(name: str, columns: tuple[str, ...], types: Sequence[pa.DataType]) -> BoundAggregate:
    (arrow_type,) = types
    sums = _sum_type(name, arrow_type)
    if not pa.types.is_decimal128(arrow_type):
        return _Mean(name, columns, FLOAT64, pa.float64())
    precision, scale = min(arrow_type.precision + 4, 38), min(arrow_type.scale + 4, 38)
    return _Mean(name, columns, sums, pa.decimal128(precision, scale))


class _Mean(BoundAggregate):
    def __init__(
        self, name: str, columns: tuple[str, ...], sums: TypeSerializer[Any], result: pa.DataType
    ) -> None:
        self.name = name
        self.columns = columns
        self.parts = {"count": INT64, "sum": sums}
        self.result_type = result
        self.by_columns = is_numeric(result)

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        (column,) = columns
        if not self.by_columns:
            return [_counts(column, rows).tolist(), _decimal_sums(column, rows)]
        return [part_of(part) for part in self.reduce_columns(columns, rows)]

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        add = _DECIMALS.add if pa.types.is_decimal(self.result_type) else operator.add
        return [merged(stored[0], new[0], operator.add), merged(stored[1], new[1], add)]

    def results(self, parts: list[Part]) -> pa.Array:
        if self.by_columns:
            return self.results_of([column_from(parts[0], pa.int64()), column_from(parts[1], pa.float64())])
        unit = decimal.Decimal((0, (1,), -self.result_type.scale))
        rounding = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)
        quotients = [
            rounding.divide(total, rows).quantize(unit, context=rounding) if rows else None
            for rows, total in zip(*parts, strict=True)
        ]
        return pa.array(quotients, self.result_type)

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        (column,) = columns
        if pa.types.is_integer(column.type):
            column = column.cast(pa.float64(), safe=False)
        return [Column(_counts(column, rows)), _sums(column, rows)]

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return [added(stored[0], new[0]), added(stored[1], new[1])]

    def results_of(self, parts: list[Column]) -> pa.Array:
        rows, total = parts
        with np.errstate(all="ignore"):
            means = total.values / rows.values
        return array_of(Column(means, rows.there & (rows.values > 0)), self.result_type)


def variance(column: str, *, population: bool = False) -> Aggregate:
    """Return the variance of a column of numbers, as a double.

    By Welford's method, and merged by that of Chan, Golub and LeVeque: large values of little variance
    lose no digits.

    Parameters
    ----------
    column : str
    population : bool, default False
        Divide by the number of values n, and not by n - 1.  The variance of a sample is null below two
        values, that of a population where there is none.
    """
    return _moments("variance", column, population, root=False)


def stddev(column: str, *, population: bool = False) -> Aggregate:
    """Return the standard deviation of a column of numbers, as a double: the square root of `variance`.

    Parameters
    ----------
    column : str
    population : bool, default False
        As in `variance`.
    """
    return _moments("stddev", column, population, root=True)


def _moments(function: str, column: str, population: bool, *, root: bool) -> Aggregate:
    check_column(function, column)

    def bind(name: str, columns: tuple[str, ...], types: Sequence[pa.DataType]) -> BoundAggregate:
        _sum_type(name, types[0])
        # One accumulator serves variance and standard deviation, of sample and population.
        return _Moments(f"variance({columns[0]})", columns, 0 if population else 1, root)

    return Aggregate(function, (column,), bind)


class _Moments(BoundAggregate):
    by_columns = True

    def __init__(self, name: str, columns: tuple[str, ...], less: int, root: bool) -> None:
        self.name = name
        self.columns = columns
        self.parts = {"count": INT64, "mean": FLOAT64, "m2": FLOAT64}
        self.result_type = pa.float64()
        self._less = less
        self._root = root

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        return [part_of(part) for part in self.reduce_columns(columns, rows)]

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        column = columns[0].cast(pa.float64(), safe=False)
        codes, values = rows.present(column)
        count = np.bincount(codes, minlength=len(rows))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            means = np.bincount(codes, weights=values, minlength=len(rows)) / count
            apart = values - means[codes]
            # What the rounded mean is off by; without, it would be counted as variance.
            off = np.bincount(codes, weights=apart, minlength=len(rows)) / count
            squares = np.bincount(codes, weights=apart * apart, minlength=len(rows)) - off * off * count
            means += off
        there = None if (count > 0).all() else count > 0
        # Rounding may leave a little less than nothing.
        return [Column(count), Column(means, there), Column(np.maximum(squares, 0.0), there)]

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        made = list(map(_both_moments, *stored, *new))
        return [list(part) for part in zip(*made, strict=True)] if made else [[], [], []]

    def results(self, parts: list[Part]) -> pa.Array:
        types = (pa.int64(), pa.float64(), pa.float64())
        return self.results_of([column_from(part, type) for part, type in zip(parts, types, strict=True)])

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        rows, more = (np.where(count.there, count.values, 0) for count in (stored[0], new[0]))
        total = rows + more
        with np.errstate(all="ignore"):
            apart = new[1].values - stored[1].values
            means = stored[1].values + apart * (more / total)
            moved = apart * apart * (rows.astype(np.float64) * more / total)
            squares = stored[2].values + new[2].values + moved
        # Of one side alone it is taken as it is.
        known, told = rows > 0, more > 0
        means = np.where(known & told, means, np.where(known, stored[1].values, new[1].values))
        squares = np.where(known & told, squares, np.where(known, stored[2].values, new[2].values))
        there = None if (total > 0).all() else total > 0
        return [Column(total), Column(means, there), Column(squares, there)]

    def results_of(self, parts: list[Column]) -> pa.Array:
        rows, _, squares = parts
        with np.errstate(all="ignore"):
            values = squares.values / (rows.values - self._less)
            if self._root:
                values = np.sqrt(values)
        there = rows.there & (rows.values > max(self._less, 0))
        return array_of(Column(values, there), self.result_type)


def _both_moments(
    rows: Any, mean_: Any, squares: Any, new_rows: Any, new_mean: Any, new_squares: Any
) -> tuple[Any, Any, Any]:
    if not rows:
        return new_rows, new_mean, new_squares
    if not new_rows:
        return rows, mean_, squares
    total = rows + new_rows
    apart = new_mean - mean_
    return (
        total,
        mean_ + apart * (new_rows / total),
        squares + new_squares + apart * apart * (float(rows) * new_rows / total),
    )


def _counts(column: pa.Array | None, rows: GroupedRows) -> npt.NDArray[np.int64]:
    """Return for each key the number of its rows, or of its values in a column."""
    codes = rows.codes
    if column is not None and column.null_count:
        codes = codes[column.is_valid().to_numpy(zero_copy_only=False)]
    return np.bincount(codes, minlength=len(rows))


def _sums(column: pa.Array, rows: GroupedRows) -> Column:
    """Return for each key the sum of its values in a column of numbers.

    Sums of whole numbers are exact, and Python's numbers where one of them is beyond 64 bits.
    """
    codes, values = rows.present(column)
    if pa.types.is_floating(column.type):
        # Of no values at all NumPy gives whole zeros.
        added_up = np.bincount(codes, weights=values, minlength=len(rows))
        sums = Column(added_up.astype(np.float64, copy=False))
    else:
        sums = _integer_sums(codes, values, len(rows))
    if column.null_count:
        there = _counts(column, rows) > 0
        return Column(sums.values, None if there.all() else there)
    return sums


def _integer_sums(codes: npt.NDArray[np.int64], values: npt.NDArray[Any], keys: int) -> Column:
    largest = max(abs(int(values.min())), abs(int(values.max()))) if len(values) else 0
    if largest * len(values) < _EXACT:
        weighted: _Numbers = np.bincount(codes, weights=values, minlength=keys)
        return Column(weighted.astype(np.int64))
    # Halves of 32 bits: below 2**21 rows the sum of either is exact.
    wide = values.astype(np.int64)
    high = np.bincount(codes, weights=wide >> 32, minlength=keys).astype(np.int64)
    low = np.bincount(codes, weights=wide & 0xFFFFFFFF, minlength=keys).astype(np.int64)
    if largest * len(values) < 2**63:
        return Column((high << 32) + low)
    pairs = zip(high.tolist(), low.tolist(), strict=True)
    return integers([(upper << 32) + lower for upper, lower in pairs])


def _decimal_sums(column: pa.Array, rows: GroupedRows) -> Part:
    digits = column.type.precision + len(str(len(column)))
    if digits <= 38:
        wide = column.cast(pa.decimal128(digits, column.type.scale))
        sums: Part = rows.aggregated(wide, "sum").to_pylist()
        return sums
    sums = [None] * len(rows)
    for code, value in zip(rows.codes.tolist(), column.to_pylist(), strict=True):
        if value is not None:
            before = sums[code]
            sums[code] = value if before is None else _DECIMALS.add(before, value)
    return sums
