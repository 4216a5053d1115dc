"""The snapshot and the changes of a table whose entries are in columns in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np

from keyedstate.backend import AddressBatch, EntryBatch, TableChanges, TableSnapshot
from keyedstate.ordered import RowCopy, end_of
from keyedstate.tables import ArrowEntryBatch
from keyedstate_heap_cow import Addresses, ColumnsChanges, Slots
from keyedstate_spillable.columns.change_rows import noted_since
from keyedstate_spillable.columns.rows import ColumnRows
from keyedstate_spillable.store.rows import chunks

#: Rows of a scan that are decoded together.
_READ_TOGETHER = 8192


class _RowsOfEntries:
    """The keys of the rows of entries in memory, by key group.

    Parameters
    ----------
    codec : ColumnRows
    addresses : Addresses
    slots : ndarray of int64
        The entries.
    """

    def __init__(self, codec: ColumnRows, addresses: Addresses, slots: Slots) -> None:
        self._codec = codec
        self._addresses = addresses
        groups = addresses.entries["group"][slots]
        order = np.argsort(groups, kind="stable")
        self._slots, self._groups = slots[order], groups[order]

    def of_group(self, key_group: int) -> set[bytes]:
        """Return the keys of the rows of a key group."""
        first, end = np.searchsorted(self._groups, [key_group, key_group + 1]).tolist()
        found = self._addresses
        return set(self._codec.of_entries(found.bytes, found.entries[self._slots[first:end]], found.spaces))


class TieredColumnsSnapshot(TableSnapshot[Any, Any, Any]):
    """The entries in memory, and those of the rows that are no older versions of them.

    Parameters
    ----------
    memory : TableSnapshot
    addresses : Addresses
    stored : callable
        Returns the entries in memory that may have a row, from arrays that the owner does not change.
    spilled : sequence of int
        The key groups with entries that only the disk has.
    codec : ColumnRows
        For the reading thread.
    copy : RowCopy
        Of the rows, made at the same time.
    """

    def __init__(
        self,
        memory: TableSnapshot[Any, Any, Any],
        addresses: Addresses,
        stored: Callable[[], Slots],
        spilled: Sequence[int],
        codec: ColumnRows,
        copy: RowCopy,
    ) -> None:
        self._memory = memory
        self._addresses: Addresses | None = addresses
        self._stored = stored
        self._spilled = frozenset(spilled)
        self._codec = codec
        self._copy = copy
        self._rows: _RowsOfEntries | None = None

    def batches(self, key_group: int, size: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        yield from self._memory.batches(key_group, size)
        addresses, rows_in_memory = self._addresses, self._rows
        if key_group not in self._spilled or addresses is None:
            return
        if rows_in_memory is None:
            # Not when the snapshot is taken: this looks at all entries.
            rows_in_memory = self._rows = _RowsOfEntries(self._codec, addresses, self._stored())
        in_memory = rows_in_memory.of_group(key_group)
        prefix = self._codec.group_prefix(key_group)
        for rows, data in chunks(self._copy.scan(prefix, end_of(prefix)), _READ_TOGETHER):
            found = [place for place, row in enumerate(rows) if row not in in_memory]
            for start in range(0, len(found), size):
                part = found[start : start + size]
                yield self._codec.batch([rows[place] for place in part], [data[place] for place in part])

    def release(self) -> None:
        self._memory.release()
        self._copy.release()
        self._spilled = frozenset()
        self._addresses = self._rows = None


class TieredColumnsChanges(TableChanges[Any, Any, Any]):
    """The changes that memory knows, and the entries that were changed and then spilled.

    Parameters
    ----------
    memory : ColumnsChanges
    stored : ndarray of int64
        Those of its written entries that may have a row.
    addresses : Addresses
    codec : ColumnRows
        For the reading thread.
    copy : RowCopy
        Of the rows, made at the same time.
    since : int
        The epoch after which changes count.
    on_disk : int
        How many entries that were changed after it are only on disk.
    """

    def __init__(
        self,
        memory: ColumnsChanges,
        addresses: Addresses,
        stored: Slots,
        codec: ColumnRows,
        copy: RowCopy,
        since: int,
        on_disk: int,
    ) -> None:
        self._memory = memory
        self._rows: _RowsOfEntries | None = _RowsOfEntries(codec, addresses, stored)
        self._codec = codec
        self._copy = copy
        self._since = since
        self._on_disk = on_disk

    def __len__(self) -> int:
        """Return how many addresses were written or removed."""
        return len(self._memory) + self._on_disk

    def written(self, key_group: int, size: int) -> Iterator[ArrowEntryBatch]:
        yield from self._memory.written(key_group, size)
        rows = self._rows
        if not self._on_disk or rows is None:
            return
        in_memory = rows.of_group(key_group)
        noted = dict.fromkeys(noted_since(self._copy, self._codec.group_prefix(key_group), self._since))
        candidates = [row for row in noted if row not in in_memory]
        for start in range(0, len(candidates), size):
            batch = self._changed(candidates[start : start + size])
            if batch is not None:
                yield batch

    def _changed(self, candidates: list[bytes]) -> ArrowEntryBatch | None:
        """Return those entries that exist and were changed after the epoch; None without any."""
        found = zip(candidates, self._copy.get_many(candidates), strict=True)
        exist = [(row, value) for row, value in found if value is not None]
        chosen = self._codec.changed_after([value for _, value in exist], self._since).tolist()
        exist = list(compress(exist, chosen))
        if not exist:
            return None
        return self._codec.batch([row for row, _ in exist], [value for _, value in exist])

    def removed(self, key_group: int, size: int) -> Iterator[AddressBatch[Any, Any]]:
        return self._memory.removed(key_group, size)

    def release(self) -> None:
        self._memory.release()
        self._copy.release()
        self._on_disk = 0
        self._rows = None
