"""Map state whose entries expire one by one (Flink's ``TtlMapState``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar, cast

from keyedstate.state.kinds.accessor import StateAccessor
from keyedstate.state.kinds.map import MapStateAccessor
from keyedstate.state.kinds.map_iterator import MapStateEntry, MapStateIterator
from keyedstate.state.ttl.expiry import StateExpiry
from keyedstate.types import TimedDict

K = TypeVar("K")
V = TypeVar("V")


class TtlMapStateAccessor(MapStateAccessor[K, V]):
    """A map per key and namespace; each entry lives from when it was put.

    Stored is a `TimedDict`.  A read that meets an expired entry removes it.
    """

    __slots__ = ("_cleanup", "_expiry", "_refreshes", "_time", "_ttl_ms")

    def _expire_by(self, expiry: StateExpiry) -> None:
        self._expiry = expiry
        self._cleanup = expiry.cleanup
        self._time = expiry.time
        self._ttl_ms = expiry.ttl.ms
        self._refreshes = expiry.refreshes

    # -- one entry ----------------------------------------------------------------------------------------

    def get(self, key: K) -> V | None:
        now, cleanup = self._time.now, self._cleanup
        if now >= cleanup.due:
            cleanup.run()
        all_live = now < cleanup.all_live_until and not self._refreshes
        context = self._context
        entries = self._table.get(context.key_group, context.key, self._namespace)
        stamp = None
        if entries is not None:
            if self._canonical is not None:
                key = self._key(key)
            try:
                if not all_live:
                    stamp = entries.stamps.get(key)
                elif (value := entries.get(key)) is not None:
                    return cast("V", value)
            except TypeError:  # it has no hash
                self._check_key(key)
                raise
        if entries is None or stamp is None:
            self._check_key(key)
            return None
        value = cast("V | None", entries[key])
        if stamp + self._ttl_ms > now:
            if self._refreshes:
                self._for_update().stamps[key] = self._time.renewed(stamp)
            return value
        self._drop([key])
        return value if self._expiry.shows_expired else None

    def contains(self, key: K) -> bool:
        """Return whether the map has a key that lives; as any read, it may give the entry a new time."""
        if self._time.now >= self._cleanup.due:
            self._cleanup.run()
        context = self._context
        entries = self._table.get(context.key_group, context.key, self._namespace)
        stamp = None
        if entries is not None:
            if self._canonical is not None:
                key = self._key(key)
            try:
                stamp = entries.stamps.get(key)
            except TypeError:  # it has no hash
                self._check_key(key)
                raise
        if stamp is None:
            self._check_key(key)
            return False
        if stamp + self._ttl_ms <= self._time.now:
            self._drop([key])
            return self._expiry.shows_expired
        if self._refreshes:
            self._for_update().stamps[key] = self._time.renewed(stamp)
        return True

    def put(self, key: K, value: V | None) -> None:
        if not self._is_key(key) or (value is not None and not self._is_value(value)):
            self._check_entry(key, value)
        if self._canonical is not None:
            key = self._canonical(key)
        time = self._time
        if time.now >= self._cleanup.due:
            self._cleanup.run()
        context = self._context
        entries = self._table.get_for_update(context.key_group, context.key, self._namespace)
        if entries is None:
            entries = TimedDict()
            entries[key] = value
            entries.stamps = {key: time.stamp}
            self._table.put(context.key_group, context.key, self._namespace, entries)
        else:
            entries[key] = value
            entries.stamps[key] = time.stamp
        self._expiry.written(context.key_group, context.key, self._namespace)

    # -- several entries ----------------------------------------------------------------------------------

    def get_all(self, keys: Iterable[K]) -> dict[K, V | None]:
        wanted = self._map_keys(keys)
        entries = self._raw()
        return {} if entries is None else self._shown(entries, [key for key in wanted if key in entries])

    def _put_entries(self, group: int, key: Any, new: dict[K, V | None]) -> None:
        self._expiry.accessed()
        stamps = dict.fromkeys(new, self._time.stamp)
        stored = self._table.get_for_update(group, key, self._namespace)
        if stored is None:
            self._table.put(group, key, self._namespace, TimedDict.of(new, stamps))
        else:
            stored.update(new)
            stored.stamps.update(stamps)
        self._expiry.written(group, key, self._namespace)

    def size(self) -> int:
        """Return the number of entries that live; they get no new time."""
        entries = self._all_live()
        if entries is not None:
            return len(entries)
        entries, limit = self._raw(), self._expiry.limit
        return 0 if entries is None else sum(stamp > limit for stamp in entries.stamps.values())

    def is_empty(self) -> bool:
        """Return whether no entry lives (Flink's also counts expired entries that are still stored)."""
        entries, limit = self._raw(), self._expiry.limit
        return entries is None or all(stamp <= limit for stamp in entries.stamps.values())

    # -- all entries --------------------------------------------------------------------------------------

    def entries(self) -> MapStateIterator[K, V]:
        self._expiry.accessed()
        return _TtlMapStateIterator(self, self._check_entry, self._expiry)

    # -- many keys ----------------------------------------------------------------------------------------

    def get_many(
        self, keys: Iterable[Any], key_groups: Sequence[int] | None = None
    ) -> list[dict[K, V | None]]:
        keys, groups = self._context.locate(keys, key_groups)
        self._expiry.accessed()
        context = self._context
        before = context.key, context.key_group
        shown = []
        try:
            for context.key, context.key_group in zip(keys, groups, strict=True):
                shown.append(self._entries())
        finally:
            context.key, context.key_group = before
        return shown

    def _put_columns(
        self, groups: list[int], keys: list[Any], map_column: list[K], column: list[V | None]
    ) -> None:
        # As `_put_entries` for each, without a dict for each.
        self._expiry.accessed()
        table, namespace, stamp = self._table, self._namespace, self._time.stamp
        for group, key, map_key, value in zip(groups, keys, map_column, column, strict=True):
            entries = table.get_for_update(group, key, namespace)
            if entries is None:
                table.put(group, key, namespace, TimedDict.of({map_key: value}, {map_key: stamp}))
            else:
                entries[map_key] = value
                entries.stamps[map_key] = stamp
            self._expiry.written(group, key, namespace)

    # -- within -------------------------------------------------------------------------------------------

    def _all_live(self) -> TimedDict[K, V | None] | None:
        """Return the stored entries where none can be expired and reads change nothing, else None."""
        if self._refreshes or self._time.now >= self._cleanup.all_live_until:
            return None
        return self._raw()

    def _readable(self) -> dict[K, V | None]:
        entries = self._all_live()
        return self._entries() if entries is None else entries

    def _entries(self) -> dict[K, V | None]:
        """Return the entries that live in a new dict, and change the stored ones as a read does."""
        entries = self._raw()
        return {} if entries is None else self._shown(entries, entries)

    def _raw(self) -> TimedDict[K, V | None] | None:
        self._expiry.accessed()
        context = self._context
        return cast(
            "TimedDict[K, V | None] | None",
            self._table.get(context.key_group, context.key, self._namespace),
        )

    def _shown(self, entries: TimedDict[K, V | None], keys: Collection[K]) -> dict[K, V | None]:
        """Return what a read of some keys shows, and change the stored entries as a read does."""
        limit, stamps = self._expiry.limit, entries.stamps
        expired = [key for key in keys if stamps[key] <= limit]
        gone = set() if self._expiry.shows_expired else set(expired)
        shown = {key: entries[key] for key in keys if key not in gone}
        living = set(keys).difference(expired) if self._refreshes else ()
        if expired:
            self._drop(expired)
        if living:
            renewed = self._time.renewed
            self._for_update().stamps.update({key: renewed(stamps[key]) for key in living})
        return shown

    def _for_update(self) -> TimedDict[K, V | None]:
        """Return the stored map, which exists, to change it."""
        context = self._context
        return cast(
            "TimedDict[K, V | None]",
            self._table.get_for_update(context.key_group, context.key, self._namespace),
        )


class _TtlMapStateIterator(MapStateIterator[K, V]):
    """Looks for the next living entry in `has_next`, so that nothing can be removed after that (TTL-19)."""

    __slots__ = ("_all_live", "_expiry")

    def __init__(
        self, accessor: StateAccessor, check: Callable[[K, V | None], None], expiry: StateExpiry
    ) -> None:
        super().__init__(accessor, check)
        self._expiry = expiry
        #: Whether all entries live and reads change none; time does not move within a record.
        self._all_live = not expiry.refreshes and expiry.time.now < expiry.cleanup.all_live_until

    def has_next(self) -> bool:
        self._shown = []
        if self._all_live or self._expiry.shows_expired:
            return super().has_next()
        limit = self._expiry.limit
        while super().has_next():
            key = self._keys[-1]
            entries: Any = self._table.get(*self._address)
            if entries.stamps[key] > limit:
                return True
            self._remove(key)
        return False

    def __next__(self) -> MapStateEntry[K, V]:
        entry = super().__next__()
        if self._all_live:
            return entry
        entries: Any = self._table.get(*self._address)
        if entries.stamps[entry.key] <= self._expiry.limit:
            self._remove(entry.key)
            self._shown = []
        elif self._expiry.refreshes:
            renewed = self._expiry.time.renewed(entries.stamps[entry.key])
            stored: Any = self._table.get_for_update(*self._address)
            stored.stamps[entry.key] = renewed
        return entry

    def _store(self, key: K, value: V | None) -> None:
        stamp = self._expiry.time.stamp
        entries: Any = self._table.get_for_update(*self._address)
        if entries is None:
            self._table.put(*self._address, TimedDict.of({key: value}, {key: stamp}))
            self._expiry.written(*self._address)
        else:
            entries[key] = value
            entries.stamps[key] = stamp
