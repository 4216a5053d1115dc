"""The iterator over a map state: it removes entries, and sets their values (Flink's ``entries()``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from keyedstate.errors import NothingToRemoveError
from keyedstate.state.kinds.accessor import StateAccessor

K = TypeVar("K")
V = TypeVar("V")


class MapStateEntry(Generic[K, V]):
    """An entry that an iterator shows; it equals the pair of its key and value, and unpacks to it."""

    __slots__ = ("_write", "key", "value")

    # It can change, and equals a tuple, which has a hash: so it must not be in a set.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, key: K, value: V | None, write: Callable[[K, V | None], None]) -> None:
        self.key = key
        self.value = value
        self._write = write

    def set_value(self, value: V | None) -> None:
        """Put another value into the map, also where the entry was removed meanwhile."""
        self._write(self.key, value)
        self.value = value

    def __iter__(self) -> Iterator[Any]:
        return iter((self.key, self.value))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MapStateEntry):
            other = (other.key, other.value)
        return (self.key, self.value) == other if isinstance(other, tuple) else NotImplemented

    def __repr__(self) -> str:
        return f"MapStateEntry({self.key!r}, {self.value!r})"


class MapStateIterator(Iterator[MapStateEntry[K, V]], Generic[K, V]):
    """Shows the entries that a map had when the iterator was made, with their present values.

    Entries that are removed meanwhile are left out, added ones are not shown.
    """

    __slots__ = ("_address", "_check", "_keys", "_name", "_shown", "_table")

    def __init__(self, accessor: StateAccessor, check: Callable[[K, V | None], None]) -> None:
        self._name = accessor.name
        self._check = check
        self._table = accessor._table
        context = accessor._context
        self._address = context.key_group, context.key, accessor.namespace
        #: The map keys to come, the next one last.
        self._keys = list(self._table.get(*self._address) or ())[::-1]
        #: The map key that `remove` would remove, or none.
        self._shown: list[K] = []

    def has_next(self) -> bool:
        """Return whether there is another entry."""
        entries = self._table.get(*self._address) or ()
        while self._keys and self._keys[-1] not in entries:
            self._keys.pop()
        return bool(self._keys)

    def __next__(self) -> MapStateEntry[K, V]:
        if not self.has_next():
            raise StopIteration
        key = self._keys.pop()
        self._shown = [key]
        entries: dict[K, V | None] = self._table.get(*self._address) or {}
        return MapStateEntry(key, entries[key], self._write)

    def remove(self) -> None:
        """Remove the entry that was shown last from the map.

        Raises `NothingToRemoveError` before the first entry, and a second time for one entry.
        """
        if not self._shown:
            raise NothingToRemoveError(self._name)
        self._remove(self._shown.pop())

    def _remove(self, key: K) -> None:
        entries = self._table.get_for_update(*self._address)
        if entries is not None:
            # A stored map would read the value to return it from `pop`.
            with suppress(KeyError):
                del entries[key]
            if not entries:
                self._table.remove(*self._address)

    def _write(self, key: K, value: V | None) -> None:
        self._check(key, value)
        self._store(key, value)

    def _store(self, key: K, value: V | None) -> None:
        entries = self._table.get_for_update(*self._address)
        if entries is None:
            self._table.put(*self._address, {key: value})
        else:
            entries[key] = value
