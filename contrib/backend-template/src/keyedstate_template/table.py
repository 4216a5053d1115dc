"""The state table: the entries of one state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from keyedstate.backend import (
    EntryBatch,
    ExpiryCleanup,
    IncrementalVisitor,
    StateMeta,
    StateTable,
    TableSnapshot,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.tables import AddressVisitor

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")


class TemplateTable(StateTable[K, N, V], ExpiryCleanup):
    """One dict per key group, from (namespace, key) to value.

    Parameters
    ----------
    meta : StateMeta
    key_groups : KeyGroupRange
        The key groups that the table owns; it gets no others.
    visitor_step : int
        Most entries that a visitor shows in one step.
    """

    def __init__(self, meta: StateMeta, key_groups: KeyGroupRange, visitor_step: int) -> None:
        self._meta = meta
        self._key_groups = key_groups
        self._visitor_step = visitor_step
        self._groups: dict[int, dict[tuple[N, K], V]] = {key_group: {} for key_group in key_groups}

    @property
    def meta(self) -> StateMeta:
        return self._meta

    def replace_meta(self, meta: StateMeta) -> None:
        """Adopt the running program's serializers; a table of bytes would have to migrate them here."""
        self._meta = meta

    def drop_expired(self) -> None:
        """Drop expired entries, and expired parts of lists and maps, in one pass over the table."""
        if self._meta.expiry is None:
            return
        for entries in self._groups.values():
            for address, stored in list(entries.items()):
                living = self._meta.expiry.live(stored)
                if living is None:
                    del entries[address]
                else:
                    entries[address] = living

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    def get(self, key_group: int, key: K, namespace: N) -> V | None:
        return self._groups[key_group].get((namespace, key))

    def contains(self, key_group: int, key: K, namespace: N) -> bool:
        return (namespace, key) in self._groups[key_group]

    def put(self, key_group: int, key: K, namespace: N, value: V) -> None:
        self._groups[key_group][namespace, key] = value

    def remove(self, key_group: int, key: K, namespace: N) -> None:
        self._groups[key_group].pop((namespace, key), None)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def keys_and_namespaces(self) -> Iterator[tuple[K, N]]:
        for entries in self._groups.values():
            for namespace, key in entries:
                yield key, namespace

    def visitor(self, batch_size: int) -> IncrementalVisitor[K, N, V]:
        return AddressVisitor(self, min(batch_size, self._visitor_step))

    def snapshot(self) -> TableSnapshot[K, N, V]:
        """Return a view; as asynchronous snapshots are not claimed, it is read before the next change."""
        return _View(self)

    def entries(self, key_group: int) -> dict[tuple[N, K], V]:
        """Return the live dict of one key group, for the classes below."""
        return self._groups[key_group]


class _View(TableSnapshot[K, N, V]):
    def __init__(self, table: TemplateTable[K, N, V]) -> None:
        self._table = table

    def batches(self, key_group: int, size: int) -> Iterator[EntryBatch[K, N, V]]:
        entries = iter(self._table.entries(key_group).items())
        while batch := list(islice(entries, size)):
            namespaces = [namespace for (namespace, _), _ in batch]
            keys = [key for (_, key), _ in batch]
            yield EntryBatch(namespaces, keys, [value for _, value in batch])

    def release(self) -> None:
        """Do nothing: a view has copied nothing."""
