"""Snapshots and changes of a table in columns, for the thread that writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.backend import AddressBatch, Column, StateMeta, TableChanges, TableSnapshot
from keyedstate.errors import ColumnSizeError
from keyedstate.tables import ArrowEntryBatch, array_of, column_of
from keyedstate_heap_cow.before_images import FrozenArrays
from keyedstate_heap_cow.keybytes import KeyBytes
from keyedstate_heap_cow.keyindex import starts_of

Slots = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Entries whose arrays are made together, whatever their key groups: each array has a cost of its own.
_RUN_ENTRIES = 65_536


@dataclass(frozen=True, eq=False)
class Addresses:
    """The keys and namespaces of a table, which do not change as long as this exists; the owner adds more.

    Attributes
    ----------
    meta : StateMeta
    keys : KeyBytes
    bytes : ndarray of uint8
    entries : ndarray of keyindex.ENTRY
    spaces : sequence
        The namespaces by their numbers.
    """

    meta: StateMeta
    keys: KeyBytes
    bytes: npt.NDArray[np.uint8]
    entries: npt.NDArray[Any]
    spaces: Sequence[Any]

    def arrays(self, slots: Slots) -> tuple[pa.Array, pa.Array]:
        """Return the namespaces and the keys of entries.

        Raises
        ------
        ColumnSizeError
        """
        entries = self.entries[slots]
        keys = self.keys.decode(
            self.bytes,
            starts_of(entries),
            np.ascontiguousarray(entries["length"]),
        )
        numbers = entries["space"]
        there = np.zeros(len(self.spaces), np.bool_)
        there[numbers] = True
        used = np.flatnonzero(there).tolist()
        spaces = self.meta.namespace_serializer.to_arrow([self.spaces[space] for space in used])
        indices = (np.cumsum(there) - 1)[numbers]
        return spaces.take(pa.array(indices)), keys


def struct_of(arrow_type: pa.DataType, columns: Sequence[Column], nones: Flags | None) -> pa.StructArray:
    """Return values as an array; `nones` says which of them are None."""
    parts = [array_of(column, field.type) for column, field in zip(columns, arrow_type, strict=True)]
    mask = pa.array(nones) if nones is not None and nones.any() else None
    return pa.StructArray.from_arrays(parts, fields=list(arrow_type), mask=mask)


class ByKeyGroup:
    """Entries by their key groups, as arrays that are made on demand.

    Parameters
    ----------
    addresses : Addresses
    slots : ndarray of int64
        The entries, each once.
    values : callable, optional
        Takes indices in `slots` and returns the values; without, they are null.
    """

    def __init__(
        self, addresses: Addresses, slots: Slots, values: Callable[[Slots], pa.Array] | None = None
    ) -> None:
        self._addresses = addresses
        self._values = values
        # Of 16 bits, which NumPy sorts in linear time; there are at most 2**15 key groups.
        groups = addresses.entries["group"][slots]
        self._order = np.argsort(groups, kind="stable")
        self._slots = slots[self._order]
        self._groups = groups[self._order]
        #: The arrays that were made last, and the range of entries that they contain.
        self._run: pa.RecordBatch | None = None
        self._first = self._end = 0

    def batches(self, key_group: int, size: int) -> Iterator[ArrowEntryBatch]:
        """Yield the entries of a key group."""
        first, end = np.searchsorted(self._groups, [key_group, key_group + 1]).tolist()
        start = first
        while start < end:
            stop = min(start + size, end)
            batch = self._arrays(start, stop)
            start += batch.num_rows
            yield ArrowEntryBatch(self._addresses.meta, batch)

    def _arrays(self, start: int, stop: int) -> pa.RecordBatch:
        """Return a range of entries, or as much of it as arrays can address."""
        if self._run is None or start < self._first or stop > self._end:
            end = min(max(stop, start + _RUN_ENTRIES), len(self._slots))
            while True:
                try:
                    self._run = self._batch(start, end)
                    break
                except ColumnSizeError:
                    if end - start == 1:
                        raise
                    end = start + (end - start) // 2
            self._first, self._end = start, end
        return self._run.slice(start - self._first, min(stop, self._end) - start)

    def _batch(self, start: int, end: int) -> pa.RecordBatch:
        namespaces, keys = self._addresses.arrays(self._slots[start:end])
        indices = self._order[start:end]
        values = pa.nulls(len(indices)) if self._values is None else self._values(indices)
        return pa.RecordBatch.from_arrays([namespaces, keys, values], ["namespace", "key", "value"])


class ColumnsSnapshot(TableSnapshot[Any, Any, Any]):
    """The entries of a table when the snapshot was taken.

    Parameters
    ----------
    addresses : Addresses
    arrays : FrozenArrays
        The liveness of each entry, 0 for a removed one; and of each field its values and where it has one.
    none : int
        The liveness of an entry whose value is None.
    release : callable
        Tells the owner that the arrays are read no more.
    """

    def __init__(
        self, addresses: Addresses, arrays: FrozenArrays, none: int, release: Callable[[], None]
    ) -> None:
        self._addresses: Addresses | None = addresses
        self._arrays = arrays
        self._none = none
        self._release = release
        self._entries: ByKeyGroup | None = None

    def batches(self, key_group: int, size: int) -> Iterator[ArrowEntryBatch]:
        if self._entries is None and self._addresses is not None:
            # Not when the snapshot is taken: this looks at all entries.
            slots = self._arrays.where(lambda live: live != 0, [0])
            arrow_type = self._addresses.meta.value_serializer.arrow_type
            which = range(1 + 2 * len(arrow_type))

            def values(indices: Slots) -> pa.Array:
                live, *fields = self._arrays.read(slots[indices], which)
                columns = list(map(Column, fields[::2], fields[1::2]))
                return struct_of(arrow_type, columns, live == self._none)

            self._entries = ByKeyGroup(self._addresses, slots, values)
        return iter(()) if self._entries is None else self._entries.batches(key_group, size)

    def release(self) -> None:
        """Free the arrays; safe in any thread."""
        release, self._release = self._release, lambda: None
        release()
        self._addresses = self._entries = None


class ColumnsChanges(TableChanges[Any, Any, Any]):
    """The changes of a table, with the values at the time of the capture.

    Parameters
    ----------
    addresses : Addresses
    written : ndarray of int64
        The entries.
    values : pyarrow.StructArray
        Their values.
    removed : ndarray of int64
    """

    def __init__(self, addresses: Addresses, written: Slots, values: pa.StructArray, removed: Slots) -> None:
        self._count = len(written) + len(removed)
        self._written: ByKeyGroup | None = ByKeyGroup(
            addresses, written, lambda indices: values.take(pa.array(indices))
        )
        self._removed: ByKeyGroup | None = ByKeyGroup(addresses, removed)

    def __len__(self) -> int:
        """Return how many addresses were written or removed."""
        return self._count

    def written(self, key_group: int, size: int) -> Iterator[ArrowEntryBatch]:
        return iter(()) if self._written is None else self._written.batches(key_group, size)

    def removed(self, key_group: int, size: int) -> Iterator[AddressBatch[Any, Any]]:
        if self._removed is not None:
            for batch in self._removed.batches(key_group, size):
                yield AddressBatch(batch.namespaces, batch.keys)

    def release(self) -> None:
        self._written = self._removed = None
        self._count = 0


def columns_of(values: pa.StructArray) -> tuple[list[Column], npt.NDArray[np.bool_] | None]:
    """Return the fields of values, and which of these are None."""
    nones = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    return [column_of(part) for part in values.flatten()], nones
