"""Aggregates that keep the values themselves."""

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
    checked_where,
    of_column,
    values_type,
    wrong_type,
)
from keyedstate.errors import InvalidAggregateError
from keyedstate.runtime.grouping import GroupedRows, canonical_values, joined_values
from keyedstate.types import TypeSerializer, list_of, set_of, tuple_of


def collect(column: str, *, where: str | None = None) -> Aggregate:
    """Return all values of a column as an array, nulls left out; empty where there is no value.

    The state of a key grows with every row and is read and written as a whole, so use it for keys with few
    rows.  The order is that in which rows reach the operator.
    """
    return of_column("collect", column, partial(_Collected, distinct=False), where)


def collect_set(column: str, *, where: str | None = None) -> Aggregate:
    """Return the distinct values of a column as an array, in the order of their first rows, nulls left out.

    Values are compared as in ``GROUP BY``: all NaNs are one value, and so are 0.0 and -0.0.
    """
    return of_column("collect_set", column, partial(_Collected, distinct=True), where)


def count_distinct(*columns: str, where: str | None = None) -> Aggregate:
    """Return the exact number of distinct values of a column, or of combinations of several.

    Values are compared as in `collect_set`; a row with a null in one of the columns does not count.  The
    state of a key has all of its values; `approx_distinct` is for keys with millions of them.
    """
    if not columns:
        raise InvalidAggregateError(None, "count_distinct() has no column; name at least one")
    for column in columns:
        check_column("count_distinct", column)
    condition = checked_where("count_distinct", where)
    return Aggregate("count_distinct", columns, _CountDistinct, where=condition)


class _CountDistinct(SinglePart):
    never_null = True

    def __init__(self, name: str, columns: tuple[str, ...], types: Sequence[pa.DataType]) -> None:
        self._value_types = [_hashed_type(name, type) for type in types]
        single = len(columns) == 1
        values = self._value_types[0] if single else tuple_of(*self._value_types)
        super().__init__(name, columns, set_of(values), pa.int64())
        self._canonical = values.canonical if values.needs_canonical else None

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        pairs = GroupedRows([pa.array(rows.codes), *columns], np.zeros(len(rows.codes), np.int32))
        places, codes = pairs.first_rows, rows.codes[pairs.first_rows]
        for column in columns:
            if column.null_count:
                valid = column.is_valid().to_numpy(zero_copy_only=False)[places]
                places, codes = places[valid], codes[valid]
        order = np.argsort(codes, kind="stable")
        taken = [column.take(pa.array(places[order])) for column in columns]
        values = joined_values(list(map(canonical_values, taken, self._value_types)))
        bounds = np.searchsorted(codes[order], np.arange(len(rows) + 1)).tolist()
        return [[set(values[start:end]) or None for start, end in pairwise(bounds)]]

    def both(self, stored: set[Any], new: set[Any]) -> set[Any]:
        if self._canonical is not None:
            # A NaN that was restored is another object, and so another element, than that of new rows.
            stored = set(map(self._canonical, stored))
        # A live snapshot may share the stored one, so it is not changed in place.
        return stored if new <= stored else stored | new

    def results(self, parts: list[Part]) -> pa.Array:
        return pa.array([0 if values is None else len(values) for values in parts[0]], pa.int64())


def _hashed_type(name: str, arrow_type: pa.DataType) -> TypeSerializer[Any]:
    value_type = values_type(name, arrow_type)
    if not value_type.immutable:
        raise wrong_type(name, arrow_type, "values that have a hash")
    return value_type


class _Collected(SinglePart):
    never_null = True

    def __init__(
        self, name: str, columns: tuple[str, ...], arrow_type: pa.DataType, *, distinct: bool
    ) -> None:
        value_type = _hashed_type(name, arrow_type) if distinct else values_type(name, arrow_type)
        super().__init__(name, columns, list_of(value_type), pa.list_(value_type.arrow_type))
        self._value_type = value_type
        self._distinct = distinct

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        column = columns[0].take(pa.array(rows.rows_by_key))
        if self._distinct:
            values = canonical_values(column, self._value_type)
        else:
            values = self._value_type.from_arrow(column)
        reduced: Part = []
        for start, end in pairwise(rows.bounds.tolist()):
            some = [value for value in values[start:end] if value is not None]
            reduced.append((list(dict.fromkeys(some)) if self._distinct else some) or None)
        return [reduced]

    def both(self, stored: list[Any], new: list[Any]) -> list[Any]:
        # A new list: a live snapshot may share the stored one.
        both = [*stored, *new]
        if not self._distinct:
            return both
        if self._value_type.needs_canonical:
            # A NaN that was restored is another object than that of new rows.
            return list(dict.fromkeys(map(self._value_type.canonical, both)))
        return list(dict.fromkeys(both))

    def results(self, parts: list[Part]) -> pa.Array:
        return self.type.to_arrow([value or [] for value in parts[0]])
