"""Map state: a map per key and namespace (Flink's ``MapState``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar, cast

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.state.base import StateDescriptor, StateHandle, check_type
from keyedstate.state.context import KeyContext
from keyedstate.state.errors import StateValueError
from keyedstate.types import TypeSerializer, ValueTypeError, map_of
from keyedstate.types.maps import MapSerializer

K = TypeVar("K")
V = TypeVar("V")


class MapStateHandle(StateHandle, Generic[K, V]):
    """A map per key and namespace; it is there as long as it has an entry.

    Values may be None; keys only where their type is nullable.
    """

    __slots__ = ("_canonical", "_check_key", "_check_value")

    def __init__(
        self, name: str, table: AnyStateTable, context: KeyContext, serializer: MapSerializer[K, V]
    ) -> None:
        super().__init__(name, table, context)
        self._check_key = serializer.key_serializer.check
        self._check_value = serializer.value_serializer.check
        keys = serializer.key_serializer
        #: Makes one NaN of all, and zero of negative zero; None where the key type has no such values.
        self._canonical = keys.canonical if keys.needs_canonical else None

    def get(self, key: K) -> V | None:
        """Return the value under a map key, or None."""
        entries = self._entries()
        if entries is None:
            return None
        return entries.get(key if self._canonical is None else self._canonical(key))

    def contains(self, key: K) -> bool:
        """Return whether a map key is there, also one whose value is None."""
        entries = self._entries()
        if entries is None:
            return False
        return (key if self._canonical is None else self._canonical(key)) in entries

    def put(self, key: K, value: V | None) -> None:
        """Set the value under a map key.

        Raises
        ------
        StateValueError
            Where the key or the value is not of the declared type; the state stays as it was.
        """
        self._check(key, value)
        if self._canonical is not None:
            key = self._canonical(key)
        entries = self._entries()
        if entries is None:
            context = self._context
            self._table.put(context.key_group, context.key, self._namespace, {key: value})
        else:
            entries[key] = value

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Set several; either all of them or, where one is refused, none."""
        for key, value in entries.items():
            self._check(key, value)
        if not entries:
            return
        new = dict(entries)
        if self._canonical is not None:
            new = {self._canonical(key): value for key, value in entries.items()}
        stored = self._entries()
        if stored is None:
            context = self._context
            self._table.put(context.key_group, context.key, self._namespace, new)
        else:
            stored.update(new)

    def remove(self, key: K) -> None:
        """Remove a map key if it is there."""
        entries = self._entries()
        if entries is None:
            return
        entries.pop(key if self._canonical is None else self._canonical(key), None)
        if not entries:
            self.clear()

    def items(self) -> Iterator[tuple[K, V | None]]:
        """Iterate over the entries; the map must not be changed meanwhile."""
        return iter((self._entries() or {}).items())

    def keys(self) -> Iterator[K]:
        """Iterate over the map keys; the map must not be changed meanwhile."""
        return iter((self._entries() or {}).keys())

    def values(self) -> Iterator[V | None]:
        """Iterate over the values; the map must not be changed meanwhile."""
        return iter((self._entries() or {}).values())

    def size(self) -> int:
        """Return the number of entries."""
        return len(self._entries() or ())

    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        return self._entries() is None

    def _entries(self) -> dict[K, V | None] | None:
        # Asked for at every access and never held: after a snapshot the table hands out a copy.
        context = self._context
        return cast(
            "dict[K, V | None] | None", self._table.get(context.key_group, context.key, self._namespace)
        )

    def _check(self, key: K, value: V | None) -> None:
        try:
            self._check_key(key)
            if value is not None:
                self._check_value(value)
        except ValueTypeError as error:
            raise StateValueError(self._name, str(error)) from None


class MapState(StateDescriptor[MapStateHandle[K, V]]):
    """A map per key.

    Parameters
    ----------
    name : str
    key_type, value_type : TypeSerializer
        For example ``types.STRING`` and ``types.INT64``.
    """

    kind = StateKind.MAP
    serializer: MapSerializer[K, V]

    def __init__(self, name: str, key_type: TypeSerializer[K], value_type: TypeSerializer[V]) -> None:
        check_type(name, "key type", key_type)
        check_type(name, "value type", value_type)
        super().__init__(name, map_of(key_type, value_type))

    def create_handle(self, table: AnyStateTable, context: KeyContext) -> MapStateHandle[K, V]:
        """Return the handle over a table of this state."""
        return MapStateHandle(self.name, table, context, self.serializer)
