"""Map state whose entries expire one by one (Flink's ``TtlMapState``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar, cast

from keyedstate.backend import AnyStateTable
from keyedstate.state.context import KeyContext
from keyedstate.state.errors import NothingToRemoveError
from keyedstate.state.map import MapState, MapStateHandle
from keyedstate.state.map_iterator import MapStateEntry, MapStateIterator
from keyedstate.state.ttl.expiry import StateExpiry

K = TypeVar("K")
V = TypeVar("V")

_VALUE = itemgetter(1)


class TtlMapStateHandle(MapStateHandle[K, V]):
    """A map per key and namespace; each entry lives from when it was put.

    Stored are pairs of a timestamp and a value.  Whoever comes upon an expired entry removes it.
    """

    __slots__ = ("_cleanup", "_expiry", "_refreshes", "_time", "_ttl_ms")

    def __init__(
        self, descriptor: MapState[K, V], table: AnyStateTable, context: KeyContext, expiry: StateExpiry
    ) -> None:
        super().__init__(descriptor.name, table, context, descriptor.plain_serializer)
        self._expiry = expiry
        self._cleanup = expiry.cleanup
        self._time = expiry.time
        self._ttl_ms = expiry.ttl.ms
        self._refreshes = expiry.refreshes

    # -- one entry ----------------------------------------------------------------------------------------

    def get(self, key: K) -> V | None:
        """Return the value under a map key, or None; an expired one is removed."""
        now = self._time.now
        if now >= self._cleanup.due:
            self._cleanup.run()
        context = self._context
        entries = self._table.get(context.key_group, context.key, self._namespace)
        timed = None
        if entries is not None:
            if self._canonical is not None:
                key = self._key(key)
            try:
                timed = entries.get(key)
            except TypeError:  # it has no hash
                self._check_key(key)
                raise
        if timed is None:
            self._check_key(key)
            return None
        if timed[0] + self._ttl_ms > now:
            if self._refreshes:
                self._for_update()[key] = self._time.stamp, timed[1]
            return cast("V | None", timed[1])
        self._drop([key])
        return timed[1] if self._expiry.shows_expired else None

    def contains(self, key: K) -> bool:
        """Return whether a map key is there and lives; as any read, it may give the entry a new time."""
        key = self._key(key)
        found = self._raw()
        timed = None if found is None else found.get(key)
        if timed is None:
            return False
        if timed[0] <= self._expiry.limit:
            self._drop([key])
            return self._expiry.shows_expired
        if self._refreshes:
            self._for_update()[key] = self._time.stamp, timed[1]
        return True

    def put(self, key: K, value: V | None) -> None:
        """Set the value under a map key, which begins to live."""
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
            self._table.put(context.key_group, context.key, self._namespace, {key: (time.stamp, value)})
            self._written(context.key_group, context.key)
        else:
            entries[key] = time.stamp, value

    # -- several entries ----------------------------------------------------------------------------------

    def get_all(self, keys: Iterable[K]) -> dict[K, V | None]:
        """Return the entries of those among several map keys that are there and live, in their order."""
        wanted = self._map_keys(keys)
        entries = self._raw()
        return {} if entries is None else self._shown({key: entries[key] for key in wanted if key in entries})

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Set several, which begin to live; either all of them or, where one is refused, none."""
        new = self._checked(entries)
        if not new:
            return
        self._expiry.accessed()
        stamp = self._time.stamp
        timed = {key: (stamp, value) for key, value in new.items()}
        context = self._context
        stored = self._table.get_for_update(context.key_group, context.key, self._namespace)
        if stored is None:
            self._table.put(context.key_group, context.key, self._namespace, timed)
            self._written(context.key_group, context.key)
        else:
            stored.update(timed)

    def size(self) -> int:
        """Return the number of entries that live; they get no new time."""
        limit = self._expiry.limit
        return sum(stamp > limit for stamp, _ in (self._raw() or {}).values())

    def is_empty(self) -> bool:
        """Return whether no entry lives.

        Flink's asks the map as it is stored, so there expired entries may count.
        """
        limit = self._expiry.limit
        return all(stamp <= limit for stamp, _ in (self._raw() or {}).values())

    # -- all entries --------------------------------------------------------------------------------------

    def entries(self) -> MapStateIterator[K, V]:
        """Iterate over the entries that live; those that are shown are read, those expired are removed."""
        self._expiry.accessed()
        context = self._context
        address = context.key_group, context.key, self._namespace
        return _TtlMapStateIterator(self._name, self._table, address, self._check_entry, self._expiry)

    def items(self) -> Iterator[tuple[K, V | None]]:
        """Iterate over the entries that live as pairs."""
        entries = self._all_live()
        if entries is None:
            return iter(self._entries().items())
        return zip(entries, map(_VALUE, entries.values()), strict=True)

    def keys(self) -> Iterator[K]:
        """Iterate over the map keys of the entries that live."""
        entries = self._all_live()
        return iter(self._entries() if entries is None else entries)

    def values(self) -> Iterator[V | None]:
        """Iterate over the values of the entries that live."""
        entries = self._all_live()
        return iter(self._entries().values()) if entries is None else map(_VALUE, entries.values())

    # -- many keys ----------------------------------------------------------------------------------------

    def get_many(
        self, keys: Iterable[Any], key_groups: Sequence[int] | None = None
    ) -> list[dict[K, V | None]]:
        """Return the whole map, as far as it lives, of each of several keys."""
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

    def put_many(
        self,
        keys: Iterable[Any],
        map_keys: Iterable[K],
        values: Iterable[V | None],
        key_groups: Sequence[int] | None = None,
    ) -> None:
        """Set one entry, which begins to live, in the map of each of several keys."""
        keys, groups = self._context.locate(keys, key_groups)
        map_column = self._column(map_keys, keys, "map keys")
        column = self._column(values, keys)
        for map_key, value in zip(map_column, column, strict=True):
            if not self._is_key(map_key) or (value is not None and not self._is_value(value)):
                self._check_entry(map_key, value)
        if self._canonical is not None:
            map_column = list(map(self._canonical, map_column))
        self._expiry.accessed()
        table, namespace, stamp = self._table, self._namespace, self._time.stamp
        for group, key, map_key, value in zip(groups, keys, map_column, column, strict=True):
            entries = table.get_for_update(group, key, namespace)
            if entries is None:
                table.put(group, key, namespace, {map_key: (stamp, value)})
                self._written(group, key)
            else:
                entries[map_key] = stamp, value

    # -- within -------------------------------------------------------------------------------------------

    def _all_live(self) -> dict[K, tuple[int, V | None]] | None:
        """Return the stored entries where it is known without looking that all of them live."""
        if self._refreshes or self._time.now >= self._cleanup.all_live_until:
            return None
        return self._raw() or {}

    def _entries(self) -> dict[K, V | None]:
        """Return the entries that live without their timestamps, as every read shows them."""
        entries = self._raw()
        return {} if entries is None else self._shown(entries)

    def _raw(self) -> dict[K, tuple[int, V | None]] | None:
        self._expiry.accessed()
        context = self._context
        return cast(
            "dict[K, tuple[int, V | None]] | None",
            self._table.get(context.key_group, context.key, self._namespace),
        )

    def _shown(self, timed: dict[K, tuple[int, V | None]]) -> dict[K, V | None]:
        """Return what a read of these entries shows, and do to the stored ones what a read does."""
        limit = self._expiry.limit
        living = {key: value for key, (stamp, value) in timed.items() if stamp > limit}
        shown = living
        if len(living) < len(timed):
            if self._expiry.shows_expired:
                shown = {key: value for key, (_, value) in timed.items()}
            self._drop([key for key in timed if key not in living])
        if self._refreshes and living:
            stamp = self._time.stamp
            self._for_update().update({key: (stamp, value) for key, value in living.items()})
        return shown

    def _for_update(self) -> dict[K, tuple[int, V | None]]:
        """Return the stored map, which is there, to be changed."""
        context = self._context
        return cast(
            "dict[K, tuple[int, V | None]]",
            self._table.get_for_update(context.key_group, context.key, self._namespace),
        )

    def _drop(self, keys: list[K]) -> None:
        entries = self._for_update()
        for key in keys:
            del entries[key]
        if not entries:
            self.clear()

    def _written(self, group: int, key: Any) -> None:
        if self._expiry.index is not None:
            self._expiry.index.written(group, key, self._namespace)


class _TtlMapStateIterator(MapStateIterator[K, V]):
    """Looks for the next living entry in `has_next`, so there is nothing to remove afterwards (TTL-19)."""

    __slots__ = ("_expiry",)

    def __init__(
        self,
        name: str,
        table: AnyStateTable,
        address: tuple[int, Any, Any],
        check: Callable[[K, V | None], None],
        expiry: StateExpiry,
    ) -> None:
        super().__init__(name, table, address, check)
        self._expiry = expiry

    def has_next(self) -> bool:
        """Return whether there is another entry; expired ones on the way are removed."""
        self._shown = []
        if self._expiry.shows_expired:
            return super().has_next()
        limit = self._expiry.limit
        while super().has_next():
            key = self._keys[-1]
            entries: Any = self._table.get(*self._address)
            if entries[key][0] > limit:
                return True
            self._remove(key)
        return False

    def __next__(self) -> MapStateEntry[K, V]:
        entry = super().__next__()
        stamp, value = cast("tuple[int, V | None]", entry.value)
        entry.value = value
        if stamp <= self._expiry.limit:
            self._remove(entry.key)
            self._shown = []
        elif self._expiry.refreshes:
            self._store(entry.key, value)
        return entry

    def remove(self) -> None:
        """Remove the entry that was shown last, directly after it was shown.

        Raises
        ------
        NothingToRemoveError
            Also after `has_next`, and where the entry was expired and so is removed already.
        """
        if not self._shown:
            raise NothingToRemoveError(self._name)
        super().remove()

    def _store(self, key: K, value: V | None) -> None:
        super()._store(key, (self._expiry.time.stamp, value))  # type: ignore[arg-type]
        if self._expiry.index is not None:
            self._expiry.index.written(*self._address)
