"""Aggregates that keep the values themselves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from keyedstate.aggregates.declaration import (
    Aggregate,
    BoundAggregate,
    Part,
    check_column,
    merged,
    values_type,
    wrong_type,
)
from keyedstate.runtime.grouping import GroupedRows, canonical_values
from keyedstate.types import TypeSerializer, list_of


def collect(column: str) -> Aggregate:
    """Return all values of a column as an array, nulls left out; empty where there is no value.

    The state of a key grows with every row, and is read and written as a whole: for keys of few rows.  The
    order is that in which rows reach the operator.

    Parameters
    ----------
    column : str
    """
    check_column("collect", column)

    def bind(name: str, columns: tuple[str, ...], types: Sequence[pa.DataType]) -> BoundAggregate:
        return _Collected(name, columns, values_type(name, types[0]), False)

    return Aggregate("collect", (column,), bind)


def collect_set(column: str) -> Aggregate:
    """Return the distinct values of a column as an array, in the order of their first rows, nulls left out.

    Two values are one where they are for ``GROUP BY``: all NaNs, and 0.0 and -0.0.

    Parameters
    ----------
    column : str
    """
    check_column("collect_set", column)

    def bind(name: str, columns: tuple[str, ...], types: Sequence[pa.DataType]) -> BoundAggregate:
        type = values_type(name, types[0])
        if not type.immutable:
            raise wrong_type(name, types[0], "values that have a hash")
        return _Collected(name, columns, type, True)

    return Aggregate("collect_set", (column,), bind)


class _Collected(BoundAggregate):
    never_null = True

    def __init__(
        self, name: str, columns: tuple[str, ...], type: TypeSerializer[Any], distinct: bool
    ) -> None:
        self.name = name
        self.columns = columns
        self.parts = {"": list_of(type)}
        self.result_type = pa.list_(type.arrow_type)
        self._type = type
        self._distinct = distinct

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        (column,) = columns
        column = column.take(pa.array(rows.rows_by_key))
        values = canonical_values(column, self._type) if self._distinct else self._type.from_arrow(column)
        bounds = rows.bounds.tolist()
        made: Part = []
        for start, end in pairwise(bounds):
            some = [value for value in values[start:end] if value is not None]
            made.append((list(dict.fromkeys(some)) if self._distinct else some) or None)
        return [made]

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        return [merged(stored[0], new[0], self._both)]

    def _both(self, stored: list[Any], new: list[Any]) -> list[Any]:
        # A new list: a live snapshot may show the stored one.
        return list(dict.fromkeys([*stored, *new])) if self._distinct else [*stored, *new]

    def results(self, parts: list[Part]) -> pa.Array:
        return self.parts[""].to_arrow([value or [] for value in parts[0]])
