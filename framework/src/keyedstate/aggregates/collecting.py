"""Aggregates that keep the values themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from keyedstate.aggregates.declaration import Aggregate, Part, SinglePart, of_column, values_type, wrong_type
from keyedstate.runtime.grouping import GroupedRows, canonical_values
from keyedstate.types import list_of


def collect(column: str) -> Aggregate:
    """Return all values of a column as an array, nulls left out; empty where there is no value.

    The state of a key grows with every row and is read and written as a whole, so use it for keys with few
    rows.  The order is that in which rows reach the operator.
    """
    return of_column("collect", column, partial(_Collected, distinct=False))


def collect_set(column: str) -> Aggregate:
    """Return the distinct values of a column as an array, in the order of their first rows, nulls left out.

    Values are compared as in ``GROUP BY``: all NaNs are one value, and so are 0.0 and -0.0.
    """
    return of_column("collect_set", column, partial(_Collected, distinct=True))


class _Collected(SinglePart):
    never_null = True

    def __init__(
        self, name: str, columns: tuple[str, ...], arrow_type: pa.DataType, *, distinct: bool
    ) -> None:
        value_type = values_type(name, arrow_type)
        if distinct and not value_type.immutable:
            raise wrong_type(name, arrow_type, "values that have a hash")
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
        return list(dict.fromkeys([*stored, *new])) if self._distinct else [*stored, *new]

    def results(self, parts: list[Part]) -> pa.Array:
        return self.type.to_arrow([value or [] for value in parts[0]])
