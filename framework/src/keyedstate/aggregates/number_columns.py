"""Parts of accumulators as columns of numbers: what aggregates of numbers share where no key costs an object.

What is computed here is what the same aggregates compute of lists, to the last bit: Python's floats and
NumPy's are the same, and whole numbers never wrap around.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates.declaration import Part
from keyedstate.backend import Column
from keyedstate.tables import column_of

Numbers = npt.NDArray[Any]


class TooLargeError(ArithmeticError):
    """A whole number that 64 bits do not hold.

    Attributes
    ----------
    row : int
        The first key whose number it is.
    """

    def __init__(self, row: int) -> None:
        self.row = row
        super().__init__(f"the sum in row {row} is beyond 64 bits")


def part_of(column: Column) -> Part:
    """Return a column as a list, None where nothing is there."""
    values: Part = column.values.tolist()
    if column.present is not None:
        for row in np.flatnonzero(~column.present).tolist():
            values[row] = None
    return values


def column_from(part: Part, arrow_type: pa.DataType) -> Column:
    """Return a list of numbers as a column."""
    return column_of(pa.array(part, arrow_type))


def integers(part: Part) -> Column:
    """Return whole numbers, some beyond 64 bits, as a column; as objects where there is such a one."""
    present = np.fromiter((value is not None for value in part), np.bool_, len(part))
    values = np.array([0 if value is None else value for value in part], object)
    try:
        return Column(values.astype(np.int64), None if present.all() else present)
    except OverflowError:
        return Column(values, None if present.all() else present)


def merged_columns(stored: Column, new: Column, both: Callable[[Numbers, Numbers], Numbers]) -> Column:
    """Return two columns as one: what both hold, or what one of them holds."""
    if stored.present is None and new.present is None:
        return Column(both(stored.values, new.values))
    old, other = stored.there, new.there
    values = np.where(old, stored.values, new.values)
    rows = np.flatnonzero(old & other)
    values[rows] = both(stored.values[rows], new.values[rows])
    present = old | other
    return Column(values, None if present.all() else present)


def added(stored: Column, new: Column) -> Column:
    """Return the sums of two columns.

    Raises
    ------
    TooLargeError
        Where whole numbers are beyond 64 bits.
    """
    if new.values.dtype == np.float64:
        with np.errstate(all="ignore"):
            return merged_columns(stored, new, np.add)
    if new.values.dtype == object:
        return _exactly_added(stored, new)
    with np.errstate(over="ignore"):
        made = merged_columns(stored, new, np.add)
    # Where both have the sign that the sum has not.
    wrapped = (stored.values ^ made.values) & (new.values ^ made.values) < 0
    wrapped &= stored.there & new.there
    if wrapped.any():
        raise TooLargeError(int(wrapped.argmax()))
    return made


def _exactly_added(stored: Column, new: Column) -> Column:
    exact = merged_columns(Column(stored.values.astype(object), stored.present), new, np.add)
    beyond = (exact.values > 2**63 - 1) | (exact.values < -(2**63))
    beyond = beyond.astype(np.bool_) & exact.there
    if beyond.any():
        raise TooLargeError(int(beyond.argmax()))
    return Column(np.where(exact.there, exact.values, 0).astype(np.int64), exact.present)
