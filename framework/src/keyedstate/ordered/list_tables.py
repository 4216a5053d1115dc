"""Tables with several rows per entry, and those of list state: an append reads nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from keyedstate.backend import StateMeta
from keyedstate.backend.table import EntryBatch
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered.caching.object_cache import ABSENT_ENTRY, EntryCache, ObjectMemory
from keyedstate.ordered.codecs import EntryCodec, ListCodec, Rows
from keyedstate.ordered.table import OrderedTable
from keyedstate.ordered.write_buffer import WriteBuffer
from keyedstate.types import TimedList
from keyedstate.types.weights import Weight, weight_of_collection

K = TypeVar("K")
N = TypeVar("N")
C = TypeVar("C", bound=EntryCodec)


class GroupedTable(OrderedTable[K, N, Any, C], Generic[K, N, C]):
    """Several rows per entry.

    With a `memory`, a whole list or map that was read stays in it as an object, if its type allows that.  The
    rows are never older than what is cached.
    """

    def __init__(
        self,
        meta: StateMeta,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        buffer: WriteBuffer,
        memory: ObjectMemory | None = None,
    ) -> None:
        super().__init__(meta, key_groups, max_parallelism, buffer)
        self._memory = memory
        self._make_cache()

    def _make_cache(self) -> None:
        """Begin with an empty cache for the types of the table, or with none."""
        weight = None if self._memory is None else weight_of_collection(self._meta.value_serializer)
        #: Whole values by address, and `ABSENT_ENTRY`.  What is in it is never handed out.
        self.cache: EntryCache | None = None
        if weight is not None and self._memory is not None:
            self.cache = EntryCache(self._memory, Weight(0, sys.getsizeof), weight)

    def adopt(self, meta: StateMeta) -> None:
        super().adopt(meta)
        self._copy = meta.value_serializer.copy

    def replace_meta(self, meta: StateMeta) -> None:
        super().replace_meta(meta)
        self._make_cache()

    def rewrite(
        self,
        meta: StateMeta,
        of_keys: Callable[[Any], Any] | None,
        of_namespaces: Callable[[Any], Any] | None,
        of_values: Callable[[Any], Any] | None,
    ) -> None:
        self.cache = None
        try:
            super().rewrite(meta, of_keys, of_namespaces, of_values)
        finally:
            self._make_cache()

    def cached(self, address: bytes) -> Any:
        """Return the list or map that is cached of an address, `ABSENT_ENTRY`, or None where neither is."""
        cache = self.cache
        if cache is None:
            return None
        found = cache.young.get(address)
        return cache.find(address) if found is None else found

    def uncached(self, address: bytes) -> Any:
        """Return what `cached` does, and cache it no longer: its rows are about to change.

        After the change, `cache_again` gets it as it is then.  So an error in between leaves nothing wrong.
        """
        found = self.cached(address)
        if found is not None:
            # It may have become an older one just now.
            self.cache.forget((address,))  # type: ignore[union-attr]
        return found

    def cache_again(self, address: bytes, value: Any, new: Any) -> None:
        """Cache a changed value of which only a part is new, or `ABSENT_ENTRY`."""
        cache = self.cache
        assert cache is not None
        cache.young[address] = value
        cache.weigh(new)
        if len(cache.young) > cache.room:
            cache.fit()

    def exist(self, addresses: Sequence[bytes]) -> list[bool]:
        return list(map(self._exists, addresses))

    def _exists(self, address: bytes) -> bool:
        found = self.cached(address)
        if found is None:
            return any(True for _ in self.buffer.scan(address))
        return found is not ABSENT_ENTRY

    def look_up(self, address: bytes) -> bool:
        """Return whether an address has an entry, and cache that it has none."""
        exists = self._exists(address)
        if not exists and self.cache is not None:
            self.cache.add(address, ABSENT_ENTRY)
        return exists

    def read(self, address: bytes) -> Any:
        if self.tracked.known(address) is False:
            return None
        found = self.cached(address)
        if found is None:
            found = next((entry[3] for entry in self.codec.entries(self.buffer.scan(address))), None)
            if self.cache is None:
                return found
            self.cache.add(address, ABSENT_ENTRY if found is None else found)
        return None if found is None or found is ABSENT_ENTRY else self._copy(found)

    def _replace(self, address: bytes, value: Any) -> None:
        if not value:
            # It has no rows.
            self._delete(address)
            return
        self.uncached(address)
        super()._replace(address, value)

    def _delete(self, address: bytes) -> None:
        found = self.uncached(address)
        super()._delete(address)
        if found is not None:
            self.cache_again(address, ABSENT_ENTRY, ABSENT_ENTRY)

    def delete_rows(self, address: bytes) -> None:
        for row in [row for row, _ in self.buffer.scan(address)]:
            self.buffer.put(row, None, address)

    def _insert(self, key_group: int, batch: EntryBatch[K, N, Any]) -> None:
        if self.cache is not None:
            self.cache.clear()
        super()._insert(key_group, batch)

    def trim(self, since: float) -> None:
        if self.cache is not None:
            self.cache.trim(since)
        super().trim(since)

    def write(self, address: bytes, rows: Rows) -> None:
        """Add rows to an address."""
        if rows:
            self.tracked.note(address, True)
            self._put_rows(address, rows)


class ListTable(GroupedTable[K, N, ListCodec]):
    """List state: a row per chunk of elements."""

    def get_for_update(self, key_group: int, key: K, namespace: N) -> Any:
        """Return what appends to the list, without looking up whether it exists."""
        address = self._address(key_group, key, namespace)
        return TimedAppender(self, address) if self.codec.timed else Appender(self, address)

    def _replace(self, address: bytes, value: Any) -> None:
        found = self.cached(address)
        super()._replace(address, value)
        if found is not None and value:
            self.cache_again(address, self._copy(value), value)

    def append(self, address: bytes, elements: Iterable[Any], stamps: Sequence[int] | None = None) -> None:
        """Append elements, with their timestamps where the state has a time to live."""
        elements = list(elements)
        found = self.uncached(address)
        self.write(address, self.codec.chunks(address, elements, stamps))
        if found is not None:
            new = self._copy(elements if stamps is None else TimedList.of(elements, stamps))
            if found is ABSENT_ENTRY:
                found = new
            else:
                found.extend(new)
                if stamps is not None:
                    found.stamps.extend(new.stamps)
            self.cache_again(address, found if found else ABSENT_ENTRY, new)


class Appender:
    """The end of a stored list: what `get_for_update` returns."""

    __slots__ = ("_address", "_table")

    def __init__(self, table: ListTable[Any, Any], address: bytes) -> None:
        self._table = table
        self._address = address

    def append(self, element: Any) -> None:
        """Append one element."""
        self.extend([element])

    def extend(self, elements: Iterable[Any]) -> None:
        """Append several elements."""
        self._table.append(self._address, elements)


class TimedAppender:
    """The end of a stored list with timestamps: elements are appended first, then their `stamps`."""

    __slots__ = ("_address", "_elements", "_table", "stamps")

    def __init__(self, table: ListTable[Any, Any], address: bytes) -> None:
        self._table = table
        self._address = address
        self._elements: list[Any] = []
        self.stamps = Stamps(self)

    def append(self, element: Any) -> None:
        """Append one element, whose timestamp follows."""
        self._elements.append(element)

    def extend(self, elements: Iterable[Any]) -> None:
        """Append several elements, whose timestamps follow."""
        self._elements.extend(elements)

    def write(self, stamps: Sequence[int]) -> None:
        """Write the appended elements with their timestamps."""
        elements, self._elements = self._elements, []
        if len(elements) != len(stamps):
            raise ValueError(f"{len(elements)} elements and {len(stamps)} times were appended to a list")
        self._table.append(self._address, elements, stamps)


class Stamps:
    """The timestamps of a stored list, to be appended to."""

    __slots__ = ("_appender",)

    def __init__(self, appender: TimedAppender) -> None:
        self._appender = appender

    def append(self, stamp: int) -> None:
        """Append the timestamp of the appended element."""
        self._appender.write([stamp])

    def extend(self, stamps: Iterable[int]) -> None:
        """Append the timestamps of the appended elements."""
        self._appender.write(list(stamps))
