"""What every aggregate is: a declaration by the user, bound to the column that it is computed of.

An aggregate keeps one accumulator per key, a tuple of parts whose types are known.  The rows of an epoch are
reduced by columns, to one column per part with a value for each distinct key; that is merged with what the
state holds.  A part that is None stands for no value at all, so that a key that is new, and an aggregate
that was added later, need no case of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keyedstate.backend import Column
from keyedstate.errors import InvalidAggregateError, UnsupportedTypeError, forgotten_call
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.tables import array_of
from keyedstate.types import TypeSerializer, infer

#: The values of one part of an accumulator, one per key; None where there is none.
Part = list[Any]


class BoundAggregate(ABC):
    """An aggregate of columns whose types are known.

    Attributes
    ----------
    name : str
        What is computed, ``sum(amount)``; the accumulator is found by it in a checkpoint.
    columns : tuple of str
        The columns that it reads.
    parts : dict
        The types of the accumulator's parts by name; the name of a single part is empty.
    result_type : pyarrow.DataType
    never_null : bool
        Whether the result is never null.
    by_columns : bool
        Whether the parts may be columns of numbers, so that the three methods of columns may be called.
    """

    name: str
    columns: tuple[str, ...]
    parts: Mapping[str, TypeSerializer[Any]]
    result_type: pa.DataType
    never_null: bool = False
    by_columns: bool = False

    @abstractmethod
    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        """Return the parts of each distinct key of some rows."""

    @abstractmethod
    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        """Return both in one; what is stored is of earlier rows."""

    def results(self, parts: list[Part]) -> pa.Array:
        """Return the results of accumulators; by default the only part."""
        (values,) = parts
        return pa.array(values, self.result_type)

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        """Return the parts of each distinct key of some rows, as `reduce` does."""
        raise NotImplementedError

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        """Return both in one, as `merge` does.

        Raises
        ------
        TooLargeError
            Where a whole number is beyond 64 bits.
        """
        raise NotImplementedError

    def results_of(self, parts: list[Column]) -> pa.Array:
        """Return the results of accumulators, as `results` does; by default the only part."""
        return array_of(parts[0], self.result_type)


class SingleValue(BoundAggregate):
    """An aggregate whose accumulator is a single value, merged two by two.

    Parameters
    ----------
    name : str
    columns : tuple of str
    type : TypeSerializer
        Of the accumulator and of the result.
    """

    def __init__(self, name: str, columns: tuple[str, ...], type: TypeSerializer[Any]) -> None:
        self.name = name
        self.columns = columns
        self.parts = {"": type}
        self.serializer = type
        self.result_type = type.arrow_type

    def results(self, parts: list[Part]) -> pa.Array:
        return self.serializer.to_arrow(parts[0])


@dataclass(frozen=True)
class Aggregate:
    """An aggregate as a user declares it, for ``keyed(...).aggregate(column=aggregate)``.

    Use the functions of `keyedstate.aggregates` to make one.

    Attributes
    ----------
    function : str
    columns : tuple of str
        The columns that it reads.
    bind : callable
        Takes `name`, `columns` and the Arrow types of these and returns the `BoundAggregate`, or raises
        `InvalidAggregateError` for types of which it cannot be computed.
    detail : str
        How it is computed, where another way has another accumulator.
    """

    function: str
    columns: tuple[str, ...]
    bind: Callable[[str, tuple[str, ...], Sequence[pa.DataType]], BoundAggregate]
    detail: str = ""

    @property
    def name(self) -> str:
        """What is computed, ``sum(amount)``."""
        return f"{self.function}({', '.join(self.columns) or '*'}{self.detail and ' '}{self.detail})"

    def __repr__(self) -> str:
        return self.name


def all_aggregates(given: Mapping[str, Aggregate], named: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    """Return what is given in a mapping and by name as one.

    Raises
    ------
    InvalidAggregateError
        Where a name comes twice.
    """
    if not isinstance(given, Mapping):
        raise InvalidAggregateError(
            None, f"it is given {given!r}; name the output column, as in aggregate(n=count())"
        )
    for name in given:
        if not name:
            raise InvalidAggregateError(None, f"an output column is named {name!r}; give it a name")
        if name in named:
            raise InvalidAggregateError(name, "it is given twice; leave one of them out")
    return {**given, **named}


def require_aggregate(name: str, given: object) -> Aggregate:
    """Return what is given for an output column, or refuse what is no aggregate."""
    if not isinstance(given, Aggregate):
        raise InvalidAggregateError(
            name,
            f"it is {given!r}{forgotten_call(given)}; give one of keyedstate.aggregates, such as "
            "count() or sum_('c')",
        )
    return given


def check_column(function: str, column: object) -> None:
    """Refuse what is no name of a column."""
    if not isinstance(column, str):
        raise InvalidAggregateError(
            None,
            f"{function}() is given {column!r}; name a column of the DataFrame, and add a computed one with "
            "withColumn()",
        )


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
    """Return two columns as one: what both hold, or what one of them holds."""
    return [n if o is None else o if n is None else both(o, n) for o, n in zip(stored, new, strict=True)]
