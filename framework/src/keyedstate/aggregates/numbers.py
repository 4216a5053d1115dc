"""Aggregates of numbers: count, sum, mean, variance and standard deviation."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates.declaration import (
    Aggregate,
    BoundAggregate,
    Part,
    SinglePart,
    checked_where,
    merged,
    of_column,
    wrong_type,
)
from keyedstate.aggregates.number_columns import NumberAggregate, largest, part_of
from keyedstate.backend import Column
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.tables import array_of
from keyedstate.types import FLOAT64, INT64, TypeSerializer
from keyedstate.types import decimal as decimal_type

#: Sums of whole numbers below it are exact in 64-bit floats.
_EXACT = 2**53
#: Adds numbers of up to 38 digits without rounding.
_DECIMALS = decimal.Context(prec=80, traps=[decimal.Inexact, decimal.InvalidOperation])
_HALF_UP = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)


def count(column: str | None = None, *, where: str | None = None) -> Aggregate:
    """Return the number of rows, or of the rows in which a column is not null."""
    if column is None:
        condition = checked_where("count", where)
        return Aggregate(
            "count", (), lambda name, columns, types: _Count(name, columns, None), where=condition
        )
    return of_column("count", column, _Count, where)


class _Count(NumberAggregate):
    never_null = True

    def __init__(self, name: str, columns: tuple[str, ...], arrow_type: pa.DataType | None) -> None:
        super().__init__(name, columns, {"": INT64}, pa.int64())

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        return [Column(_counts(columns[0] if columns else None, rows))]

    def of_changes(self) -> BoundAggregate:
        return self


def sum_(column: str, *, where: str | None = None) -> Aggregate:
    """Return the sum of a column of numbers; null where there is no value.

    Whole numbers are summed as a long; a sum that a long does not hold is an error, as in Spark with
    ``spark.sql.ansi.enabled``.  Floats are summed as a double, a ``decimal(p, s)`` as a
    ``decimal(min(p + 10, 38), s)``.
    """
    return of_column("sum_", column, _sum_of, where)


def _sum_of(name: str, columns: tuple[str, ...], arrow_type: pa.DataType) -> BoundAggregate:
    sum_type = _sum_type(name, arrow_type)
    if pa.types.is_decimal(sum_type.arrow_type):
        return _DecimalSum(name, columns, sum_type)
    return _Sum(name, columns, {"": sum_type}, sum_type.arrow_type)


def _sum_type(name: str, arrow_type: pa.DataType) -> TypeSerializer[Any]:
    if pa.types.is_signed_integer(arrow_type):
        return INT64
    if pa.types.is_floating(arrow_type):
        return FLOAT64
    if pa.types.is_decimal128(arrow_type):
        return decimal_type(min(arrow_type.precision + 10, 38), arrow_type.scale)
    raise wrong_type(name, arrow_type, "numbers")


class _Sum(NumberAggregate):
    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        return [_sums(columns[0], rows)]

    def of_changes(self) -> BoundAggregate:
        return _CountedSum(
            self.name, self.columns, {"values": INT64, "sum": self.parts[""]}, self.result_type
        )


class _CountedSum(NumberAggregate):
    """A sum that is null again once all values were taken back: it counts them."""

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        return [Column(_counts(columns[0], rows)), _sums(columns[0], rows)]

    def results_of(self, parts: list[Column]) -> pa.Array:
        rows, total = parts
        return array_of(Column(total.values, rows.there & (rows.values > 0)), self.result_type)

    def of_changes(self) -> BoundAggregate:
        return self


class _DecimalSum(SinglePart):
    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        return [_decimal_sums(columns[0], rows)]

    def both(self, stored: decimal.Decimal, new: decimal.Decimal) -> decimal.Decimal:
        return _DECIMALS.add(stored, new)

    def of_changes(self) -> BoundAggregate:
        parts = {"values": INT64, "sum": self.parts[""]}
        return _CountedDecimalSum(self.name, self.columns, parts, self.result_type)


def mean(column: str, *, where: str | None = None) -> Aggregate:
    """Return the mean of a column of numbers; null where there is no value.

    It is a double; that of a ``decimal(p, s)`` is a ``decimal(min(p + 4, 38), min(s + 4, 38))``, rounded half
    up.
    """
    return of_column("mean", column, _mean_of, where)


def _mean_of(name: str, columns: tuple[str, ...], arrow_type: pa.DataType) -> BoundAggregate:
    sums = _sum_type(name, arrow_type)
    if not pa.types.is_decimal128(arrow_type):
        return _Mean(name, columns, sums)
    precision, scale = min(arrow_type.precision + 4, 38), min(arrow_type.scale + 4, 38)
    return _DecimalMean(name, columns, {"count": INT64, "sum": sums}, pa.decimal128(precision, scale))


class _Mean(NumberAggregate):
    def __init__(self, name: str, columns: tuple[str, ...], sums: TypeSerializer[Any]) -> None:
        super().__init__(name, columns, {"count": INT64, "sum": FLOAT64}, pa.float64())
        #: The type of an exact sum.
        self._sums = sums

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        (column,) = columns
        if pa.types.is_integer(column.type):
            column = column.cast(pa.float64(), safe=False)
        return [Column(_counts(column, rows)), _sums(column, rows)]

    def results_of(self, parts: list[Column]) -> pa.Array:
        rows, total = parts
        return _means(rows, total, self.result_type)

    def of_changes(self) -> BoundAggregate:
        return _CountedMean(self.name, self.columns, {"values": INT64, "total": self._sums}, self.result_type)


class _CountedMean(_CountedSum):
    """A mean of an exact sum of whole numbers, of which a float would lose digits when one is taken back."""

    def results_of(self, parts: list[Column]) -> pa.Array:
        rows, total = parts
        return _means(rows, total, self.result_type)


def _means(rows: Column, total: Column, result_type: pa.DataType) -> pa.Array:
    with np.errstate(all="ignore"):
        means = total.values / rows.values
    return array_of(Column(means, rows.there & (rows.values > 0)), result_type)


class _CountedDecimals(BoundAggregate):
    """An aggregate of the number and the sum of decimals."""

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        return [_counts(columns[0], rows).tolist(), _decimal_sums(columns[0], rows)]

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        counts = merged(stored[0], new[0], int.__add__)
        return [counts, merged(stored[1], new[1], _DECIMALS.add)]

    def of_changes(self) -> BoundAggregate:
        return self

    def without(self, parts: list[Part], taken: list[Part]) -> list[Part]:
        counts = [rows - less for rows, less in zip(parts[0], taken[0], strict=True)]
        # Unary minus would round.
        less = [None if total is None else total.copy_negate() for total in taken[1]]
        return [counts, merged(parts[1], less, _DECIMALS.add)]


class _CountedDecimalSum(_CountedDecimals):
    def results(self, parts: list[Part]) -> pa.Array:
        sums = [total if rows and rows > 0 else None for rows, total in zip(*parts, strict=True)]
        return pa.array(sums, self.result_type)


class _DecimalMean(_CountedDecimals):
    def results(self, parts: list[Part]) -> pa.Array:
        unit = decimal.Decimal((0, (1,), -self.result_type.scale))
        quotients = [
            _HALF_UP.divide(total, rows).quantize(unit, context=_HALF_UP) if rows and rows > 0 else None
            for rows, total in zip(*parts, strict=True)
        ]
        return pa.array(quotients, self.result_type)


def variance(column: str, *, population: bool = False, where: str | None = None) -> Aggregate:
    """Return the variance of a column of numbers, as a double.

    It is computed by Welford's method and merged by that of Chan, Golub and LeVeque, so that large values of
    little variance lose no digits.

    Parameters
    ----------
    column : str
    population : bool, default False
        Divide by the number of values n, and not by n - 1.  The variance of a sample is null below two
        values, that of a population without any.
    where : str, optional
        A column of booleans: rows in which it is false or null do not count.
    """
    return of_column("variance", column, partial(_Moments, population=population, root=False), where)


def stddev(column: str, *, population: bool = False, where: str | None = None) -> Aggregate:
    """Return the standard deviation of a column of numbers, as a double: the square root of `variance`."""
    return of_column("stddev", column, partial(_Moments, population=population, root=True), where)


class _Moments(NumberAggregate):
    """One accumulator serves variance and standard deviation, of sample and population."""

    def __init__(
        self, name: str, columns: tuple[str, ...], arrow_type: pa.DataType, *, population: bool, root: bool
    ) -> None:
        _sum_type(name, arrow_type)
        parts: dict[str, TypeSerializer[Any]] = {"count": INT64, "mean": FLOAT64, "m2": FLOAT64}
        super().__init__("variance" + name[name.index("(") :], columns, parts, pa.float64())
        self._less = 0 if population else 1
        self._root = root

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        column = columns[0].cast(pa.float64(), safe=False)
        codes, values = rows.present(column)
        count = np.bincount(codes, minlength=len(rows))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            means = np.bincount(codes, weights=values, minlength=len(rows)) / count
            apart = values - means[codes]
            # The error of the rounded mean; without this it would be counted as variance.
            off = np.bincount(codes, weights=apart, minlength=len(rows)) / count
            squares = np.bincount(codes, weights=apart * apart, minlength=len(rows)) - off * off * count
            means += off
        there = None if (count > 0).all() else count > 0
        # Rounding may leave a little less than nothing.
        return [Column(count), Column(means, there), Column(np.maximum(squares, 0.0), there)]

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        return list(map(part_of, self.merge_columns(self.columns_of(stored), self.columns_of(new))))

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        rows, more = (np.where(count.there, count.values, 0) for count in (stored[0], new[0]))
        total = rows + more
        with np.errstate(all="ignore"):
            apart = new[1].values - stored[1].values
            means = stored[1].values + apart * (more / total)
            moved = apart * apart * (rows.astype(np.float64) * more / total)
            squares = stored[2].values + new[2].values + moved
        # Where one side has no rows, the other one is taken as it is.
        has_old, has_new = rows > 0, more > 0
        means = np.where(has_old & has_new, means, np.where(has_old, stored[1].values, new[1].values))
        squares = np.where(has_old & has_new, squares, np.where(has_old, stored[2].values, new[2].values))
        there = None if (total > 0).all() else total > 0
        return [Column(total), Column(means, there), Column(squares, there)]

    def after_each(self, stored: list[Column], new: list[Column]) -> list[Column]:
        # A mean is no sum.
        return BoundAggregate.after_each(self, stored, new)

    def results_of(self, parts: list[Column]) -> pa.Array:
        rows, _, squares = parts
        with np.errstate(all="ignore"):
            values = squares.values / (rows.values - self._less)
            if self._root:
                values = np.sqrt(values)
        there = rows.there & (rows.values > max(self._less, 0))
        return array_of(Column(values, there), self.result_type)


def _counts(column: pa.Array | None, rows: GroupedRows) -> npt.NDArray[np.int64]:
    """Return for each key the number of its rows, or of its values in a column."""
    codes = rows.codes
    if column is not None and column.null_count:
        codes = codes[column.is_valid().to_numpy(zero_copy_only=False)]
    return np.bincount(codes, minlength=len(rows))


def _sums(column: pa.Array, rows: GroupedRows) -> Column:
    """Return for each key the sum of its values in a column of numbers.

    Sums of whole numbers are exact; they are Python's numbers where one of them is beyond 64 bits.
    """
    codes, values = rows.present(column)
    if pa.types.is_floating(column.type):
        # Of no values at all NumPy gives whole zeros.
        sums = np.bincount(codes, weights=values, minlength=len(rows)).astype(np.float64, copy=False)
    else:
        sums = _integer_sums(codes, values, len(rows))
    may_be_null = column.null_count or not rows.all_have_rows
    there = _counts(column, rows) > 0 if may_be_null else None
    return Column(sums, None if there is None or there.all() else there)


def _integer_sums(codes: npt.NDArray[np.int64], values: npt.NDArray[Any], keys: int) -> npt.NDArray[Any]:
    most = largest(values)
    if most * len(values) < _EXACT:
        return np.bincount(codes, weights=values, minlength=keys).astype(np.int64)
    # Halves of 32 bits: below 2**21 rows the sum of either is exact.
    wide = values.astype(np.int64)
    high = np.bincount(codes, weights=wide >> 32, minlength=keys).astype(np.int64)
    low = np.bincount(codes, weights=wide & 0xFFFFFFFF, minlength=keys).astype(np.int64)
    if most * len(values) < 2**63:
        return (high << 32) + low
    sums = [(upper << 32) + lower for upper, lower in zip(high.tolist(), low.tolist(), strict=True)]
    try:
        return np.array(sums, np.int64)
    except OverflowError:
        return np.array(sums, object)


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
