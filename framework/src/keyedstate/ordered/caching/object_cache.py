"""Entries of a table as Python objects, bounded by bytes: an entry that is used again costs no bytes.

A read caches what it found, also that it found nothing.  A write is cached and reaches the rows when its
entry leaves the cache.  Nothing is lost by that, since only a checkpoint makes state durable.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from keyedstate.types.weights import Weight

#: A key, or a namespace and a key.
CacheKey: TypeAlias = Any


class Mark:
    """A cached object that is no value of a type."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


#: What is cached of an address without an entry, and of an entry whose value is None.
ABSENT_ENTRY: Final = Mark("ABSENT_ENTRY")
NONE_VALUE: Final = Mark("NONE_VALUE")

#: Bytes of an entry's slots in up to three dicts: the values, the dirty entries, an epoch's addresses.
_SLOTS = 250
#: Keys of different sizes are weighed when so many were added.
_WEIGHED_TOGETHER = 256


class ObjectMemory:
    """Bytes that caches share: each may have an equal part, and what the others leave.

    They are estimated by `sys.getsizeof` of the objects and a flat rate for the dicts that they are in.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._caches: weakref.WeakSet[EntryCache] = weakref.WeakSet()
        self._lock = threading.Lock()
        #: When a cache last dropped entries to keep its limit, by `time.monotonic`.
        self.lacked = -math.inf

    def join(self, cache: EntryCache) -> None:
        """Count a cache as long as it is referenced."""
        with self._lock:
            self._caches.add(cache)

    @property
    def used(self) -> int:
        """Bytes of all caches."""
        with self._lock:
            return sum(cache.used for cache in self._caches)

    def limit_of(self, cache: EntryCache) -> int:
        """Return how many bytes a cache may have now."""
        with self._lock:
            others = sum(other.used for other in self._caches if other is not cache)
            return max(self.size // max(1, len(self._caches)), self.size - others)


class EntryCache:
    """Two generations of entries: a use moves an entry to the younger one, the older one is dropped whole.

    For the owner thread of a table. `write` takes keys, their key groups and their cached values, and writes
    the rows; a cache that is never dirty needs none. Above `room` entries of `young`, `fit` has to be called.
    """

    def __init__(
        self,
        memory: ObjectMemory,
        keys: Weight,
        values: Weight,
        write: Callable[[list[CacheKey], list[int], list[Any]], None] | None = None,
    ) -> None:
        self._memory = memory
        self._write = write
        #: The cached entries: a value, `ABSENT_ENTRY` or `NONE_VALUE`.  Of a key in both, `young` counts; a
        #: key in neither has to be looked up.
        self.young: dict[CacheKey, Any] = {}
        self.old: dict[CacheKey, Any] = {}
        #: The key groups of the entries that are not written yet, by key; each of the keys is in a
        #: generation.
        self.dirty: dict[CacheKey, int] = {}
        #: The dirty keys that surely have no row: where such an entry is removed again, nothing is to write.
        self.rowless: set[CacheKey] = set()
        self._old_bytes = 0
        self.adopt(keys, values)
        memory.join(self)
        self.fit()

    def adopt(self, keys: Weight, values: Weight) -> None:
        """Weigh keys and values in another way; for an empty cache."""
        self._fixed = _SLOTS + keys.fixed + values.fixed
        self._key, self._value = keys.varying, values.varying
        #: Bytes of `young` beyond the fixed ones of each entry, and the number of its keys in them.
        self._varying = self._weighed = 0
        #: Whether values have to be weighed one by one.
        self.weighs = values.varying is not None

    @property
    def used(self) -> int:
        """Bytes of the cached entries."""
        young = len(self.young) * self._fixed + self._varying
        return young + self._old_bytes + sys.getsizeof(self.rowless)

    def weigh(self, value: Any) -> None:
        """Count a value that is added to `young`; the one it replaces counts until the next generation."""
        assert self._value is not None
        if value.__class__ is not Mark:
            self._varying += self._value(value)
            if self._varying > self._most:
                self.room = 0

    def weigh_many(self, values: Sequence[Any]) -> None:
        """Count several values that are added to `young`."""
        assert self._value is not None
        if Mark in set(map(type, values)):
            values = [value for value in values if value.__class__ is not Mark]
        self._varying += sum(map(self._value, values))
        if self._varying > self._most:
            self.room = 0

    def _weigh_keys(self) -> None:
        """Count the keys that were added to `young` since the last call: they are the last ones in it."""
        new = len(self.young) - self._weighed
        if self._key is not None and new > 0:
            self._varying += sum(map(self._key, islice(reversed(self.young), new)))
        self._weighed = len(self.young)

    def find(self, key: CacheKey) -> Any:
        """Return what is cached of a key that is not in `young`, or None."""
        found = self.old.pop(key, None)
        if found is not None:
            self.add(key, found)
        return found

    def add(self, key: CacheKey, found: Any) -> None:
        """Cache the result of a look-up."""
        if self.weighs:
            self.weigh(found)
        self.young[key] = found
        if len(self.young) > self.room:
            self.fit()

    def find_many(self, keys: list[CacheKey]) -> list[Any]:
        """Return what is cached of several keys, with None for those that have to be looked up."""
        found = list(map(self.young.get, keys))
        if self.old and None in found:
            older = list(map(self.old.get, keys))
            moved = [i for i, value in enumerate(found) if value is None and older[i] is not None]
            if moved:
                for i in moved:
                    found[i] = older[i]
                    self.old.pop(keys[i], None)
                self.add_many([keys[i] for i in moved], [found[i] for i in moved])
        return found

    def add_many(self, keys: list[CacheKey], found: list[Any]) -> None:
        """Cache the results of several look-ups."""
        if self.weighs:
            self.weigh_many(found)
        self.young.update(zip(keys, found, strict=True))
        if len(self.young) > self.room:
            self.fit()

    def removed(self, keys: Sequence[CacheKey]) -> None:
        """Note that dirty entries were removed: of those without a row there is nothing left to write."""
        gone = self.rowless.intersection(keys) if self.rowless else ()
        self.rowless.difference_update(gone)
        for key in gone:
            del self.dirty[key]

    def peek_many(self, keys: Sequence[CacheKey]) -> list[Any]:
        """Return what is cached of several keys, and leave each in its generation."""
        found = list(map(self.young.get, keys))
        if self.old and None in found:
            return [
                older if value is None else value
                for value, older in zip(found, map(self.old.get, keys), strict=True)
            ]
        return found

    def fit(self) -> None:
        """Drop generations until the cache has its size; their dirty entries are written."""
        self._weigh_keys()
        while True:
            limit = max(self._memory.limit_of(self) - sys.getsizeof(self.rowless), 0)
            # Half for the younger ones, since the older ones stay as long as these grow.
            self._most = limit // 2
            self.room = self._most // self._fixed
            if self._key is not None:
                self.room = min(self.room, len(self.young) + _WEIGHED_TOGETHER)
            young_bytes = len(self.young) * self._fixed + self._varying
            if young_bytes <= self._most and young_bytes + self._old_bytes <= limit:
                return
            if self.old:
                self.write_some([key for key in self.dirty if key not in self.young])
                self._memory.lacked = time.monotonic()
            self.old, self.young = self.young, {}
            self._old_bytes, self._varying, self._weighed = young_bytes, 0, 0

    def write_back(self) -> None:
        """Write all dirty entries, which stay cached."""
        self.write_some(list(self.dirty))

    def write_some(self, keys: list[CacheKey]) -> None:
        """Write the entries of dirty keys, which stay cached."""
        if keys:
            assert self._write is not None
            # First: where the write fails, some of the keys may have rows.
            self.rowless.difference_update(keys)
            self._write(keys, list(map(self.dirty.__getitem__, keys)), self.peek_many(keys))
            if len(keys) == len(self.dirty):
                self.dirty.clear()
            else:
                for key in keys:
                    del self.dirty[key]

    def trim(self, since: float) -> None:
        """Write and drop all entries if a cache that shares the memory has lacked it since a time."""
        if self._memory.lacked > since:
            self.write_back()
            self.clear()

    def forget(self, keys: Sequence[CacheKey]) -> None:
        """Drop the entries of keys, written or not."""
        for entries in (self.young, self.old, self.dirty):
            for key in keys:
                entries.pop(key, None)
        self.rowless.difference_update(keys)

    def clear(self) -> None:
        """Drop all entries, written or not."""
        self.young, self.old = {}, {}
        self.dirty.clear()
        self.rowless = set()
        self._old_bytes = self._varying = self._weighed = 0
        self.fit()
