"""The snapshot of a table of nested dicts: a view of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import TypeVar

from keyedstate.backend import EntryBatch, TableSnapshot
from keyedstate.keygroups import KeyGroupRange

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")


class LiveEntries(TableSnapshot[K, N, V]):
    """The live entries: valid until the next change, which is enough for a synchronous snapshot."""

    def __init__(self, group: Callable[[int], dict[N, dict[K, V]]]) -> None:
        self._group = group

    def batches(self, key_group: int, size: int) -> Iterator[EntryBatch[K, N, V]]:
        namespaces: list[N] = []
        keys: list[K] = []
        values: list[V] = []
        for namespace, entries in self._group(key_group).items():
            next_keys, next_values, left = iter(entries), iter(entries.values()), len(entries)
            while left:
                taken = min(left, size - len(keys))
                namespaces.extend(repeat(namespace, taken))
                keys.extend(islice(next_keys, taken))
                values.extend(islice(next_values, taken))
                left -= taken
                if len(keys) == size:
                    yield EntryBatch(namespaces, keys, values)
                    namespaces, keys, values = [], [], []
        if keys:
            yield EntryBatch(namespaces, keys, values)

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        return filter(self._group, key_groups)

    def release(self) -> None:
        """Do nothing: a view has copied nothing."""
