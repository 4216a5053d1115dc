"""The state table of nested dicts: per key group, namespace to key to value (Flink's ``NestedStateMap``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from keyedstate.backend import (
    EntryBatch,
    IncrementalVisitor,
    StateMeta,
    StateTable,
    TableSnapshot,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.tables import AddressVisitor
from keyedstate_nested_map.snapshot import LiveEntries

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")

_ABSENT: Final = object()


class NestedMapTable(StateTable[K, N, V]):
    """A table of plain dicts: the objects that were put are the objects that are read.

    Its snapshot is a view and no copy, so the owner writes it before the next change.
    """

    def __init__(self, meta: StateMeta, key_groups: KeyGroupRange) -> None:
        self._meta = meta
        self._key_groups = key_groups
        self._first = key_groups.start
        # One dict per key group, at index key group - first.  No dict inside them is ever empty: the last key
        # of a namespace (a window) takes the namespace with it, or closed windows would pile up.
        self._groups: list[dict[N, dict[K, V]]] = [{} for _ in key_groups]

    def _group(self, key_group: int) -> dict[N, dict[K, V]]:
        return self._groups[key_group - self._first]

    @property
    def meta(self) -> StateMeta:
        return self._meta

    def replace_meta(self, meta: StateMeta) -> None:
        self._meta = meta

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    def get(self, key_group: int, key: K, namespace: N) -> V | None:
        """Return the very object that was put, or None."""
        entries = self._groups[key_group - self._first].get(namespace)
        return None if entries is None else entries.get(key)

    def contains(self, key_group: int, key: K, namespace: N) -> bool:
        return key in self._groups[key_group - self._first].get(namespace, ())

    def put(self, key_group: int, key: K, namespace: N, value: V) -> None:
        group = self._groups[key_group - self._first]
        entries = group.get(namespace)
        if entries is None:
            group[namespace] = {key: value}
        else:
            entries[key] = value

    def remove(self, key_group: int, key: K, namespace: N) -> None:
        self.remove_and_get_old(key_group, key, namespace)

    def remove_and_get_old(self, key_group: int, key: K, namespace: N) -> V | None:
        group = self._groups[key_group - self._first]
        entries = group.get(namespace)
        if entries is None:
            return None
        old = entries.pop(key, None)
        if not entries:
            del group[namespace]
        return old

    def __len__(self) -> int:
        return sum(len(entries) for group in self._groups for entries in group.values())

    def keys(self, namespace: N) -> Iterator[K]:
        for group in self._groups:
            yield from group.get(namespace, ())

    def keys_and_namespaces(self) -> Iterator[tuple[K, N]]:
        for group in self._groups:
            for namespace, entries in group.items():
                for key in entries:
                    yield key, namespace

    def visitor(self, batch_size: int) -> IncrementalVisitor[K, N, V]:
        return AddressVisitor(self, batch_size)

    def snapshot(self) -> TableSnapshot[K, N, V]:
        """Return a view of the live entries."""
        return LiveEntries(self._group)

    def restore_entries(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        group = self._groups[key_group - self._first]
        entries: dict[K, V] = {}
        current: object = _ABSENT
        # Entries of one namespace are consecutive, so the inner dict is looked up once for all of them.
        for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
            if namespace != current:
                entries, current = group.setdefault(namespace, {}), namespace
            entries[key] = value

    # Bulk methods look the namespace up once per key group, and not once per key.

    def get_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> list[V | None]:
        column = list(key_groups)
        nothing: dict[K, V] = {}
        found = {number: self._group(number).get(namespace, nothing) for number in set(column)}
        return [entries.get(key) for entries, key in zip(map(found.__getitem__, column), keys, strict=True)]

    def get_many_for_update(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N
    ) -> list[V | None]:
        return self.get_many(key_groups, keys, namespace)

    def put_many(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N, values: Iterable[V]
    ) -> None:
        column = list(key_groups)
        found = {number: self._group(number).setdefault(namespace, {}) for number in set(column)}
        try:
            for entries, key, value in zip(map(found.__getitem__, column), keys, values, strict=True):
                entries[key] = value
        except BaseException:
            self._drop_if_empty(found, namespace)
            raise

    def remove_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> None:
        column = list(key_groups)
        found = {number: self._group(number).get(namespace, {}) for number in set(column)}
        try:
            for entries, key in zip(map(found.__getitem__, column), keys, strict=True):
                entries.pop(key, None)
        finally:
            self._drop_if_empty(found, namespace)

    def _drop_if_empty(self, found: Mapping[int, dict[K, V]], namespace: N) -> None:
        """Remove the namespace from the key groups in which a bulk call has left it without a key."""
        for number, entries in found.items():
            if not entries:
                self._group(number).pop(namespace, None)
