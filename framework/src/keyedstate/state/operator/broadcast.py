"""Broadcast state: a map that is the same on every task (Flink's ``BroadcastState``).

It is written by the rows of a broadcast DataFrame, which reach every task, and read by the rows of a key.
What is put in and taken out is copied where it is mutable, so that nothing but `BroadcastStateHandle.put` and
its like changes the map: a change in place, on one task, would make the tasks differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from keyedstate.errors import ReadOnlyBroadcastStateError
from keyedstate.operator_state import OperatorStateKind, OperatorStateMeta
from keyedstate.state.kinds.handles import (
    check_type,
    check_value,
    require_mapping,
)
from keyedstate.state.operator.list_states import BroadcastSide, OperatorStateDescriptor, OperatorStateHandle
from keyedstate.types import TypeSerializer, map_of

K = TypeVar("K")
V = TypeVar("V")


class BroadcastStateHandle(OperatorStateHandle, Generic[K, V]):
    """One map, which only the broadcast side may change.

    Values may be None; keys may not.
    """

    __slots__ = ("_canonical", "_copy", "_entries", "_key", "_side", "_value")

    def __init__(
        self,
        name: str,
        entries: dict[K, V | None],
        key: TypeSerializer[K],
        value: TypeSerializer[V],
        side: BroadcastSide,
    ) -> None:
        super().__init__(name)
        self._entries = entries
        self._key = key
        self._value = value
        self._side = side
        #: Makes one NaN of all, and zero of negative zero; None where the key type has no such values.
        self._canonical = key.canonical if key.needs_canonical else None
        #: None where values cannot change in place.
        self._copy = None if value.immutable else value.copy

    # -- on both sides ------------------------------------------------------------------------------------

    def get(self, key: K) -> V | None:
        """Return the value under a key, a copy where it is mutable, or None.

        Raises
        ------
        StateValueError
            Where nothing can be under the key, since it is not of the declared type.
        """
        try:
            value = self._entries.get(key if self._canonical is None else self._stored(key))
        except TypeError:  # it has no hash
            self._check_key(key)
            raise
        if value is None:
            # Only now: a key that is there needs no look at its type.
            self._check_key(key)
            return None
        return value if self._copy is None else self._copy(value)

    def contains(self, key: K) -> bool:
        """Return whether a key is there, also one whose value is None.

        Raises
        ------
        StateValueError
            As `get`.
        """
        return self._stored(key) in self._entries

    def items(self) -> Iterator[tuple[K, V | None]]:
        """Iterate over the entries that are there now; the map may be changed meanwhile."""
        entries = list(self._entries.items())
        copy = self._copy
        if copy is None:
            return iter(entries)
        return ((key, None if value is None else copy(value)) for key, value in entries)

    def keys(self) -> Iterator[K]:
        """Iterate over the keys that are there now; the map may be changed meanwhile."""
        return iter(list(self._entries))

    def values(self) -> Iterator[V | None]:
        """Iterate over the values that are there now; the map may be changed meanwhile."""
        return (value for _, value in self.items())

    # -- on the broadcast side ----------------------------------------------------------------------------

    def put(self, key: K, value: V | None) -> None:
        """Set the value under a key.

        Raises
        ------
        ReadOnlyBroadcastStateError
            Outside ``process_broadcast``, as with every method that changes the map.
        StateValueError
            Where the key or the value is not of the declared type; the state stays as it was.
        """
        self._check_writable()
        key, value = self._entry(key, value)
        self._entries[key] = value

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Set several; either all of them or, where one is refused, none.

        Raises
        ------
        ReadOnlyBroadcastStateError, StateValueError
            As `put`.
        """
        self._check_writable()
        require_mapping(self._name, entries)
        self._entries.update([self._entry(key, value) for key, value in entries.items()])

    def remove(self, key: K) -> None:
        """Remove a key if it is there.

        Raises
        ------
        ReadOnlyBroadcastStateError
        StateValueError
            Where the key is not of the declared type.
        """
        self._check_writable()
        self._entries.pop(self._stored(key), None)

    def clear(self) -> None:
        """Remove all entries."""
        self._check_writable()
        self._entries.clear()

    def _entry(self, key: K, value: V | None) -> tuple[K, V | None]:
        """Return key and value as they are stored, or refuse them."""
        key = self._stored(key)
        if value is not None:
            check_value(self._name, self._value, value)
            if self._copy is not None:
                value = self._copy(value)
        return key, value

    def _stored(self, key: K) -> K:
        """Return a key as it is stored, or refuse it."""
        self._check_key(key)
        return key if self._canonical is None else self._canonical(key)

    def _check_key(self, key: K) -> None:
        """Raise `StateValueError` unless a key is of the declared type."""
        if not self._key.is_value(key):
            check_value(self._name, self._key, key, "the map key")

    def _check_writable(self) -> None:
        if not self._side.current:
            raise ReadOnlyBroadcastStateError(self._name)


class BroadcastState(OperatorStateDescriptor[BroadcastStateHandle[K, V]]):
    """A map that is the same on every task; for a `keyedstate.runtime.KeyedBroadcastProcessFunction`.

    Parameters
    ----------
    name : str
    key_type, value_type : TypeSerializer
        For example ``types.STRING`` and ``types.INT64``.
    """

    def __init__(self, name: str, key_type: TypeSerializer[K], value_type: TypeSerializer[V]) -> None:
        check_type(name, "key type", key_type)
        check_type(name, "value type", value_type)
        # The keys of a dict, as those of a map state.
        map_of(key_type, value_type)
        super().__init__(OperatorStateMeta(name, OperatorStateKind.BROADCAST, key_type, value_type))

    def create_handle(
        self, meta: OperatorStateMeta, content: Any, side: BroadcastSide
    ) -> BroadcastStateHandle[K, V]:
        return BroadcastStateHandle(self.name, content, meta.key_serializer, meta.value_serializer, side)

    def __repr__(self) -> str:
        return f"BroadcastState({self.name!r}, {self.meta.key_serializer!r}, {self.meta.value_serializer!r})"
