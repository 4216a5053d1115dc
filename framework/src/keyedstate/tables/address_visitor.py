"""A walk over any table in small steps between which the table may change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar, cast

from keyedstate.backend import IncrementalVisitor, StateEntry, StateTable

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")


class TableVisitor(IncrementalVisitor[K, N, V]):
    """Changes the entries that it shows through their table; raises ValueError for steps below one entry."""

    def __init__(self, table: StateTable[K, N, V], batch_size: int) -> None:
        if batch_size < 1:
            raise ValueError(f"a visitor cannot walk in steps of {batch_size} entries; give at least 1")
        self._table = table
        self._batch_size = batch_size

    def update(self, entry: StateEntry[K, N, V], value: V) -> None:
        self._table.put(entry.key_group, entry.key, entry.namespace, value)

    def remove(self, entry: StateEntry[K, N, V]) -> None:
        self._table.remove(entry.key_group, entry.key, entry.namespace)


class AddressVisitor(TableVisitor[K, N, V]):
    """Walks through any table: it copies the addresses of a key group when it reaches the key group.

    It looks each entry up again when it shows it, since the entry may have been removed or changed.
    """

    def __init__(self, table: StateTable[K, N, V], batch_size: int) -> None:
        super().__init__(table, batch_size)
        self._walk = self._entries()

    def _entries(self) -> Iterator[StateEntry[K, N, V]]:
        for key_group in self._table.key_groups:
            snapshot = self._table.snapshot()
            addresses = [
                address
                for batch in snapshot.batches(key_group, self._batch_size)
                for address in zip(batch.keys, batch.namespaces, strict=True)
            ]
            snapshot.release()
            for key, namespace in addresses:
                if self._table.contains(key_group, key, namespace):
                    value = cast("V", self._table.get(key_group, key, namespace))
                    yield StateEntry(key_group, key, namespace, value)

    def next_entries(self) -> Sequence[StateEntry[K, N, V]]:
        return list(islice(self._walk, self._batch_size))
