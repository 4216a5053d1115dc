"""Approximate aggregates: a sketch per key, of bounded size, from the library Apache DataSketches.

The library is an optional dependency, the extra ``sketches``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.aggregates.declaration import (
    Aggregate,
    Part,
    SinglePart,
    check_column,
    of_column,
    values_type,
    wrong_type,
)
from keyedstate.errors import InvalidAggregateError, MissingPackageError
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.types import BYTES


def approx_distinct(column: str, *, precision: int = 12, where: str | None = None) -> Aggregate:
    """Return about how many distinct values a column has, nulls left out (a HyperLogLog sketch).

    Parameters
    ----------
    column : str
    precision : int, default 12
        From 4 to 21: a sketch takes up to about ``2**precision / 2`` bytes per key, few where there are few
        values, and its standard error is about ``0.83 / sqrt(2**precision)``, 1.3 % by default.

    Raises
    ------
    InvalidAggregateError
    MissingPackageError
        Where the package ``datasketches`` is not installed.
    """
    check_column("approx_distinct", column)
    if type(precision) is not int or not 4 <= precision <= 21:
        raise InvalidAggregateError(
            None, f"the precision {precision!r} of approx_distinct is not one of 4 to 21"
        )
    _library("approx_distinct")
    bind = partial(_Distinct, precision=precision)
    return of_column("approx_distinct", column, bind, where, f"precision {precision}")


def approx_quantiles(
    column: str, probabilities: Sequence[float], *, k: int = 200, where: str | None = None
) -> Aggregate:
    """Return about which numbers have some ranks in a column, as an array of doubles (a KLL sketch).

    Nulls and NaN are left out; null where there is no value.  Up to `k` values the answer is exact.  Beyond,
    the sketch keeps a random sample, so that an epoch that runs again may give slightly other numbers.

    Parameters
    ----------
    column : str
    probabilities : sequence of float
        From 0.0, the least value, to 1.0, the largest: ``[0.5, 0.99]``.
    k : int, default 200
        From 8 to 65,535: the error of a rank is about 1.3 % for 200 and falls as `k` grows.

    Raises
    ------
    InvalidAggregateError
    MissingPackageError
        Where the package ``datasketches`` is not installed.
    """
    check_column("approx_quantiles", column)
    ranks = list(probabilities) if isinstance(probabilities, (list, tuple)) else []
    if not ranks or not all(isinstance(rank, (int, float)) and 0 <= rank <= 1 for rank in ranks):
        raise InvalidAggregateError(
            None,
            f"the probabilities {probabilities!r} of approx_quantiles are no list of numbers from 0 to 1",
        )
    if type(k) is not int or not 8 <= k <= 65_535:
        raise InvalidAggregateError(None, f"k={k!r} of approx_quantiles is not one of 8 to 65,535")
    _library("approx_quantiles")
    bind = partial(_Quantiles, ranks=list(map(float, ranks)), k=k)
    return of_column("approx_quantiles", column, bind, where, f"k {k}")


def _library(function: str) -> Any:
    try:
        import datasketches
    except ImportError as error:
        where = "on the driver and on every executor"
        raise MissingPackageError(f"{function}()", ["datasketches"], "sketches", where) from error
    return datasketches


class _Distinct(SinglePart):
    never_null = True

    def __init__(
        self, name: str, columns: tuple[str, ...], arrow_type: pa.DataType, *, precision: int
    ) -> None:
        values_type(name, arrow_type)
        if pa.types.is_nested(arrow_type):
            raise wrong_type(name, arrow_type, "single values")
        super().__init__(name, columns, BYTES, pa.int64())
        self._precision = precision

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        sketches = _library(self.name)
        by_key: list[Any] = [None] * len(rows)
        for code, value in zip(rows.codes.tolist(), _hashable(columns[0]), strict=True):
            if value is not None:
                sketch = by_key[code]
                if sketch is None:
                    sketch = by_key[code] = sketches.hll_sketch(self._precision, sketches.tgt_hll_type.HLL_4)
                sketch.update(value)
        return [[None if sketch is None else sketch.serialize_compact() for sketch in by_key]]

    def both(self, stored: bytes, new: bytes) -> bytes:
        sketches = _library(self.name)
        union = sketches.hll_union(self._precision)
        union.update(sketches.hll_sketch.deserialize(stored))
        union.update(sketches.hll_sketch.deserialize(new))
        merged: bytes = union.get_result(sketches.tgt_hll_type.HLL_4).serialize_compact()
        return merged

    def results(self, parts: list[Part]) -> pa.Array:
        read = _library(self.name).hll_sketch.deserialize
        estimates = [0 if sketch is None else round(read(sketch).get_estimate()) for sketch in parts[0]]
        return pa.array(estimates, self.result_type)


def _hashable(column: pa.Array) -> list[Any]:
    """Return the values of a column as ints, floats and strings that differ where the values do."""
    arrow_type = column.type
    if pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type):
        return list(column.to_pylist())
    if pa.types.is_boolean(arrow_type):
        return list(column.cast(pa.int8()).to_pylist())
    is_binary = pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type)
    # The prefix, because the library leaves out an empty string.
    return [
        None if value is None else "=" + (value.decode("latin-1") if is_binary else str(value))
        for value in column.to_pylist()
    ]


class _Quantiles(SinglePart):
    def __init__(
        self, name: str, columns: tuple[str, ...], arrow_type: pa.DataType, *, ranks: list[float], k: int
    ) -> None:
        if not (pa.types.is_signed_integer(arrow_type) or pa.types.is_floating(arrow_type)):
            raise wrong_type(name, arrow_type, "whole numbers or floats")
        super().__init__(name, columns, BYTES, pa.list_(pa.float64()))
        self._ranks = ranks
        self._k = k

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        sketch_of = _library(self.name).kll_doubles_sketch
        numbers = columns[0].cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
        numbers = numbers[rows.rows_by_key]
        sketches: Part = []
        for start, end in pairwise(rows.bounds.tolist()):
            some = numbers[start:end]
            some = some[~np.isnan(some)]
            if len(some):
                sketch = sketch_of(self._k)
                sketch.update(some)
                sketches.append(sketch.serialize())
            else:
                sketches.append(None)
        return [sketches]

    def both(self, stored: bytes, new: bytes) -> bytes:
        read = _library(self.name).kll_doubles_sketch.deserialize
        sketch = read(stored)
        sketch.merge(read(new))
        merged: bytes = sketch.serialize()
        return merged

    def results(self, parts: list[Part]) -> pa.Array:
        read = _library(self.name).kll_doubles_sketch.deserialize
        quantiles = [
            None if sketch is None else [float(value) for value in read(sketch).get_quantiles(self._ranks)]
            for sketch in parts[0]
        ]
        return pa.array(quantiles, self.result_type)
