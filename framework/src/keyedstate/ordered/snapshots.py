"""What reads a table while its owner changes it: the snapshot, the changes of epochs, and the visitor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from keyedstate.backend.changes import AddressBatch, TableChanges
from keyedstate.backend.table import AnyStateTable, EntryBatch, StateEntry, TableSnapshot
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered.codecs import Entry, EntryCodec, Row
from keyedstate.ordered.row_keys import RowLayout
from keyedstate.ordered.store import RowCopy, end_of
from keyedstate.tables.address_visitor import TableVisitor
from keyedstate.types.contract.transposing import transposed


class CopiedEntries(TableSnapshot[Any, Any, Any]):
    """The entries of a table in a copy of its rows, read with a codec for the reading thread."""

    def __init__(self, codec: EntryCodec, copy: RowCopy) -> None:
        self._codec = codec
        self._rows = CopiedRows(codec.layout, copy)

    def batches(self, key_group: int, size: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        entries = self._codec.entries(self._rows.of(key_group))
        while found := list(islice(entries, size)):
            _, keys, namespaces, values = transposed(found, 4)
            yield EntryBatch(namespaces, keys, values)

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        return self._rows.occupied(key_groups)

    def release(self) -> None:
        self._rows.release()


class CopiedRows:
    """The rows of a copy by key group, in one scan where key groups are read as they ascend.

    A scan for each key group, and another one to find the next, would cost more than the rows of a small one.
    """

    def __init__(self, layout: RowLayout, copy: RowCopy) -> None:
        self._layout = layout
        self._copy = copy
        self._scan: Iterator[Row] = iter(())
        #: The row at which the scan is, None at its end; it has not passed another one from `_start` on.
        self._row: Row | None = None
        self._start: bytes | None = None
        self._released = False

    def of(self, key_group: int) -> Iterator[Row]:
        """Yield the rows of a key group; several of the iterators may be open."""
        start = self._layout.group_prefix(key_group)
        end = end_of(start)
        row = self._seek(start)
        while row is not None and (end is None or row[0] < end):
            self._start = end
            yield row
            if self._row is row and self._start == end:
                row = self._row = self._next()
            else:
                row = self._seek(row[0] + b"\0")

    def occupied(self, key_groups: KeyGroupRange) -> Iterator[int]:
        """Yield the key groups that have rows; between two of them, the rows of the first may be read."""
        following = key_groups.start
        while following in key_groups:
            row = self._seek(self._layout.group_prefix(following))
            if row is None or (found := self._layout.group_of(row[0])) not in key_groups:
                return
            yield found
            following = found + 1

    def _seek(self, start: bytes) -> Row | None:
        """Return the first row from a key on, and leave the scan at it."""
        if self._start is None or start < self._start or (self._row is not None and self._row[0] < start):
            self._scan = iter(self._copy.scan(start, None))
            self._row = self._next()
        self._start = start
        return self._row

    def _next(self) -> Row | None:
        row = next(self._scan, None)
        if self._released:
            raise ValueError("the copy was released")
        return row

    def release(self) -> None:
        """Release the copy; what another thread still reads of it raises `ValueError`."""
        self._released = True
        self._scan, self._row, self._start = iter(()), None, None
        self._copy.release()


class CopiedChanges(TableChanges[Any, Any, Any]):
    """The addresses that epochs have written and removed; values are read from a copy on demand."""

    def __init__(self, codec: EntryCodec, copy: RowCopy, written: list[bytes], removed: list[bytes]) -> None:
        self._codec = codec
        self._copy = copy
        self._count = len(written) + len(removed)
        self._written = self._by_group(written)
        self._removed = self._by_group(removed)

    def _by_group(self, addresses: list[bytes]) -> dict[int, list[bytes]]:
        groups: dict[int, list[bytes]] = {}
        for address in addresses:
            groups.setdefault(self._codec.layout.group_of(address), []).append(address)
        return groups

    def __len__(self) -> int:
        return self._count

    def written(self, key_group: int, size: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        for part in _parts(self._written.get(key_group, []), size):
            keys, namespaces = self._codec.layout.parse_many(part)
            yield EntryBatch(namespaces, keys, self._codec.read_many(self._copy, part))

    def removed(self, key_group: int, size: int) -> Iterator[AddressBatch[Any, Any]]:
        for part in _parts(self._removed.get(key_group, []), size):
            keys, namespaces = self._codec.layout.parse_many(part)
            yield AddressBatch(namespaces, keys)

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        return [group for group in sorted({*self._written, *self._removed}) if group in key_groups]

    def release(self) -> None:
        self._written, self._removed = {}, {}
        self._copy.release()


def _parts(addresses: list[bytes], size: int) -> Iterator[list[bytes]]:
    for start in range(0, len(addresses), size):
        yield addresses[start : start + size]


class OrderedVisitor(TableVisitor[Any, Any, Any]):
    """Walks in the order of rows, so that between two steps it keeps a position only.

    `entries` returns the entries from a row's key on, `group_of` the key group of an address.
    """

    def __init__(
        self,
        table: AnyStateTable,
        entries: Callable[[bytes], Iterator[Entry]],
        group_of: Callable[[bytes], int],
        batch_size: int,
    ) -> None:
        super().__init__(table, batch_size)
        self._entries = entries
        self._group_of = group_of
        self._next: bytes | None = b""

    def next_entries(self) -> Sequence[StateEntry[Any, Any, Any]]:
        if self._next is None:
            return []
        found = list(islice(self._entries(self._next), self._batch_size))
        self._next = end_of(found[-1][0]) if found else None
        return [
            StateEntry(self._group_of(address), key, namespace, value)
            for address, key, namespace, value in found
        ]
