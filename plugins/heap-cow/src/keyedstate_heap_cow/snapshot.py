"""The snapshot of a table of copy-on-write maps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from keyedstate.backend import EntryBatch, TableSnapshot
from keyedstate.keygroups import KeyGroupRange

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")


class MapsSnapshot(TableSnapshot[K, N, V]):
    """The snapshots of the maps of consecutive key groups, from `first` on."""

    def __init__(self, maps: Sequence[Any], first: int) -> None:
        #: The snapshots by key group; a map without entries has none.
        self._taken: dict[int, Any] = {}
        try:
            for key_group, group in enumerate(maps, first):
                if len(group):
                    self._taken[key_group] = group.snapshot()
        except BaseException:
            self.release()
            raise

    def batches(self, key_group: int, size: int) -> Iterator[EntryBatch[K, N, V]]:
        taken = self._taken.get(key_group)
        if taken is not None:
            for namespaces, keys, values in taken.batches(size):
                yield EntryBatch(namespaces, keys, values)

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        return [key_group for key_group in self._taken if key_group in key_groups]

    def release(self) -> None:
        """Let the owner's maps forget the snapshot; safe in any thread."""
        for taken in self._taken.values():
            taken.release()
