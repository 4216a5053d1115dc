"""Values in columns: what a table can do that keeps numbers as arrays, and not as an object for each entry.

A table of a backend that claims `Capability.COLUMNS` is a `ColumnTable` beside `StateTable` where the type
of its values allows it: a struct whose fields are all numbers (`is_numeric`), such as the accumulators of
declared aggregates.  The backend decides that table by table, and may leave out types of keys that it has no
fast way for.  All of `StateTable` and `ChangeTracking` holds for such a table too; the framework uses what is
here where it has many rows at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.backend.meta import StateMeta
from keyedstate.backend.table import EntryBatch
from keyedstate.types import TypeSerializer

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


def is_numeric(arrow_type: pa.DataType) -> bool:
    """Return whether the values of a type are numbers of at most 64 bits, which a `Column` can hold."""
    return bool(
        pa.types.is_signed_integer(arrow_type)
        or pa.types.is_float32(arrow_type)
        or pa.types.is_float64(arrow_type)
        or pa.types.is_boolean(arrow_type)
        or pa.types.is_date32(arrow_type)
        or pa.types.is_timestamp(arrow_type)
        or pa.types.is_duration(arrow_type)
    )


def column_dtype(arrow_type: pa.DataType) -> np.dtype[Any]:
    """Return the dtype of a column of values of a numeric type: that of floats or of integers of 64 bits."""
    return np.dtype(np.float64 if pa.types.is_floating(arrow_type) else np.int64)


def column_of(array: pa.Array) -> Column:
    """Return the values of an array of a numeric type: instants as numbers of their unit, true as 1."""
    arrow_type = array.type
    present = None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(arrow_type):
        array = array.cast(pa.int8())
    elif pa.types.is_date32(arrow_type):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(arrow_type) or pa.types.is_duration(arrow_type):
        array = array.view(pa.int64())
    if present is not None:
        array = array.fill_null(0)
    values = array.to_numpy(zero_copy_only=False)
    return Column(values.astype(column_dtype(arrow_type), copy=False), present)


def array_of(column: Column, arrow_type: pa.DataType) -> pa.Array:
    """Return a column as an array of a numeric type."""
    missing = None if column.present is None or column.present.all() else ~column.present
    array = pa.array(column.values, mask=missing)
    if array.type == arrow_type:
        return array
    if pa.types.is_date32(arrow_type):
        array = array.cast(pa.int32(), safe=False)
        return array.view(arrow_type)
    if pa.types.is_timestamp(arrow_type) or pa.types.is_duration(arrow_type):
        return array.view(arrow_type)
    return array.cast(arrow_type, safe=False)


class ArrowEntryBatch(EntryBatch[Any, Any, Any]):
    """Entries that are columns already; lists for those who ask for them.

    Parameters
    ----------
    meta : StateMeta
        Of the state; it makes the lists.
    columns : pyarrow.RecordBatch
        Namespaces, keys and values, of the types of the serializers.
    """

    def __init__(self, meta: StateMeta, columns: pa.RecordBatch) -> None:
        # The parent is frozen; what it declares as fields is made on demand here.
        object.__setattr__(self, "meta", meta)
        object.__setattr__(self, "columns", columns)

    meta: StateMeta
    columns: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @cached_property
    def namespaces(self) -> list[Any]:
        """The namespaces as objects."""
        return canonical_list(self.meta.namespace_serializer, self.columns.column(0))

    @cached_property
    def keys(self) -> list[Any]:
        """The keys as objects."""
        return canonical_list(self.meta.key_serializer, self.columns.column(1))

    @cached_property
    def values(self) -> list[Any]:
        """The values as objects."""
        return self.meta.value_serializer.from_arrow(self.columns.column(2))


def canonical_list(serializer: TypeSerializer[Any], column: pa.Array) -> list[Any]:
    """Return keys or namespaces as objects, in the form by which tables find them."""
    found = serializer.from_arrow(column)
    return list(map(serializer.canonical, found)) if serializer.needs_canonical else found


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
