"""Broadcast state: a map that is the same on every task (Flink's ``BroadcastState``).

The rows of a broadcast DataFrame reach every task and write it; the rows of a key read it.  Mutable values
are copied on their way in and out: a change in place, on one task, would make the tasks differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from keyedstate.errors import ReadOnlyBroadcastStateError
from keyedstate.operator_state import OperatorStateKind, OperatorStateMeta
from keyedstate.state.kinds.checks import MapKeyChecks, check_type, check_value, require_mapping
from keyedstate.state.operator.list_states import (
    BroadcastSide,
    OperatorStateAccessor,
    OperatorStateDescriptor,
)
from keyedstate.types import TypeSerializer, map_of

K = TypeVar("K")
V = TypeVar("V")


class BroadcastStateAccessor(MapKeyChecks[K], OperatorStateAccessor, Generic[K, V]):
    """One map.  Values may be None; keys may not.

    `put`, `put_all`, `remove` and `clear` raise `ReadOnlyBroadcastStateError` outside ``process_broadcast``.
    """

    __slots__ = ("_canonical", "_copy", "_entries", "_is_key", "_key_type", "_side", "_value_type")

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
        self._key_type = key
        self._value_type = value
        self._side = side
        self._is_key = key.is_value
        self._canonical = key.canonical if key.needs_canonical else None
        #: None where values cannot change in place.
        self._copy = None if value.immutable else value.copy

    # -- on both sides ------------------------------------------------------------------------------------

    def get(self, key: K) -> V | None:
        """Return the value under a key, a copy where it is mutable, or None."""
        try:
            value = self._entries.get(key if self._canonical is None else self._key(key))
        except TypeError:  # it has no hash
            self._check_key(key)
            raise
        if value is None:
            # Only now: the type of a key that was found is right.
            self._check_key(key)
            return None
        return value if self._copy is None else self._copy(value)

    def contains(self, key: K) -> bool:
        """Return whether the map has a key, also one whose value is None."""
        return self._key(key) in self._entries

    def items(self) -> Iterator[tuple[K, V | None]]:
        """Iterate over the present entries; the map may be changed meanwhile."""
        entries = list(self._entries.items())
        copy = self._copy
        if copy is None:
            return iter(entries)
        return ((key, None if value is None else copy(value)) for key, value in entries)

    def keys(self) -> Iterator[K]:
        """Iterate over the present keys; the map may be changed meanwhile."""
        return iter(list(self._entries))

    def values(self) -> Iterator[V | None]:
        """Iterate over the present values; the map may be changed meanwhile."""
        return (value for _, value in self.items())

    # -- on the broadcast side ----------------------------------------------------------------------------

    def put(self, key: K, value: V | None) -> None:
        """Set the value under a key."""
        self._check_writable()
        key, value = self._entry(key, value)
        self._entries[key] = value

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Set several entries; all of them or, on an error, none."""
        self._check_writable()
        require_mapping(self.name, entries)
        self._entries.update([self._entry(key, value) for key, value in entries.items()])

    def remove(self, key: K) -> None:
        """Remove a key if it exists."""
        self._check_writable()
        self._entries.pop(self._key(key), None)

    def clear(self) -> None:
        """Remove all entries."""
        self._check_writable()
        self._entries.clear()

    def _entry(self, key: K, value: V | None) -> tuple[K, V | None]:
        """Return key and value as they are stored, or refuse them."""
        key = self._key(key)
        if value is not None:
            check_value(self.name, self._value_type, value)
            if self._copy is not None:
                value = self._copy(value)
        return key, value

    def _check_writable(self) -> None:
        if not self._side.current:
            raise ReadOnlyBroadcastStateError(self.name)


class BroadcastState(OperatorStateDescriptor[BroadcastStateAccessor[K, V]]):
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

    def create_accessor(
        self, meta: OperatorStateMeta, content: Any, side: BroadcastSide
    ) -> BroadcastStateAccessor[K, V]:
        return BroadcastStateAccessor(self.name, content, meta.key_serializer, meta.value_serializer, side)

    def __repr__(self) -> str:
        return f"BroadcastState({self.name!r}, {self.meta.key_serializer!r}, {self.meta.value_serializer!r})"
