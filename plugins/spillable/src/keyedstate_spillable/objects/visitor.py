"""A walk over a table of two tiers that leaves every entry in its tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from keyedstate.backend import IncrementalVisitor, StateEntry
from keyedstate.keygroups import KeyGroupRange


class PeekingTable(Protocol):
    """A table that shows an entry without loading it."""

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the table owns."""

    def peek(self, key_group: int, key: Any, namespace: Any) -> tuple[Any] | None:
        """Return the value of an entry, in a tuple, and leave the entry in its tier; None without one."""

    def put(self, key_group: int, key: Any, namespace: Any, value: Any) -> None:
        """Write a value."""

    def remove(self, key_group: int, key: Any, namespace: Any) -> None:
        """Remove the entry if there is one."""


class TieredVisitor(IncrementalVisitor[Any, Any, Any]):
    """Shows the entries of one key group after the other.

    Parameters
    ----------
    table : PeekingTable
    addresses_of : callable
        Returns the keys and namespaces of a key group.
    batch_size : int
    """

    def __init__(
        self,
        table: PeekingTable,
        addresses_of: Callable[[int], list[tuple[Any, Any]]],
        batch_size: int,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"a visitor shows at least 1 entry a step, not {batch_size}")
        self._table = table
        self._batch_size = batch_size
        self._walk = (
            (key_group, key, namespace)
            for key_group in table.key_groups
            for key, namespace in addresses_of(key_group)
        )

    def next_entries(self) -> Sequence[StateEntry[Any, Any, Any]]:
        shown: list[StateEntry[Any, Any, Any]] = []
        for key_group, key, namespace in self._walk:
            found = self._table.peek(key_group, key, namespace)
            if found is not None:  # otherwise it was removed meanwhile
                shown.append(StateEntry(key_group, key, namespace, found[0]))
            if len(shown) == self._batch_size:
                break
        return shown

    def update(self, entry: StateEntry[Any, Any, Any], value: Any) -> None:
        self._table.put(entry.key_group, entry.key, entry.namespace, value)

    def remove(self, entry: StateEntry[Any, Any, Any]) -> None:
        self._table.remove(entry.key_group, entry.key, entry.namespace)
