"""The snapshot and the changes of a table whose entries are in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keyedstate.backend import AddressBatch, EntryBatch, TableChanges, TableSnapshot
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import RowCopy, end_of
from keyedstate_heap_cow import MapsSnapshot
from keyedstate_spillable.objects.disk import EntryRows, batch_of


class TieredSnapshot(TableSnapshot[Any, Any, Any]):
    """The entries in memory, and those of the rows that are no older versions of them.

    Parameters
    ----------
    memory : MapsSnapshot
    spilled : sequence of int
        The key groups with entries that only the disk has.
    rows : EntryRows
        For the reading thread.
    copy : RowCopy or None
        Of the rows, made at the same time; None where nothing is spilled.
    """

    def __init__(
        self,
        memory: MapsSnapshot[Any, Any, Any],
        spilled: Sequence[int],
        rows: EntryRows,
        copy: RowCopy | None,
    ) -> None:
        self._memory = memory
        self._spilled = frozenset(spilled)
        self._rows = rows
        self._copy = copy

    def batches(self, key_group: int, size: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        if key_group not in self._spilled:
            yield from self._memory.batches(key_group, size)
            return
        assert self._copy is not None, "key groups are spilled"
        layout = self._rows.layout
        in_memory: set[bytes] = set()
        for batch in self._memory.batches(key_group, size):
            in_memory.update(layout.each_address([key_group] * len(batch), batch.keys, batch.namespaces))
            yield batch
        prefix = layout.group_prefix(key_group)
        for entries in self._rows.scan(self._copy.scan(prefix, end_of(prefix))):
            found = [entry for entry in entries if entry.row not in in_memory]
            for start in range(0, len(found), size):
                yield batch_of(found[start : start + size])

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        spilled = {key_group for key_group in self._spilled if key_group in key_groups}
        return sorted(spilled.union(self._memory.occupied(key_groups)))

    def release(self) -> None:
        self._memory.release()
        if self._copy is not None:
            self._copy.release()


@dataclass(frozen=True)
class MemoryChanges:
    """What a map knows of the changes of a key group.

    Attributes
    ----------
    written : EntryBatch
        Entries that were written and are in memory.
    missing : AddressBatch
        Changed addresses whose entries are not in memory: removed ones, and spilled ones.
    existed : int
        How many of `missing`, the first ones, had an entry when the epoch ended after which changes count.
    """

    written: EntryBatch[Any, Any, Any]
    missing: AddressBatch[Any, Any]
    existed: int


class TieredChanges(TableChanges[Any, Any, Any]):
    """The changes that maps know, completed from a copy of the rows by the thread that reads them.

    Parameters
    ----------
    groups : mapping
        What the maps know, by key group.
    rows : EntryRows
        For the reading thread.
    copy : RowCopy
        Of the rows, made at the same time.
    release : callable
        Lets the owner change the values in memory again.
    """

    def __init__(
        self, groups: Mapping[int, MemoryChanges], rows: EntryRows, copy: RowCopy, release: Callable[[], None]
    ) -> None:
        self._groups = dict(groups)
        self._rows = rows
        self._copy = copy
        self._release = release
        #: By key group the rows of missing addresses that are on disk, and the addresses that were removed.
        self._found: dict[int, tuple[list[bytes], AddressBatch[Any, Any]]] = {}

    def _missing(self, key_group: int) -> tuple[list[bytes], AddressBatch[Any, Any]]:
        """Look up once which missing addresses of a key group are on disk."""
        if key_group not in self._found:
            group = self._groups[key_group]
            namespaces, keys = group.missing.namespaces, group.missing.keys
            rows = self._rows.layout.each_address([key_group] * len(keys), keys, namespaces)
            exist = [data is not None for data in self._copy.get_many(rows)]
            removed = [i for i in range(group.existed) if not exist[i]]
            self._found[key_group] = (
                [row for row, found in zip(rows, exist, strict=True) if found],
                AddressBatch([namespaces[i] for i in removed], [keys[i] for i in removed]),
            )
        return self._found[key_group]

    def __len__(self) -> int:
        """Return how many addresses were written or removed; looks up those that are not in memory."""
        found = map(self._missing, self._groups)
        on_disk = sum(len(rows) + len(removed) for rows, removed in found)
        return on_disk + sum(len(group.written) for group in self._groups.values())

    def written(self, key_group: int, size: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        if key_group not in self._groups:
            return
        batch = self._groups[key_group].written
        for start in range(0, len(batch), size):
            part = slice(start, start + size)
            yield EntryBatch(batch.namespaces[part], batch.keys[part], batch.values[part])
        rows, _ = self._missing(key_group)
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            data: Any = self._copy.get_many(some)
            yield batch_of(self._rows.entries(some, data))

    def removed(self, key_group: int, size: int) -> Iterator[AddressBatch[Any, Any]]:
        if key_group not in self._groups:
            return
        _, batch = self._missing(key_group)
        for start in range(0, len(batch), size):
            part = slice(start, start + size)
            yield AddressBatch(batch.namespaces[part], batch.keys[part])

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        return [key_group for key_group in sorted(self._groups) if key_group in key_groups]

    def release(self) -> None:
        self._groups, self._found = {}, {}
        self._copy.release()
        release, self._release = self._release, lambda: None
        release()
