"""Values in columns: tables that keep numbers in arrays instead of an object for each entry.

A table may be a `ColumnTable` too where its values are structs of numbers (`keyedstate.tables.is_numeric`),
such as the accumulators of declared aggregates.  The backend decides that table by table, and may leave out
some types of keys.  Such a table keeps the contracts of `StateTable` and `ChangeTracking`; the framework uses
columns for many rows.
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
    """One field of the values of several entries: int64 or float64, arbitrary where there is no value.

    `present` says which elements have a value; it is None where all have one.
    """

    values: npt.NDArray[Any]
    present: Flags | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indices: Integers | slice) -> Column:
        """Return the column of some of the entries."""
        return Column(self.values[indices], None if self.present is None else self.present[indices])

    @property
    def there(self) -> Flags:
        """Which elements have a value."""
        return np.ones(len(self.values), np.bool_) if self.present is None else self.present


class LocatedEntries(ABC):
    """The entries of some rows; valid until the table is changed in another way.

    Entries are numbered in the order of their first rows, `first_rows`; `codes` has the entry number of each
    row. An address without an entry is among them, and gets one when it is written.
    """

    codes: Integers
    first_rows: Integers

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.first_rows)

    @property
    @abstractmethod
    def exist(self) -> Flags:
        """Which of the entries exist, also with the value None."""

    @abstractmethod
    def read(self) -> list[Column]:
        """Return the fields of the values, one column each; an entry without a value has none."""

    @abstractmethod
    def write(self, columns: Sequence[Column]) -> None:
        """Replace the values of all entries, each of which counts as changed.

        There is a column for each field, with numbers in the range of its type.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove the entries that exist."""


class ColumnTable(ABC, Generic[N]):
    """A table that finds entries by columns of keys, and reads and writes columns of their fields."""

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
            The keys of the rows in canonical form: one array of the key serializer's type, for tuples one for
            each part.
        key_groups : ndarray of int32
            The key group of each row.
        namespaces : sequence
        which : ndarray of int32, optional
            The index in `namespaces` of each row's namespace; by default all rows have the first one.
        """
