"""Entries of a table as Python objects, bounded by bytes: what is used again is neither read nor written.

A read keeps what it found, also that there was nothing; a write is kept and reaches the rows when its entry
leaves the cache.  What lasts is what a checkpoint holds, so that nothing is lost by that.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from keyedstate.backend.meta import StateMeta
from keyedstate.types import TypeSerializer
from keyedstate.types.collections.nullable import NullableSerializer
from keyedstate.types.collections.ttl import TtlSerializer
from keyedstate.types.collections.tuples import TupleSerializer
from keyedstate.types.records.rows import AccumulatorsSerializer, RowSerializer

#: A key, or a namespace and a key.
CacheKey: TypeAlias = Any


class Mark:
    """Stands for what is no value of a type."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


#: What the cache says of an address without an entry, and of an entry that holds None.
ABSENT_ENTRY: Final = Mark("ABSENT_ENTRY")
NONE_VALUE: Final = Mark("NONE_VALUE")

#: An entry in up to three dicts: of values, of what is to be written, of what an epoch touched.
_SLOTS = 250
_TUPLE, _TUPLE_SLOT, _NUMBER = 56, 8, 32
#: Keys of different sizes are counted when so many have come.
_WEIGHED_TOGETHER = 256


class Weight(NamedTuple):
    """The bytes of an object: so many, and what a function says of it."""

    fixed: int
    of: Callable[[Any], int] | None = None

    def total(self, objects: Sequence[Any]) -> int:
        """Return the bytes of several objects."""
        return self.fixed * len(objects) + (0 if self.of is None else sum(map(self.of, objects)))


class ObjectMemory:
    """Bytes that caches share: each may have its equal part, and what the others leave.

    Parameters
    ----------
    size : int
        Estimated by `sys.getsizeof` of the objects and a flat rate for the dicts that they are in.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._caches: weakref.WeakSet[EntryCache] = weakref.WeakSet()
        self._lock = threading.Lock()

    def join(self, cache: EntryCache) -> None:
        """Count a cache until nobody holds it."""
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
    """Two generations of entries: what is used comes into the younger one, the older one is dropped whole.

    For the owner thread of a table.

    Parameters
    ----------
    memory : ObjectMemory
    meta : StateMeta
    write : callable
        Takes keys, their key groups and what is cached of them, and writes the rows.

    Attributes
    ----------
    young, old : dict
        What is cached: a value, `ABSENT_ENTRY` or `NONE_VALUE`.  A key that is in both counts as it is in
        `young`; only what is in neither has to be looked up.
    dirty : dict
        The key groups of what has to be written, by key; each of the keys is in a generation.
    room : int
        Entries of `young` above which `fit` has to be called.
    """

    def __init__(
        self,
        memory: ObjectMemory,
        meta: StateMeta,
        write: Callable[[list[CacheKey], list[int], list[Any]], None],
    ) -> None:
        self._memory = memory
        self._write = write
        self.young: dict[CacheKey, Any] = {}
        self.old: dict[CacheKey, Any] = {}
        self.dirty: dict[CacheKey, int] = {}
        self._old_bytes = 0
        self.adopt(meta)
        memory.join(self)
        self.fit()

    def adopt(self, meta: StateMeta) -> None:
        """Weigh entries of other types from now on; for an empty cache."""
        value = weight_of(meta.value_serializer)
        assert value is not None, "a type that may be cached becomes none that may not"
        key = weight_of(meta.key_serializer) or Weight(_TUPLE, sys.getsizeof)
        namespace = weight_of(meta.namespace_serializer) or Weight(_TUPLE + 8 * _TUPLE_SLOT, sys.getsizeof)
        self._fixed = _SLOTS + key.fixed + value.fixed + namespace.fixed
        self._key, self._value = key.of, value.of
        #: Bytes of the entries of `young` beside the fixed ones, and of how many of them keys are counted.
        self._varying = self._weighed = 0
        #: Whether values have to be weighed one by one.
        self.weighs = value.of is not None

    @property
    def used(self) -> int:
        """Bytes that are held."""
        return len(self.young) * self._fixed + self._varying + self._old_bytes

    def weigh(self, values: Sequence[Any]) -> None:
        """Count what comes into `young`; what it takes the place of counts until the next generation."""
        assert self._value is not None
        self._varying += sum(map(self._value, values))
        if self._varying > self._most:
            self.room = 0

    def _weigh_keys(self) -> None:
        """Count the keys that have come into `young` since the last time: they are the last ones in it."""
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
        """Keep what was looked up."""
        if self.weighs:
            self.weigh((found,))
        self.young[key] = found
        if len(self.young) > self.room:
            self.fit()

    def find_many(self, keys: list[CacheKey]) -> list[Any]:
        """Return what is cached of several keys, with None for those that have to be looked up."""
        found = list(map(self.young.get, keys))
        if self.old and None in found:
            older = list(map(self.old.get, keys))
            places = [
                place for place, value in enumerate(found) if value is None and older[place] is not None
            ]
            if places:
                for place in places:
                    found[place] = older[place]
                    self.old.pop(keys[place], None)
                self.add_many([keys[place] for place in places], [found[place] for place in places])
        return found

    def add_many(self, keys: list[CacheKey], found: list[Any]) -> None:
        """Keep what was looked up of several keys."""
        if self.weighs:
            self.weigh(found)
        self.young.update(zip(keys, found, strict=True))
        if len(self.young) > self.room:
            self.fit()

    def peek_many(self, keys: Sequence[CacheKey]) -> list[Any]:
        """Return what is cached of several keys, and leave each where it is."""
        found = list(map(self.young.get, keys))
        if self.old and None in found:
            return [
                older if value is None else value
                for value, older in zip(found, map(self.old.get, keys), strict=True)
            ]
        return found

    def fit(self) -> None:
        """Drop generations until the cache has its size; what they have that is not written is written."""
        self._weigh_keys()
        while True:
            limit = self._memory.limit_of(self)
            # Half for the younger ones, since the older ones stay as long as these grow.
            self._most = limit // 2
            self.room = self._most // self._fixed
            if self._key is not None:
                self.room = min(self.room, len(self.young) + _WEIGHED_TOGETHER)
            young_bytes = len(self.young) * self._fixed + self._varying
            if young_bytes <= self._most and young_bytes + self._old_bytes <= limit:
                return
            self._write_older()
            self.old, self.young = self.young, {}
            self._old_bytes, self._varying, self._weighed = young_bytes, 0, 0

    def _write_older(self) -> None:
        """Write what only the older generation has."""
        young, old = self.young, self.old
        if old:
            self._write_some([key for key in self.dirty if key not in young])

    def write_back(self) -> None:
        """Write all that is not written; it is cached on."""
        self._write_some(list(self.dirty))

    def _write_some(self, keys: list[CacheKey]) -> None:
        if keys:
            self._write(keys, list(map(self.dirty.__getitem__, keys)), self.peek_many(keys))
            if len(keys) == len(self.dirty):
                self.dirty.clear()
            else:
                for key in keys:
                    del self.dirty[key]

    def forget(self, keys: Sequence[CacheKey]) -> None:
        """Forget what is cached of keys, written or not."""
        for entries in (self.young, self.old, self.dirty):
            for key in keys:
                entries.pop(key, None)

    def clear(self) -> None:
        """Forget everything, written or not."""
        self.young, self.old = {}, {}
        self.dirty.clear()
        self._old_bytes = self._varying = self._weighed = 0
        self.fit()


def weight_of(serializer: TypeSerializer[Any]) -> Weight | None:
    """Return what values of a type weigh; None for a type whose values are not cached.

    Those are values that the user may change in place, and those that come back otherwise than they went in
    (a float in 32 bits): what is read must not depend on what is cached.
    """
    kind = type(serializer)
    if kind in (AccumulatorsSerializer, RowSerializer, TupleSerializer):
        return _weight_of_parts(list(serializer.field_serializers))  # type: ignore[attr-defined]
    if kind is TtlSerializer:
        inner = weight_of(serializer.value_serializer)  # type: ignore[attr-defined]
        if inner is None:
            return None
        varying = None if inner.of is None else _of_part(1, inner.of)
        return Weight(_TUPLE + 2 * _TUPLE_SLOT + _NUMBER + inner.fixed, varying)
    if kind is NullableSerializer:
        return weight_of(serializer.inner_serializer)  # type: ignore[attr-defined]
    return _SCALARS.get(serializer.type_name)


def _weight_of_parts(serializers: list[TypeSerializer[Any]]) -> Weight | None:
    parts = [weight_of(part) for part in serializers]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    fixed = _TUPLE + sum(_TUPLE_SLOT + part.fixed for part in known)
    varying = [_of_part(place, part.of) for place, part in enumerate(known) if part.of is not None]
    return Weight(fixed, (lambda value: sum(of(value) for of in varying)) if varying else None)


def _of_part(place: int, of: Callable[[Any], int]) -> Callable[[Any], int]:
    return lambda value: 0 if value is None or value.__class__ is Mark else of(value[place])


_SCALARS = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "float64"), Weight(_NUMBER)),
    **dict.fromkeys(("boolean", "void"), Weight(0)),
    **dict.fromkeys(("string", "bytes"), Weight(0, sys.getsizeof)),
}
