"""Parts of accumulators as columns of numbers, so that no key costs a Python object.

The results are those of the same aggregates over lists, to the last bit: Python's floats and NumPy's are the
same, and whole numbers never wrap around.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates.declaration import BoundAggregate, Part
from keyedstate.backend import Column
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.tables import column_of

Numbers = npt.NDArray[Any]


class TooLargeError(ArithmeticError):
    """A whole number that 64 bits do not hold."""

    def __init__(self, row: int) -> None:
        #: The first key that has such a number.
        self.row = row
        super().__init__(f"the sum in row {row} is beyond 64 bits")


class NumberAggregate(BoundAggregate):
    """An aggregate whose parts are numbers; by default two accumulators are merged by adding their parts."""

    by_columns = True

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        return [part_of(column) for column in self.reduce_columns(columns, rows)]

    @abstractmethod
    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]: ...

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        # Written out: a call for each key would take as long as all the rest.
        return [
            [n if o is None else o if n is None else o + n for o, n in zip(old, other, strict=True)]
            for old, other in zip(stored, new, strict=True)
        ]

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return list(map(added, stored, new))

    def after_each(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return list(map(accumulated, stored, new))

    def without(self, parts: list[Part], taken: list[Part]) -> list[Part]:
        return [
            [n if t is None else -t if n is None else n - t for n, t in zip(some, less, strict=True)]
            for some, less in zip(parts, taken, strict=True)
        ]

    def without_columns(self, parts: list[Column], taken: list[Column]) -> list[Column]:
        return list(map(subtracted, parts, taken))

    def results(self, parts: list[Part]) -> pa.Array:
        return self.results_of(self.columns_of(parts))

    def columns_of(self, parts: list[Part]) -> list[Column]:
        """Return parts as columns."""
        types = self.parts.values()
        return [column_of(type.to_arrow(part)) for part, type in zip(parts, types, strict=True)]


def part_of(column: Column) -> Part:
    """Return a column as a list, with None for missing values."""
    values: Part = column.values.tolist()
    if column.present is not None:
        for row in np.flatnonzero(~column.present).tolist():
            values[row] = None
    return values


def merged_columns(stored: Column, new: Column, both: Callable[[Numbers, Numbers], Numbers]) -> Column:
    """Return two columns as one: ``both(old, new)`` where both have a value, else the value of either."""
    if stored.present is None and new.present is None:
        return Column(both(stored.values, new.values))
    old, other = stored.there, new.there
    values = np.where(old, stored.values, new.values)
    rows = np.flatnonzero(old & other)
    values[rows] = both(stored.values[rows], new.values[rows])
    present = old | other
    return Column(values, None if present.all() else present)


def added(stored: Column, new: Column) -> Column:
    """Return the sums of two columns; raises `TooLargeError` where whole numbers are beyond 64 bits."""
    if new.values.dtype == np.float64:
        with np.errstate(all="ignore"):
            return merged_columns(stored, new, np.add)
    if new.values.dtype == object:
        return _exactly_added(stored, new)
    with np.errstate(over="ignore"):
        sums = merged_columns(stored, new, np.add)
    # A sum has wrapped around where both summands have the sign that it has not.
    wrapped = (stored.values ^ sums.values) & (new.values ^ sums.values) < 0
    wrapped &= stored.there & new.there
    if wrapped.any():
        raise TooLargeError(int(wrapped.argmax()))
    return sums


def accumulated(stored: Column, new: Column) -> Column:
    """Return the sums of one value and the rows of a column so far, as `added` row by row.

    Raises `TooLargeError` where whole numbers are beyond 64 bits.
    """
    # Minus zero changes no number; zero would change minus zero.
    nothing = -0.0 if new.values.dtype == np.float64 else 0
    there = np.concatenate([stored.there, new.there])
    values = np.where(there, np.concatenate([stored.values, new.values]), nothing)
    with np.errstate(all="ignore"):
        sums = np.add.accumulate(values)
    before, after = sums[:-1], sums[1:]
    if sums.dtype != np.float64:
        # As in `added`.
        wrapped = (before ^ after) & (values[1:] ^ after) < 0
        if wrapped.any():
            raise TooLargeError(int(wrapped.argmax()))
    return Column(after, np.logical_or.accumulate(there)[1:])


def best_so_far(stored: Column, new: Column, *, largest: bool) -> Column:
    """Return the largest or smallest of one value and the rows of a column so far; NaN is the largest."""
    there = np.concatenate([stored.there, new.there])
    values = np.concatenate([stored.values, new.values])
    if values.dtype == np.float64:
        nothing = -np.inf if largest else np.nan
    else:
        limits = np.iinfo(values.dtype)
        nothing = limits.min if largest else limits.max
    values[~there] = nothing
    best = (np.maximum if largest else np.fmin).accumulate(values)
    before, rows = best[:-1], values[1:]
    wins = (rows != rows) | (rows > before) if largest else (before != before) | (rows < before)
    # Of equal values, such as zeros of both signs, the first one stays.
    at = np.maximum.accumulate(np.where(wins & there[1:], np.arange(1, len(values)), 0))
    return Column(values[at], np.logical_or.accumulate(there)[1:])


def subtracted(column: Column, taken: Column) -> Column:
    """Return the differences of two columns; a missing value is zero, and one is missing where both are.

    They are Python's numbers where one of them may be beyond 64 bits.
    """
    values, less = (np.where(each.there, each.values, 0) for each in (column, taken))
    if values.dtype != np.float64 and max(largest(values), largest(less)) >= 2**62:
        values, less = values.astype(object), less.astype(object)
    with np.errstate(all="ignore"):
        differences = values - less
    present = column.there | taken.there
    return Column(differences, None if present.all() else present)


def largest(values: Numbers) -> int:
    """Return the largest absolute value of whole numbers; 0 for no numbers."""
    return max(abs(int(values.min())), abs(int(values.max()))) if len(values) else 0


def _exactly_added(stored: Column, new: Column) -> Column:
    exact = merged_columns(Column(stored.values.astype(object), stored.present), new, np.add)
    beyond = (exact.values > 2**63 - 1) | (exact.values < -(2**63))
    beyond = beyond.astype(np.bool_) & exact.there
    if beyond.any():
        raise TooLargeError(int(beyond.argmax()))
    return Column(np.where(exact.there, exact.values, 0).astype(np.int64), exact.present)
