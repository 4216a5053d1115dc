"""Map state: a map per key and namespace (Flink's ``MapState``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.errors import UnorderedKeyError
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.accessor import StateAccessor, StateDescriptor, chunks
from keyedstate.state.kinds.checks import MapKeyChecks, check_type, check_value, listed, require_mapping
from keyedstate.state.kinds.map_iterator import MapStateIterator
from keyedstate.state.ttl.config import Ttl
from keyedstate.state.type_order import SortKey, sort_key
from keyedstate.types import TypeSerializer, map_of, value_checker
from keyedstate.types.collections.maps import MapSerializer

K = TypeVar("K")
V = TypeVar("V")


class MapStateAccessor(MapKeyChecks[K], StateAccessor, Generic[K, V]):
    """A map per key and namespace; it exists as long as it has an entry.

    Values may be None; keys only where their type is nullable.
    """

    __slots__ = ("_canonical", "_is_key", "_is_value", "_key_type", "_value_type")

    def __init__(self, descriptor: MapState[K, V], table: AnyStateTable, context: KeyContext) -> None:
        super().__init__(descriptor, table, context)
        keys = self._key_type = descriptor.plain_serializer.key_serializer
        self._value_type = descriptor.plain_serializer.value_serializer
        self._is_key = value_checker(keys)
        self._is_value = value_checker(self._value_type)
        self._canonical = keys.canonical if keys.needs_canonical else None

    # -- one entry ----------------------------------------------------------------------------------------

    def get(self, key: K) -> V | None:
        """Return the value under a map key, or None."""
        entries = self._entries()
        try:
            if entries is not None:
                found = entries.get(key if self._canonical is None else self._key(key))
                if found is not None:
                    return found
        except TypeError:  # it has no hash
            self._check_key(key)
            raise
        # Only now: the type of a key that was found is right.
        self._check_key(key)
        return None

    def contains(self, key: K) -> bool:
        """Return whether the map has a key, also one whose value is None."""
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
        """Set the value under a map key."""
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
        """Remove a map key if it exists."""
        if not self._is_key(key):
            self._check_key(key)
        self._drop([key if self._canonical is None else self._canonical(key)])

    # -- several entries ----------------------------------------------------------------------------------

    def get_all(self, keys: Iterable[K]) -> dict[K, V | None]:
        """Return the entries of those of several map keys that exist, in their order."""
        wanted = self._map_keys(keys)
        entries = self._entries()
        return {} if entries is None else {key: entries[key] for key in wanted if key in entries}

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Set several entries; all of them or, on an error, none."""
        require_mapping(self.name, entries)
        new = dict(entries)
        self._check_map_keys(new)
        self._check_column(self._value_type, new.values())
        if self._canonical is not None:
            new = {self._canonical(key): value for key, value in new.items()}
        if new:
            context = self._context
            self._put_entries(context.key_group, context.key, new)

    def _put_entries(self, group: int, key: Any, new: dict[K, V | None]) -> None:
        stored = self._table.get_for_update(group, key, self._namespace)
        if stored is None:
            self._table.put(group, key, self._namespace, new)
        else:
            stored.update(new)

    def remove_all(self, keys: Iterable[K]) -> None:
        """Remove those of several map keys that exist; all of them or, on an error, none."""
        self._drop(self._map_keys(keys))

    def _drop(self, keys: list[K], *, others: bool | None = None) -> None:
        """Remove map keys that may exist; all do if it is known whether the map has `others`."""
        context = self._context
        entries: Any = self._table.get_for_update(context.key_group, context.key, self._namespace)
        if entries is None:
            return
        if len(keys) > 1 or others is not None:
            remove_all = getattr(entries, "remove_all", None)
            if remove_all is not None:
                remove_all(keys, others=others)
                keys = []
        for key in keys:
            # A stored map would read the value to return it from `pop`.
            try:
                del entries[key]
            except KeyError:
                continue
        if others is False or (others is None and not entries):
            self.clear()

    def size(self) -> int:
        """Return the number of entries."""
        return len(self._entries() or ())

    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        return not self._entries()

    # -- all entries --------------------------------------------------------------------------------------

    def entries(self) -> MapStateIterator[K, V]:
        """Iterate over the entries with an iterator that removes, and entries that can be set.

        It keeps the current key and namespace, and the map may be changed meanwhile.  To read entries only,
        `items` is several times faster.
        """
        return MapStateIterator(self, self._check_entry)

    def iterator(self) -> MapStateIterator[K, V]:
        """Return what `entries` returns (Flink has both)."""
        return self.entries()

    def items(self) -> Iterator[tuple[K, V | None]]:
        """Iterate over the entries as pairs; the map must not be changed meanwhile."""
        return iter(self._readable().items())

    def keys(self) -> Iterator[K]:
        """Iterate over the map keys; the map must not be changed meanwhile."""
        return iter(self._readable())

    def values(self) -> Iterator[V | None]:
        """Iterate over the values; the map must not be changed meanwhile."""
        return iter(self._readable().values())

    # -- in the order of map keys -------------------------------------------------------------------------
    # A dict is not sorted, so each of these walks over the whole map, and `between` sorts what it finds.

    def between(self, low: K | None = None, high: K | None = None) -> list[tuple[K, V | None]]:
        """Return the entries from one map key to another, both included, ascending; None is no bound.

        The order is Spark's: NaN comes last, and a null inside a tuple first. Raises `UnorderedKeyError`
        where the type of the map keys has no order.
        """
        order = self._order()
        lowest, highest = (None if bound is None else order(self._key(bound)) for bound in (low, high))
        entries = self._readable()
        found = [
            (rank, key)
            for rank, key in ((order(key), key) for key in entries)
            if (lowest is None or lowest <= rank) and (highest is None or rank <= highest)
        ]
        found.sort(key=itemgetter(0))
        return [(key, entries[key]) for _, key in found]

    def first(self) -> tuple[K, V | None] | None:
        """Return the entry with the least map key in the order of `between`, or None."""
        order = self._order()
        return min(self.items(), key=lambda item: order(item[0]), default=None)

    def last(self) -> tuple[K, V | None] | None:
        """Return the entry with the greatest map key in the order of `between`, or None."""
        order = self._order()
        return max(self.items(), key=lambda item: order(item[0]), default=None)

    def _order(self) -> SortKey:
        order = sort_key(self._key_type)
        if order is None:
            raise UnorderedKeyError(self.name, str(self._key_type))
        return order

    # -- many keys ----------------------------------------------------------------------------------------

    def get_many(
        self, keys: Iterable[Any], key_groups: Sequence[int] | None = None
    ) -> list[dict[K, V | None]]:
        """Return the whole map of each of several keys, as new dicts, which may be changed."""
        keys, groups = self._context.locate(keys, key_groups)
        maps: list[dict[K, V | None]] = []
        for rows in chunks(len(keys)):
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
        """Set one entry in the map of each of several keys, all of them or, on an error, none.

        A key may be repeated.
        """
        keys, groups = self._context.locate(keys, key_groups)
        map_column = self._column(map_keys, keys, "map keys")
        column = self._column(values, keys)
        self._check_map_keys(map_column)
        self._check_column(self._value_type, column)
        if self._canonical is not None:
            map_column = list(map(self._canonical, map_column))
        self._put_columns(groups, keys, map_column, column)

    def _put_columns(
        self, groups: list[int], keys: list[Any], map_column: list[K], column: list[V | None]
    ) -> None:
        for rows in chunks(len(keys)):
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
        # Looked up at every access: after a snapshot the table returns a copy.
        context = self._context
        return cast(
            "dict[K, V | None] | None", self._table.get(context.key_group, context.key, self._namespace)
        )

    def _readable(self) -> dict[K, V | None]:
        """Return the entries, which must not be changed."""
        context = self._context
        found = self._table.get(context.key_group, context.key, self._namespace)
        # Not `found or {}`: a stored map would look up whether it is empty.
        return {} if found is None else found

    def _map_keys(self, keys: Iterable[K]) -> list[K]:
        """Return several map keys as they are stored, or refuse them."""
        found = listed(self.name, keys, "map keys")
        self._check_map_keys(found)
        return found if self._canonical is None else list(map(self._canonical, found))

    def _check_map_keys(self, keys: Collection[K]) -> None:
        if not self._key_type.are_values(keys):
            for key in keys:
                self._check_key(key)

    def _check_entry(self, key: K, value: V | None) -> None:
        self._check_key(key)
        if value is not None:
            check_value(self.name, self._value_type, value)


class MapState(StateDescriptor[MapStateAccessor[K, V]]):
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
    _accessor_class = MapStateAccessor
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
