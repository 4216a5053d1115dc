"""Declared aggregates: what the user writes, and what it becomes once the types of its columns are known.

An aggregate keeps one accumulator per key, a tuple of parts whose types are known.  The rows of an epoch are
reduced by columns to one value of each part for each distinct key, which is merged with the stored one.  A
part that is None stands for no value, so that a new key and an aggregate that was added later are no special
cases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.backend import Column
from keyedstate.errors import InvalidAggregateError, UnsupportedTypeError, did_you_mean, forgotten_call
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.tables import array_of
from keyedstate.types import TypeSerializer, infer

#: The values of one part of an accumulator, one per key; None where a key has none.
Part = list[Any]


class BoundAggregate(ABC):
    """An aggregate of columns whose types are known."""

    #: Whether the result is never null.
    never_null: bool = False
    #: Whether the parts may be columns of numbers, so that the three methods on columns may be called.
    by_columns: bool = False
    #: The column of booleans that says which rows count; None for all of them.
    where: str | None = None

    def __init__(
        self,
        name: str,
        columns: tuple[str, ...],
        parts: Mapping[str, TypeSerializer[Any]],
        result_type: pa.DataType,
    ) -> None:
        #: What is computed, ``sum(amount)``; a checkpoint stores the accumulator under this name.
        self.name = name
        #: The columns that it reads.
        self.columns = columns
        #: The types of the accumulator's parts by name; the name of a single part is empty.
        self.parts = parts
        self.result_type = result_type

    @abstractmethod
    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        """Return the parts of each distinct key of some rows."""

    @abstractmethod
    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        """Return stored parts merged with those of later rows."""

    @abstractmethod
    def results(self, parts: list[Part]) -> pa.Array:
        """Return the results of accumulators."""

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        """Return the parts of each distinct key of some rows, as `reduce` does."""
        raise NotImplementedError

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        """Return stored parts merged with those of later rows, as `merge` does.

        Raises `TooLargeError` where a whole number is beyond 64 bits.
        """
        raise NotImplementedError

    def after_each(self, stored: list[Column], new: list[Column]) -> list[Column]:
        """Return the stored parts of one key merged with those of later rows, after each of them.

        `new` has the parts of each row.  Raises as `merge_columns`.
        """
        after: list[list[Column]] = []
        for row in range(len(new[0])):
            stored = self.merge_columns(stored, [column.take(slice(row, row + 1)) for column in new])
            after.append(stored)
        return [
            Column(
                np.concatenate([column.values for column in part]),
                np.concatenate([column.there for column in part]),
            )
            for part in zip(*after, strict=True)
        ]

    def results_of(self, parts: list[Column]) -> pa.Array:
        """Return the results of accumulators, as `results` does; by default the only part."""
        return array_of(parts[0], self.result_type)

    def of_changes(self) -> BoundAggregate:
        """Return the aggregate of rows that may take earlier ones back, which has the next two methods.

        Raises `InvalidAggregateError` where its accumulators do not tell what they were without a row.
        """
        raise InvalidAggregateError(
            None,
            f"{self.name} cannot take a row back; over rows with row kinds only count, sum_ and mean can, so "
            "compute it in a process function",
        )

    def without(self, parts: list[Part], taken: list[Part]) -> list[Part]:
        """Return parts less those of the rows that are taken back; both may have None."""
        raise NotImplementedError

    def without_columns(self, parts: list[Column], taken: list[Column]) -> list[Column]:
        """Return the same of parts that are columns."""
        raise NotImplementedError


class SinglePart(BoundAggregate):
    """An aggregate whose accumulator is one value, merged two by two; by default it is the result too."""

    def __init__(
        self,
        name: str,
        columns: tuple[str, ...],
        type: TypeSerializer[Any],
        result_type: pa.DataType | None = None,
    ) -> None:
        super().__init__(name, columns, {"": type}, type.arrow_type if result_type is None else result_type)
        self.type = type

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        return [merged(stored[0], new[0], self.both)]

    def both(self, stored: Any, new: Any) -> Any:
        """Return two values as one."""
        raise NotImplementedError

    def results(self, parts: list[Part]) -> pa.Array:
        return self.type.to_arrow(parts[0])


@dataclass(frozen=True)
class Aggregate:
    """An aggregate as a user declares it, for ``keyed(...).aggregate(column=aggregate)``.

    Use the functions of `keyedstate.aggregates` to make one.

    Attributes
    ----------
    function : str
    columns : tuple of str
        The columns whose values it takes.
    bind : callable
        Takes `name`, `columns` and `by` in one tuple and their Arrow types and returns the `BoundAggregate`;
        raises `InvalidAggregateError` for types of which it cannot be computed.
    detail : str
        How it is computed, where another way has another accumulator.
    by : tuple of str
        The columns that order the rows.
    where : str, optional
        A column of booleans: rows in which it is false or null do not count.
    whole_rows : bool
        Whether its columns are all those of the rows.
    """

    function: str
    columns: tuple[str, ...]
    bind: Callable[[str, tuple[str, ...], Sequence[pa.DataType]], BoundAggregate]
    detail: str = ""
    by: tuple[str, ...] = ()
    where: str | None = None
    whole_rows: bool = False

    @property
    def name(self) -> str:
        """What is computed, ``sum(amount)``."""
        columns = "*" if self.whole_rows else ", ".join(self.columns) or "*"
        by = f"by {', '.join(self.by)}" if self.by else ""
        where = f"where {self.where}" if self.where is not None else ""
        return f"{self.function}({' '.join(filter(None, (columns, by, self.detail, where)))})"

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (*self.columns, *self.by, *(() if self.where is None else (self.where,)))

    def over(self, names: Sequence[str], resolve: Callable[[str], str]) -> Aggregate:
        """Return the aggregate of rows with the columns `names`; `resolve` returns one of them, or raises."""
        return replace(
            self,
            columns=tuple(names if self.whole_rows else map(resolve, self.columns)),
            by=tuple(map(resolve, self.by)),
            where=None if self.where is None else resolve(self.where),
        )

    def bound(self, types: Mapping[str, pa.DataType]) -> BoundAggregate:
        """Return the aggregate of columns of these types; raises `InvalidAggregateError`."""
        columns = (*self.columns, *self.by)
        bound = self.bind(self.name, columns, [types[column] for column in columns])
        if self.where is not None:
            if not pa.types.is_boolean(types[self.where]):
                raise wrong_type(f"where={self.where!r}", types[self.where], "booleans")
            bound.where = self.where
        return bound

    def __repr__(self) -> str:
        return self.name


def of_column(
    function: str,
    column: str,
    bind: Callable[[str, tuple[str, ...], pa.DataType], BoundAggregate],
    where: str | None,
    detail: str = "",
) -> Aggregate:
    """Return an aggregate of one column for the function that the user called; `bind` takes one Arrow type.

    Raises `InvalidAggregateError` for what is no name of a column.
    """
    check_column(function, column)
    return Aggregate(
        function.rstrip("_"),
        (column,),
        lambda name, columns, types: bind(name, columns, types[0]),
        detail,
        where=checked_where(function, where),
    )


def checked_where(function: str, where: str | None) -> str | None:
    """Return the column of a condition, None for none; raises `InvalidAggregateError` for what is no name."""
    if where is not None:
        check_column(function, where)
    return where


def check_column(function: str, column: object) -> None:
    """Raise `InvalidAggregateError` for what is no name of a column."""
    if not isinstance(column, str):
        raise InvalidAggregateError(
            None,
            f"{function}() is given {column!r}; name a column of the DataFrame, and add a computed one with "
            "withColumn()",
        )


def all_aggregates(
    given: Mapping[str, Aggregate], named: Mapping[str, Aggregate] | None = None
) -> dict[str, Aggregate]:
    """Return the aggregates of a mapping and of keyword arguments, by the names of their output columns.

    Raises `InvalidAggregateError` without any, for what is no aggregate, and for a name that is empty
    or comes twice.
    """
    if not isinstance(given, Mapping):
        raise InvalidAggregateError(
            None, f"it is given {given!r}; name the output column, as in aggregate(n=count())"
        )
    chosen = {**given, **(named or {})}
    if not chosen:
        raise InvalidAggregateError(
            None, "it names no aggregate; give at least one, as in aggregate(n=count())"
        )
    for name, aggregate in chosen.items():
        if not name:
            raise InvalidAggregateError(None, f"an output column is named {name!r}; give it a name")
        if name in given and name in (named or {}):
            raise InvalidAggregateError(name, "it is given twice; leave one of them out")
        if not isinstance(aggregate, Aggregate):
            raise InvalidAggregateError(
                name,
                f"it is {aggregate!r}{forgotten_call(aggregate)}; give one of keyedstate.aggregates, such as "
                "count() or sum_('c')",
            )
    return chosen


def over_columns(aggregates: Mapping[str, Aggregate], columns: Sequence[str]) -> dict[str, Aggregate]:
    """Return the aggregates of rows with these columns; raises `InvalidAggregateError` for another one."""

    def resolve(column: str) -> str:
        if column not in columns:
            hint = did_you_mean(column, columns)
            raise InvalidAggregateError(
                name, f"the rows have no column {column!r}, but {', '.join(columns)}.{hint}"
            )
        return column

    found = {}
    for name, aggregate in aggregates.items():
        found[name] = aggregate.over(columns, resolve)
    return found


def wrong_type(name: str, arrow_type: pa.DataType, needed: str) -> InvalidAggregateError:
    """Return the error for a column of a type of which an aggregate cannot be computed."""
    return InvalidAggregateError(
        None, f"{name} needs {needed}, and the column has the Arrow type {arrow_type}; cast it"
    )


def values_type(name: str, arrow_type: pa.DataType) -> TypeSerializer[Any]:
    """Return the type of a column's values in state, or raise `InvalidAggregateError`."""
    try:
        return infer(arrow_type)
    except UnsupportedTypeError as error:
        raise wrong_type(name, arrow_type, "values that have a type in state") from error


def merged(stored: Part, new: Part, both: Callable[[Any, Any], Any]) -> Part:
    """Return two columns as one: ``both(old, new)`` where both have a value, else the value of either."""
    return [n if o is None else o if n is None else both(o, n) for o, n in zip(stored, new, strict=True)]
