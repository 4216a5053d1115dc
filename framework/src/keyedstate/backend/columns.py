"""Values in columns: what a table can do that keeps numbers as arrays, and not as an object for each entry.

A table is a `ColumnTable` beside `StateTable` where the type of its values allows it: a struct whose fields
are all numbers (`keyedstate.tables.is_numeric`), such as the accumulators of declared aggregates.  The
backend decides that table by table, and may leave out types of keys that it has no fast way for.  All of
`StateTable` and `ChangeTracking` holds for such a table too; the framework uses columns for many rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

N = TypeVar("N")

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Column:
    """One field of the values of several entries.

    Attributes
    ----------
    values : ndarray of int64 or float64
        What stands where nothing is there means nothing.
    present : ndarray of bool, or None
        Where there is a value; None where there is one everywhere.
    """

    values: npt.NDArray[Any]
    present: Flags | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, places: Integers | slice) -> Column:
        """Return the column of some of the entries."""
        return Column(self.values[places], None if self.present is None else self.present[places])

    @property
    def there(self) -> Flags:
        """Where there is a value."""
        return np.ones(len(self.values), np.bool_) if self.present is None else self.present


class LocatedEntries(ABC):
    """The entries that some rows belong to; of use until the table is changed in any other way.

    An entry is a key and a namespace.  Entries are numbered by their first rows; one that the table does not
    hold is among them, and comes into the table when it is written.

    Attributes
    ----------
    codes : ndarray of int64
        For each row the number of its entry.
    first_rows : ndarray of int64
        For each entry its first row.
    """

    codes: Integers
    first_rows: Integers

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.first_rows)

    @property
    @abstractmethod
    def exist(self) -> Flags:
        """Which of the entries the table holds, also with the value None."""

    @abstractmethod
    def read(self) -> list[Column]:
        """Return the fields of the values, one column each; nothing is there where there is no value."""

    @abstractmethod
    def write(self, columns: Sequence[Column]) -> None:
        """Replace the values of all entries; each counts as changed.

        Parameters
        ----------
        columns : sequence of Column
            One for each field, with numbers that its type can hold.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove those that the table holds."""


class ColumnTable(ABC, Generic[N]):
    """A table that finds entries by columns of keys and gives and takes values by columns of their fields."""

    @abstractmethod
    def locate(
        self,
        keys: Sequence[pa.Array],
        key_groups: npt.NDArray[np.int32],
        namespaces: Sequence[N],
        which: npt.NDArray[np.int32] | None = None,
    ) -> LocatedEntries:
        """Find the entries of rows.

        Parameters
        ----------
        keys : sequence of pyarrow.Array
            The keys of the rows, in canonical form: one array of the key serializer's type, for tuples one
            for each part.
        key_groups : ndarray of int32
            The key group of each row.
        namespaces : sequence
        which : ndarray of int32, optional
            For each row the place of its namespace in `namespaces`; the first one by default.
        """
