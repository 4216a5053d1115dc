"""The table of single values with a cache of objects: an entry that is used again costs no bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import compress, repeat
from operator import not_
from typing import Any, TypeVar

import numpy as np

from keyedstate.backend.changes import TableChanges
from keyedstate.backend.meta import StateMeta
from keyedstate.backend.table import AnyStateTable, EntryBatch, StateTable, TableSnapshot
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered.caching.object_cache import (
    ABSENT_ENTRY,
    NONE_VALUE,
    CacheKey,
    EntryCache,
    Mark,
    ObjectMemory,
)
from keyedstate.ordered.caching.snapshots import CachedChanges, CachedEntries, addresses_of
from keyedstate.ordered.codecs import Entry
from keyedstate.ordered.table import ValueTable
from keyedstate.ordered.tracked_addresses import PRESENT, TrackedKeys
from keyedstate.ordered.write_buffer import WriteBuffer
from keyedstate.types.scalars.namespaces import VoidSerializer
from keyedstate.types.weights import SLOT_BYTES, TUPLE_BYTES, Weight, weight_of

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")
U = TypeVar("U")


class CachedValueTable(ValueTable[K, N, V]):
    """Value, reducing and aggregating state whose values are immutable; values and keys have a weight.

    Rows are older than the dirty entries of the cache. What reads rows writes these first, or puts them over
    the rows.
    """

    def __init__(
        self,
        meta: StateMeta,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        buffer: WriteBuffer,
        memory: ObjectMemory,
    ) -> None:
        self.tracked_keys = TrackedKeys()
        super().__init__(meta, key_groups, max_parallelism, buffer)
        self.cache = EntryCache(memory, *_weights_of(meta), self._write_rows)

    def adopt(self, meta: StateMeta) -> None:
        super().adopt(meta)
        #: Whether entries are cached by key; otherwise by namespace and key.
        self._by_key = isinstance(meta.namespace_serializer, VoidSerializer)

    def replace_meta(self, meta: StateMeta) -> None:
        with self._emptied_cache():
            super().replace_meta(meta)

    def rewrite(
        self,
        meta: StateMeta,
        of_keys: Callable[[Any], Any] | None,
        of_namespaces: Callable[[Any], Any] | None,
        of_values: Callable[[Any], Any] | None,
    ) -> None:
        with self._emptied_cache():
            super().rewrite(meta, of_keys, of_namespaces, of_values)

    def trim(self, since: float) -> None:
        self.cache.trim(since)
        super().trim(since)

    @contextmanager
    def _emptied_cache(self) -> Iterator[None]:
        """Empty the cache, and let it weigh the types that the table has afterwards."""
        self.write_back()
        self.cache.clear()
        yield
        if weight_of(self._meta.value_serializer) is not None:
            self.cache.adopt(*_weights_of(self._meta))

    def successor(self) -> AnyStateTable:
        """Return a table without a cache where the type of values has become one that must not be cached."""
        if weight_of(self._meta.value_serializer) is not None:
            return self
        table: ValueTable[K, N, V] = ValueTable(
            self._meta, self._key_groups, self._max_parallelism, self.buffer
        )
        table.set_count(self.tracked_keys.count)
        return table

    def _load(self, key_group: int, key: K, namespace: N, cached: CacheKey) -> Any:
        """Return what `EntryCache` has for a key that is not among the younger entries."""
        found = self.cache.find(cached)
        if found is None:
            data = self.buffer.get(self._address(key_group, key, namespace))
            found = ABSENT_ENTRY if data is None else self._from_bytes(data) if data else NONE_VALUE
            self.cache.add(cached, found)
        return found

    def _write_rows(self, keys: list[CacheKey], key_groups: list[int], values: list[Any]) -> None:
        """Write the rows of entries that leave the cache."""
        rows = addresses_of(self.codec, self._by_key, key_groups, keys)
        if Mark in set(map(type, values)):
            absent = [value is ABSENT_ENTRY for value in values]
            self.buffer.put_many({row: None for row, gone in zip(rows, absent, strict=True) if gone})
            rows = [row for row, gone in zip(rows, absent, strict=True) if not gone]
            values = [None if value is NONE_VALUE else value for value in values if value is not ABSENT_ENTRY]
        self.buffer.put_columns(rows, self.codec.encode_many(values))

    # -- one entry ------------------------------------------------------------------------------------------

    def get(self, key_group: int, key: K, namespace: N) -> V | None:
        cached: Any = key if self._by_key else (namespace, key)
        found = self.cache.young.get(cached)
        if found is None:
            found = self._load(key_group, key, namespace, cached)
        return None if found.__class__ is Mark else found

    def contains(self, key_group: int, key: K, namespace: N) -> bool:
        cached: Any = key if self._by_key else (namespace, key)
        found = self.cache.young.get(cached)
        if found is None:
            found = self._load(key_group, key, namespace, cached)
        return found is not ABSENT_ENTRY

    def put(self, key_group: int, key: K, namespace: N, value: V) -> None:
        # All in one place, since it is called for each row of an input.
        cached: Any = key if self._by_key else (namespace, key)
        new: Any = NONE_VALUE if value is None else value
        running = self.tracked_keys.running
        if running is None or not running.get(cached, 0) & PRESENT:
            self._note(key_group, key, namespace, cached, True)
        cache = self.cache
        if cache.weighs:
            cache.weigh(new)
        cache.young[cached] = new
        cache.dirty[cached] = key_group
        if len(cache.young) > cache.room:
            cache.fit()

    def remove(self, key_group: int, key: K, namespace: N) -> None:
        cached: Any = key if self._by_key else (namespace, key)
        if self._note(key_group, key, namespace, cached, False):
            cache = self.cache
            cache.young[cached] = ABSENT_ENTRY
            cache.dirty[cached] = key_group
            if cached in cache.rowless:
                cache.removed((cached,))
            if len(cache.young) > cache.room:
                cache.fit()

    def _note(self, key_group: int, key: K, namespace: N, cached: CacheKey, present: bool) -> bool:
        """Note a key before it is written or removed; return False where there is nothing to remove."""
        cache, tracked = self.cache, self.tracked_keys
        old = cache.young.get(cached)
        if old is None:
            # Without epochs, knowing what there was is not worth a look-up.
            old = (
                cache.find(cached)
                if tracked.running is None
                else self._load(key_group, key, namespace, cached)
            )
            if old is None:
                tracked.count = None
                return True
        existed = old is not ABSENT_ENTRY
        if tracked.count is not None and existed is not present:
            tracked.count += 1 if present else -1 if existed else 0
        if tracked.running is not None and (existed or present):
            tracked.note(cached, key_group, existed, present)
        if present and not existed and cached not in cache.dirty:
            cache.rowless.add(cached)
        return existed

    # These encode no address, so the defaults are the fastest.
    put_and_get_old = StateTable.put_and_get_old
    remove_and_get_old = StateTable.remove_and_get_old
    transform = StateTable.transform

    # -- several entries ------------------------------------------------------------------------------------

    def get_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> list[V | None]:
        cached = self._cached(keys, namespace)
        found = self._find_many(key_groups, cached)
        if Mark in set(map(type, found)):
            return [None if value.__class__ is Mark else value for value in found]
        return found

    def _cached(self, keys: Iterable[K], namespace: N) -> list[CacheKey]:
        if not self._by_key:
            return list(zip(repeat(namespace), keys))
        return keys if type(keys) is list else list(keys)

    def _find_many(self, key_groups: Iterable[int], cached: list[CacheKey]) -> list[Any]:
        """Return what is cached of several keys; those that are not cached are read at once."""
        found = self.cache.find_many(cached)
        groups = key_groups if type(key_groups) is list else list(key_groups)
        _require_equal(groups, cached)
        if type(None) in set(map(type, found)):
            missing = [i for i, value in enumerate(found) if value is None]
            keys = [cached[i] for i in missing]
            rows = addresses_of(self.codec, self._by_key, [groups[i] for i in missing], keys)
            data = self.buffer.get_many(rows)
            values = self.codec.decode_many(data)
            if type(None) in set(map(type, values)):
                values = [
                    value if one else ABSENT_ENTRY if one is None else NONE_VALUE
                    for value, one in zip(values, data, strict=True)
                ]
            for i, value in zip(missing, values, strict=True):
                found[i] = value
            self.cache.add_many(keys, values)
        return found

    def put_many(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N, values: Iterable[V]
    ) -> None:
        new: list[Any] = list(values)
        cached = self._cached(keys, namespace)
        if len(new) != len(cached):
            raise ValueError(f"{len(cached)} keys and {len(new)} values; give one of each for every entry")
        if type(None) in set(map(type, new)):
            new = [NONE_VALUE if value is None else value for value in new]
        self._set_many(list(key_groups), cached, new, True)

    def remove_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> None:
        cached = self._cached(keys, namespace)
        self._set_many(list(key_groups), cached, [ABSENT_ENTRY] * len(cached), False)

    def _set_many(self, groups: list[int], cached: list[CacheKey], new: list[Any], present: bool) -> None:
        cache, tracked = self.cache, self.tracked_keys
        if tracked.running is not None:
            old = self._find_many(groups, cached)
        else:
            _require_equal(groups, cached)
            old = cache.find_many(cached)
        has_marks = Mark in set(map(type, old))
        if tracked.running is None:
            self._count_known(cached, old, present)
        elif present and not has_marks:
            tracked.note_written(cached, groups)
        else:
            tracked.note_many(cached, groups, [value is not ABSENT_ENTRY for value in old], present)
        if has_marks:
            absent = [value is ABSENT_ENTRY for value in old]
            if present:
                cache.rowless.update(key for key in compress(cached, absent) if key not in cache.dirty)
            else:
                there = list(map(not_, absent))
                cached, groups, new = (list(compress(part, there)) for part in (cached, groups, new))
        if cache.weighs:
            cache.weigh_many(new)
        cache.young.update(zip(cached, new, strict=True))
        cache.dirty.update(zip(cached, groups, strict=True))
        if not present:
            cache.removed(cached)
        if len(cache.young) > cache.room:
            cache.fit()

    def _count_known(self, cached: list[CacheKey], old: list[Any], present: bool) -> None:
        """Correct the number of entries where the cache knows which keys have one; else it is unknown."""
        tracked = self.tracked_keys
        if tracked.count is None or not cached:
            return
        if type(None) in set(map(type, old)):
            tracked.count = None
        else:
            tracked.count_changed(cached, [value is not ABSENT_ENTRY for value in old], present)

    # -- all entries ----------------------------------------------------------------------------------------

    def write_back(self) -> None:
        self.cache.write_back()
        self.buffer.flush()

    def set_count(self, entries: int | None) -> None:
        self.tracked_keys.count = entries

    def __len__(self) -> int:
        if self.tracked_keys.count is None:
            self.cache.write_back()
            self.tracked_keys.count = self._counted()
        return self.tracked_keys.count

    def _addresses(self) -> Iterator[tuple[K, N]]:
        self.cache.write_back()
        return super()._addresses()

    def _entries_from(self, row: bytes) -> Iterator[Entry]:
        self.cache.write_back()
        return super()._entries_from(row)

    def _swept_from(self, row: bytes) -> Iterator[Entry]:
        """Yield the entries of a pass, but those that were changed since it began."""
        if not row:
            self.cache.write_back()
            return super()._swept_from(row)
        dirty, by_key = self.cache.dirty, self._by_key
        entries = super()._swept_from(row)
        return (entry for entry in entries if (entry[1] if by_key else (entry[2], entry[1])) not in dirty)

    # -- snapshots, restores, changes -----------------------------------------------------------------------

    def snapshot(self) -> TableSnapshot[K, N, V]:
        dirty = self.cache.dirty
        values = self.cache.peek_many(list(dirty))
        if Mark in set(map(type, values)):
            # Removed entries would stay dirty, and be in each snapshot, until they leave the cache.
            removed = [key for key, value in zip(dirty, values, strict=True) if value is ABSENT_ENTRY]
            self.cache.write_some(removed)
            values = self.cache.peek_many(list(dirty))
        cached = list(dirty), list(dirty.values()), values
        return CachedEntries(self._reading_codec(), self._by_key, self.buffer.copy(), *cached)

    def restore_entries(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        cached: list[Any] = (
            list(batch.keys) if self._by_key else list(zip(batch.namespaces, batch.keys, strict=True))
        )
        self.cache.forget(cached)
        if self.tracked_keys.running is not None:
            groups = [key_group] * len(cached)
            self.tracked_keys.note_many(cached, groups, [False] * len(cached), True)
        elif self.tracked_keys.count is not None:
            self.tracked_keys.count += len(cached)
        self._insert(key_group, batch)

    def begin_epoch(self, epoch: int) -> None:
        self.tracked_keys.begin(epoch)
        # Other caches may have joined the memory.
        self.cache.fit()

    def changes_since(self, epoch: int) -> TableChanges[K, N, V]:
        codes = self.tracked_keys.codes_since(epoch)
        cached = list(codes)
        values = self.cache.peek_many(cached)
        copy = self.buffer.copy() if type(None) in set(map(type, values)) else None
        numbers = np.fromiter(codes.values(), np.int64, len(codes))
        return CachedChanges(self._reading_codec(), self._by_key, copy, cached, numbers, values)

    def forget_changes(self, epoch: int) -> None:
        self.tracked_keys.forget(epoch)


def _require_equal(groups: list[int], cached: list[CacheKey]) -> None:
    if len(groups) != len(cached):
        raise ValueError(f"{len(groups)} key groups and {len(cached)} keys; give one of each for every entry")


def _weights_of(meta: StateMeta) -> tuple[Weight, Weight]:
    """Return what the keys and the values of the cache weigh."""
    value = weight_of(meta.value_serializer)
    assert value is not None, "values of this type must not be cached"
    key = weight_of(meta.key_serializer) or Weight(TUPLE_BYTES, sys.getsizeof)
    namespace = weight_of(meta.namespace_serializer) or Weight(TUPLE_BYTES + 8 * SLOT_BYTES)
    return Weight(key.fixed + namespace.fixed, key.varying), value
