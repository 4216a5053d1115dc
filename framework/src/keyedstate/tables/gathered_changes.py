"""Changes of a table that are gathered in lists when they are captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from keyedstate.backend import AddressBatch, EntryBatch, TableChanges
from keyedstate.keygroups import KeyGroupRange

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")


@dataclass(frozen=True)
class GroupChanges(Generic[K, N, V]):
    """The changes of one key group: the written entries and the removed addresses."""

    written: EntryBatch[K, N, V]
    removed: AddressBatch[K, N]


class GatheredChanges(TableChanges[K, N, V]):
    """Changes that are gathered in lists by key group when they are captured.

    `release` is called once, by the method: it lets the owner change the values again.
    """

    def __init__(
        self, groups: Mapping[int, GroupChanges[K, N, V]], release: Callable[[], None] = lambda: None
    ) -> None:
        self._groups = groups
        self._release = release

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        return [key_group for key_group in sorted(self._groups) if key_group in key_groups]

    def __len__(self) -> int:
        return sum(len(group.written) + len(group.removed) for group in self._groups.values())

    def written(self, key_group: int, size: int) -> Iterator[EntryBatch[K, N, V]]:
        group = self._groups.get(key_group)
        if group is not None:
            batch = group.written
            for start in range(0, len(batch), size):
                part = slice(start, start + size)
                yield EntryBatch(batch.namespaces[part], batch.keys[part], batch.values[part])

    def removed(self, key_group: int, size: int) -> Iterator[AddressBatch[K, N]]:
        group = self._groups.get(key_group)
        if group is not None:
            batch = group.removed
            for start in range(0, len(batch), size):
                part = slice(start, start + size)
                yield AddressBatch(batch.namespaces[part], batch.keys[part])

    def release(self) -> None:
        self._groups = {}
        release, self._release = self._release, lambda: None
        release()
