"""Map state: a map per key and namespace (Flink's ``MapState``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.errors import UnorderedKeyError
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.handles import (
    StateDescriptor,
    StateHandle,
    check_type,
    check_value,
    listed,
    require_mapping,
    stretches,
)
from keyedstate.state.kinds.map_iterator import MapStateIterator
from keyedstate.state.ttl.config import Ttl
from keyedstate.state.type_order import SortKey, sort_key
from keyedstate.types import TypeSerializer, map_of, value_checker
from keyedstate.types.collections.maps import MapSerializer

K = TypeVar("K")
V = TypeVar("V")


class MapStateHandle(StateHandle, Generic[K, V]):
    """A map per key and namespace; it is there as long as it has an entry.

    Values may be None; keys only where their type is nullable.
    """

    __slots__ = ("_canonical", "_is_key", "_is_value", "_serializer")

    def __init__(
        self, name: str, table: AnyStateTable, context: KeyContext, serializer: MapSerializer[K, V]
    ) -> None:
        super().__init__(name, table, context)
        self._serializer = serializer
        self._is_key = value_checker(serializer.key_serializer)
        self._is_value = value_checker(serializer.value_serializer)
        keys = serializer.key_serializer
        #: Makes one NaN of all, and zero of negative zero; None where the key type has no such values.
        self._canonical = keys.canonical if keys.needs_canonical else None

    # -- one entry ----------------------------------------------------------------------------------------

    def get(self, key: K) -> V | None:
        """Return the value under a map key, or None.

        Raises
        ------
        StateValueError
            Where nothing can be under the key, since it is not of the declared type.
        """
        entries = self._entries()
        try:
            if entries is not None:
                found = entries.get(key if self._canonical is None else self._key(key))
                if found is not None:
                    return found
        except TypeError:  # it has no hash
            self._check_key(key)
            raise
        # Only now: a key that is there needs no look at its type.
        self._check_key(key)
        return None

    def contains(self, key: K) -> bool:
        """Return whether a map key is there, also one whose value is None.

        Raises
        ------
        StateValueError
            As `get`.
        """
        entries = self._entries()
        try:
            if entries is not None and (key if self._canonical is None else self._key(key)) in entries:
                return True
        except TypeError:  # it has no hash
            self._check_key(key)
            raise
        self._check_key(key)
        return False

    def put(self, key: K, value: V | None) -> None:
        """Set the value under a map key.

        Raises
        ------
        StateValueError
            Where the key or the value is not of the declared type; the state stays as it was.
        """
        if not self._is_key(key) or (value is not None and not self._is_value(value)):
            self._check_entry(key, value)
        if self._canonical is not None:
            key = self._canonical(key)
        context = self._context
        entries = self._table.get_for_update(context.key_group, context.key, self._namespace)
        if entries is None:
            self._table.put(context.key_group, context.key, self._namespace, {key: value})
        else:
            entries[key] = value

    def remove(self, key: K) -> None:
        """Remove a map key if it is there.

        Raises
        ------
        StateValueError
            Where it is not of the declared type.
        """
        self._check_key(key)
        context = self._context
        entries = self._table.get_for_update(context.key_group, context.key, self._namespace)
        if entries is None:
            return
        entries.pop(key if self._canonical is None else self._canonical(key), None)
        if not entries:
            self.clear()

    # -- several entries ----------------------------------------------------------------------------------

    def get_all(self, keys: Iterable[K]) -> dict[K, V | None]:
        """Return the entries of those among several map keys that are there, in their order.

        Raises
        ------
        StateValueError
            Where one of them is not of the declared type.
        """
        wanted = self._map_keys(keys)
        entries = self._entries()
        return {} if entries is None else {key: entries[key] for key in wanted if key in entries}

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Set several; either all of them or, where one is refused, none.

        Raises
        ------
        StateValueError
            As `put`.
        """
        new = self._checked(entries)
        if not new:
            return
        context = self._context
        stored = self._table.get_for_update(context.key_group, context.key, self._namespace)
        if stored is None:
            self._table.put(context.key_group, context.key, self._namespace, new)
        else:
            stored.update(new)

    def remove_all(self, keys: Iterable[K]) -> None:
        """Remove those among several map keys that are there; all of them or, where one is refused, none.

        Raises
        ------
        StateValueError
            Where one of them is not of the declared type.
        """
        unwanted = self._map_keys(keys)
        context = self._context
        entries = self._table.get_for_update(context.key_group, context.key, self._namespace)
        if entries is None:
            return
        for key in unwanted:
            entries.pop(key, None)
        if not entries:
            self.clear()

    def size(self) -> int:
        """Return the number of entries."""
        return len(self._entries() or ())

    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        return not self._entries()

    # -- all entries --------------------------------------------------------------------------------------

    def entries(self) -> MapStateIterator[K, V]:
        """Iterate over the entries with an iterator that removes, and entries that are written through.

        It belongs to the key and namespace at which it was made, and the map may be changed meanwhile.  Where
        entries are only read, `items` is several times faster.
        """
        context = self._context
        address = context.key_group, context.key, self._namespace
        return MapStateIterator(self._name, self._table, address, self._check_entry)

    def iterator(self) -> MapStateIterator[K, V]:
        """Return what `entries` returns (Flink has both)."""
        return self.entries()

    def items(self) -> Iterator[tuple[K, V | None]]:
        """Iterate over the entries as pairs; the map must not be changed meanwhile."""
        return iter((self._entries() or {}).items())

    def keys(self) -> Iterator[K]:
        """Iterate over the map keys; the map must not be changed meanwhile."""
        return iter((self._entries() or {}).keys())

    def values(self) -> Iterator[V | None]:
        """Iterate over the values; the map must not be changed meanwhile."""
        return iter((self._entries() or {}).values())

    # -- in the order of map keys -------------------------------------------------------------------------
    # A dict has none, so each of these walks over the whole map, and `between` sorts what it finds.

    def between(self, low: K | None = None, high: K | None = None) -> list[tuple[K, V | None]]:
        """Return the entries from one map key to another, both included, in ascending order.

        Parameters
        ----------
        low, high : optional
            None for no bound.

        Raises
        ------
        UnorderedKeyError
            Where the type of the map keys has no order.
        StateValueError
            Where a bound is not of the type of the map keys.

        Notes
        -----
        The order is Spark's ascending one: NaN comes last, and a null inside a tuple first.
        """
        order = self._order()
        lowest, highest = (None if bound is None else order(self._key(bound)) for bound in (low, high))
        entries = self._entries() or {}
        found = [
            (place, key)
            for place, key in ((order(key), key) for key in entries)
            if (lowest is None or lowest <= place) and (highest is None or place <= highest)
        ]
        found.sort(key=itemgetter(0))
        return [(key, entries[key]) for _, key in found]

    def first(self) -> tuple[K, V | None] | None:
        """Return the entry with the least map key, or None where there is none.

        Raises
        ------
        UnorderedKeyError
            Where the type of the map keys has no order.
        """
        order = self._order()
        return min(self.items(), key=lambda item: order(item[0]), default=None)

    def last(self) -> tuple[K, V | None] | None:
        """Return the entry with the greatest map key, or None where there is none.

        Raises
        ------
        UnorderedKeyError
            Where the type of the map keys has no order.
        """
        order = self._order()
        return max(self.items(), key=lambda item: order(item[0]), default=None)

    # -- many keys ----------------------------------------------------------------------------------------

    def get_many(
        self, keys: Iterable[Any], key_groups: Sequence[int] | None = None
    ) -> list[dict[K, V | None]]:
        """Return the whole map of each of several keys, as dicts of the caller's own.

        See `KeyContext.locate` for keys and key groups.
        """
        keys, groups = self._context.locate(keys, key_groups)
        maps: list[dict[K, V | None]] = []
        for rows in stretches(len(keys)):
            found = self._table.get_many(groups[rows], keys[rows], self._namespace)
            maps += [{} if entries is None else entries.copy() for entries in found]
        return maps

    def put_many(
        self,
        keys: Iterable[Any],
        map_keys: Iterable[K],
        values: Iterable[V | None],
        key_groups: Sequence[int] | None = None,
    ) -> None:
        """Set one entry in the map of each of several keys; a key may come more than once.

        Raises
        ------
        StateValueError
            As `put`; no state is changed.
        """
        keys, groups = self._context.locate(keys, key_groups)
        map_column = self._column(map_keys, keys, "map keys")
        column = self._column(values, keys)
        self._check_map_keys(map_column)
        self._check_column(self._serializer.value_serializer, column)
        if self._canonical is not None:
            map_column = list(map(self._canonical, map_column))
        for rows in stretches(len(keys)):
            found = self._table.get_many_for_update(groups[rows], keys[rows], self._namespace)
            new: dict[Any, dict[K, V | None]] = {}
            for key, entries, map_key, value in zip(
                keys[rows], found, map_column[rows], column[rows], strict=True
            ):
                if entries is not None:
                    entries[map_key] = value
                elif key in new:
                    new[key][map_key] = value
                else:
                    new[key] = {map_key: value}
            if new:
                self._put_new(groups[rows], keys[rows], new)

    # -- within -------------------------------------------------------------------------------------------

    def _entries(self) -> dict[K, V | None] | None:
        # Asked for at every access and never held: after a snapshot the table hands out a copy.
        context = self._context
        return cast(
            "dict[K, V | None] | None", self._table.get(context.key_group, context.key, self._namespace)
        )

    def _order(self) -> SortKey:
        keys = self._serializer.key_serializer
        order = sort_key(keys)
        if order is None:
            raise UnorderedKeyError(self._name, str(keys))
        return order

    def _key(self, key: K) -> K:
        """Return a map key as it is stored, or refuse it."""
        self._check_key(key)
        return key if self._canonical is None else self._canonical(key)

    def _map_keys(self, keys: Iterable[K]) -> list[K]:
        """Return several map keys as they are stored, or refuse them."""
        found = listed(self._name, keys, "map keys")
        self._check_map_keys(found)
        return found if self._canonical is None else list(map(self._canonical, found))

    def _check_key(self, key: K) -> None:
        """Raise `StateValueError` unless a map key is of the declared type."""
        if not self._is_key(key):
            check_value(self._name, self._serializer.key_serializer, key, "the map key")

    def _checked(self, entries: Mapping[K, V | None]) -> dict[K, V | None]:
        """Return entries as they are stored, in a dict of their own, or refuse them."""
        require_mapping(self._name, entries)
        new = dict(entries)
        self._check_map_keys(new)
        self._check_column(self._serializer.value_serializer, new.values())
        if self._canonical is None:
            return new
        return {self._canonical(key): value for key, value in new.items()}

    def _check_map_keys(self, keys: Collection[K]) -> None:
        """Refuse map keys of which one is not of their type."""
        serializer = self._serializer.key_serializer
        if not serializer.are_values(keys):
            for key in keys:
                self._check_key(key)

    def _check_entry(self, key: K, value: V | None) -> None:
        """Raise `StateValueError` unless key and value are of the declared types."""
        self._check_key(key)
        if value is not None:
            check_value(self._name, self._serializer.value_serializer, value)


class MapState(StateDescriptor[MapStateHandle[K, V]]):
    """A map per key.

    Parameters
    ----------
    name : str
    key_type, value_type : TypeSerializer
        For example ``types.STRING`` and ``types.INT64``.
    ttl : Ttl, optional
        How long each entry lives; for ever without.
    """

    kind = StateKind.MAP
    plain_serializer: MapSerializer[K, V]

    def __init__(
        self,
        name: str,
        key_type: TypeSerializer[K],
        value_type: TypeSerializer[V],
        *,
        ttl: Ttl | None = None,
    ) -> None:
        check_type(name, "key type", key_type)
        check_type(name, "value type", value_type)
        super().__init__(name, map_of(key_type, value_type), ttl)

    def create_handle(self, table: AnyStateTable, context: KeyContext) -> MapStateHandle[K, V]:
        return MapStateHandle(self.name, table, context, self.plain_serializer)
