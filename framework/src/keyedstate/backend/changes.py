"""What changed in a table since an epoch: the content of a delta of a checkpoint.

A table that tracks its changes is a `ChangeTracking` too; for any other table the framework notes the touched
addresses.  Both give the same changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from keyedstate.backend.table import EntryBatch
from keyedstate.keygroups import KeyGroupRange

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")


@dataclass(frozen=True)
class AddressBatch(Generic[K, N]):
    """Addresses in one state and key group, as two lists of equal length."""

    namespaces: Sequence[N]
    keys: Sequence[K]

    def __len__(self) -> int:
        return len(self.keys)


class EntryChange(NamedTuple):
    """What an epoch has changed at one address: whether it has an entry now, and the entry's value."""

    state: str
    key_group: int
    namespace: Any
    key: Any
    present: bool
    value: Any


class TableChanges(ABC, Generic[K, N, V]):
    """What changed in a table since an epoch, as it was when the changes were captured.

    Where the backend claims asynchronous snapshots, another thread may read it while the owner changes the
    table; otherwise the owner reads it before the next change.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return how many addresses were written or removed."""

    @abstractmethod
    def written(self, key_group: int, size: int) -> Iterator[EntryBatch[K, N, V]]:
        """Yield the entries of one key group that were written, at most `size` at a time, each exactly once.

        An entry counts as written when it is put, also with an equal value, returned by
        `StateTable.get_for_update`, or transformed.
        """

    @abstractmethod
    def removed(self, key_group: int, size: int) -> Iterator[AddressBatch[K, N]]:
        """Yield the addresses of one key group that had an entry when the epoch ended and have none now."""

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        """Return those of some key groups that may have changes, ascending; all of them by default."""
        return key_groups

    @abstractmethod
    def release(self) -> None:
        """Free the changes; calling it again does nothing."""


class ChangeTracking(ABC, Generic[K, N, V]):
    """A table that tracks its changes, epoch by epoch.

    Entries from before the first `begin_epoch` are no change of any epoch.
    """

    @abstractmethod
    def begin_epoch(self, epoch: int) -> None:
        """Count every change from now on as one of an epoch; epochs ascend, from any number.

        Raises `ValueError` where `epoch` is not above the one before.
        """

    @abstractmethod
    def changes_since(self, epoch: int) -> TableChanges[K, N, V]:
        """Capture the changes of all epochs above `epoch`, in time that depends on their number alone.

        This is the synchronous part of a delta, so it must be short.  It does not forget changes up to
        `epoch`.
        """

    @abstractmethod
    def forget_changes(self, epoch: int) -> None:
        """Forget the changes of epochs up to and including one, which a checkpoint contains now.

        The changes of the running epoch are kept in any case.
        """
