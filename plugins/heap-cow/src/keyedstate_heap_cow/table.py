"""The state table of copy-on-write maps: one map per key group (Flink's ``CopyOnWriteStateTable``)."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from keyedstate.backend import (
    AddressBatch,
    ChangeTracking,
    EntryBatch,
    IncrementalVisitor,
    StateEntry,
    StateMeta,
    StateTable,
    TableChanges,
    TableSnapshot,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.tables import GatheredChanges, GroupChanges
from keyedstate_heap_cow.compiled_form import map_module
from keyedstate_heap_cow.snapshot import MapsSnapshot

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")
U = TypeVar("U")


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Switch the cycle collector off while many objects are made: it would visit all of them repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class CopyOnWriteTable(StateTable[K, N, V], ChangeTracking[K, N, V]):
    """A table of copy-on-write maps: a snapshot copies page references, and the owner continues.

    A backend with two tiers of storage extends it (`CopyOnWriteStateMap.use_tier`).

    Parameters
    ----------
    meta : StateMeta
    key_groups : KeyGroupRange
    compiled : bool, optional
        Use the compiled map where there is one.

    Attributes
    ----------
    maps : list of CopyOnWriteStateMap
        One map per key group.
    module : module
        The form of the map, with bulk operations over several maps.
    """

    def __init__(self, meta: StateMeta, key_groups: KeyGroupRange, *, compiled: bool = True) -> None:
        self._meta = meta
        self._key_groups = key_groups
        self._first = key_groups.start
        self.module: Any = map_module(compiled=compiled)
        serializer = meta.value_serializer
        #: Copies a value of a live snapshot before the owner may change it; immutable values are shared.
        #: Never changes, since values stay what their first serializer made.
        copy = None if serializer.immutable else serializer.copy
        self._mutable = copy is not None
        with _without_collections():
            self.maps: list[Any] = [self.module.CopyOnWriteStateMap(copy) for _ in key_groups]

    @property
    def meta(self) -> StateMeta:
        return self._meta

    def replace_meta(self, meta: StateMeta) -> None:
        self._meta = meta

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    def get(self, key_group: int, key: K, namespace: N) -> V | None:
        """Return the object that was put, or its copy where a live snapshot shows it and it is mutable."""
        value: V | None = self.maps[key_group - self._first].get(key, namespace)
        return value

    def get_for_update(self, key_group: int, key: K, namespace: N) -> V | None:
        """Return the object that was put, or its copy, for the caller to change."""
        value: V | None = self.maps[key_group - self._first].get_for_update(key, namespace)
        return value

    def contains(self, key_group: int, key: K, namespace: N) -> bool:
        found: bool = self.maps[key_group - self._first].contains(key, namespace)
        return found

    def put(self, key_group: int, key: K, namespace: N, value: V) -> None:
        self.maps[key_group - self._first].put(key, namespace, value)

    def put_and_get_old(self, key_group: int, key: K, namespace: N, value: V) -> V | None:
        old: V | None = self.maps[key_group - self._first].put_and_get_old(key, namespace, value)
        return old

    def remove(self, key_group: int, key: K, namespace: N) -> None:
        self.maps[key_group - self._first].remove(key, namespace)

    def remove_and_get_old(self, key_group: int, key: K, namespace: N) -> V | None:
        old: V | None = self.maps[key_group - self._first].remove_and_get_old(key, namespace)
        return old

    def transform(
        self, key_group: int, key: K, namespace: N, value: U, function: Callable[[V | None, U], V]
    ) -> None:
        self.maps[key_group - self._first].transform(key, namespace, value, function)

    def __len__(self) -> int:
        return sum(map(len, self.maps))

    def keys_and_namespaces(self) -> Iterator[tuple[K, N]]:
        for group in self.maps:
            for key, namespace, _ in group:
                yield key, namespace

    def visitor(self, batch_size: int) -> IncrementalVisitor[K, N, V]:
        """Return a visitor over one map after the other.

        Raises
        ------
        ValueError
            If `batch_size` is below 1.
        """
        return _Visitor(self, self.maps, batch_size)

    def snapshot(self) -> TableSnapshot[K, N, V]:
        """Take a snapshot of every map: a copy of page references, whatever the number of entries."""
        return MapsSnapshot(self.maps, self._first)

    def begin_epoch(self, epoch: int) -> None:
        for group in self.maps:
            group.begin_epoch(epoch)

    def changes_since(self, epoch: int) -> TableChanges[K, N, V]:
        """Gather the changes of each map, and keep mutable values as they are until the release."""
        changes: dict[int, GroupChanges[K, N, V]] = {}
        held: list[tuple[Any, int]] = []

        def release() -> None:
            for group, version in held:
                group.release_version(version)

        try:
            for number, group in enumerate(self.maps, self._first):
                written_namespaces, written_keys, values, namespaces, keys, *_ = group.changes_since(epoch)
                if values or keys:
                    changes[number] = GroupChanges(
                        EntryBatch(written_namespaces, written_keys, values), AddressBatch(namespaces, keys)
                    )
                if values and self._mutable:
                    held.append((group, group.hold()))
        except BaseException:
            release()
            raise
        return GatheredChanges(changes, release)

    def forget_changes(self, epoch: int) -> None:
        for group in self.maps:
            group.forget_changes(epoch)

    def restore_entries(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        self.maps[key_group - self._first].restore_entries(batch.namespaces, batch.keys, batch.values)

    def get_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> list[V | None]:
        found: list[V | None] = self.module.get_many(self.maps, self._first, key_groups, keys, namespace)
        return found

    def get_many_for_update(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N
    ) -> list[V | None]:
        found: list[V | None] = self.module.get_many_for_update(
            self.maps, self._first, key_groups, keys, namespace
        )
        return found

    def put_many(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N, values: Iterable[V]
    ) -> None:
        self.module.put_many(self.maps, self._first, key_groups, keys, namespace, values)

    def remove_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> None:
        self.module.remove_many(self.maps, self._first, key_groups, keys, namespace)


class _Visitor(IncrementalVisitor[K, N, V]):
    def __init__(self, table: CopyOnWriteTable[K, N, V], maps: Sequence[Any], batch_size: int) -> None:
        if batch_size < 1:
            raise ValueError(f"a visitor shows at least 1 entry a step, not {batch_size}")
        self._table = table
        self._walks = (
            (group, maps[group - table.key_groups.start].visitor(batch_size)) for group in table.key_groups
        )
        self._group, self._walk = next(self._walks)

    def next_entries(self) -> Sequence[StateEntry[K, N, V]]:
        while True:
            while self._walk.has_next():
                shown = self._walk.next_batch()
                if shown:  # a step through empty buckets shows nothing
                    return [StateEntry(self._group, key, namespace, value) for key, namespace, value in shown]
            following = next(self._walks, None)
            if following is None:
                return ()
            self._group, self._walk = following

    def update(self, entry: StateEntry[K, N, V], value: V) -> None:
        self._table.put(entry.key_group, entry.key, entry.namespace, value)

    def remove(self, entry: StateEntry[K, N, V]) -> None:
        self._table.remove(entry.key_group, entry.key, entry.namespace)
