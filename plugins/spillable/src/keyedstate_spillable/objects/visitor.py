"""A walk over a table of two tiers that leaves every entry in its tier."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from keyedstate.backend import IncrementalVisitor, StateEntry, StateTable

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")


class WalkedTiers(StateTable[K, N, V]):
    """A table that shows an entry without loading it."""

    @abstractmethod
    def peek(self, key_group: int, key: K, namespace: N) -> tuple[V | None] | None:
        """Return the value of an entry, in a tuple, and leave the entry in its tier; None without one."""

    @abstractmethod
    def _addresses_of(self, key_group: int) -> list[tuple[K, N]]:
        """Return the keys and namespaces of the entries of a key group."""

    def visitor(self, batch_size: int) -> IncrementalVisitor[K, N, V]:
        """Return a visitor that lists the addresses of a key group when it reaches that.

        Raises
        ------
        ValueError
            If `batch_size` is below 1.
        """
        return _Visitor(self, self._addresses_of, batch_size)


class _Visitor(IncrementalVisitor[Any, Any, Any]):
    """Shows the entries of one key group after the other."""

    def __init__(
        self,
        table: WalkedTiers[Any, Any, Any],
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
