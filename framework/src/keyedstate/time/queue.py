"""The queue of timers of one service and one time domain, in the order of time.

A table has one entry per timer, at the timer's key and the namespace (time, namespace), without a value.  So
snapshots, deltas, savepoints, rescaling and every backend support timers without code for them.  Changes stay
in the queue until `TimerQueue.write_back`, which the keyed backend calls before it captures its tables: a
timer that is registered and fires within an epoch never reaches the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

from keyedstate.backend import AnyStateTable
from keyedstate.types import INT64, VOID, VOID_NAMESPACE, TypeSerializer, tuple_of

#: Entries that are read at once where all timers are wanted.
_BATCH_ENTRIES = 4096

#: Time and namespace, which timers of many keys may share.
Slot: TypeAlias = tuple[int, Any]
#: The key group of each key that has a timer in a slot.
Bucket: TypeAlias = dict[Any, int]


@dataclass(frozen=True, slots=True)
class DueTimers:
    """The timers of many keys at one time and in one namespace."""

    #: In milliseconds since 1970 UTC.
    time: int
    namespace: Any
    keys: Sequence[Any]
    #: The key group of each key.
    key_groups: Sequence[int]

    def __len__(self) -> int:
        return len(self.keys)


class TimerQueue(ABC):
    """A set of timers in the order of time (Flink's ``KeyGroupedInternalPriorityQueue``).

    Only the queue changes the table of its timers.  The order of timers of one time is not defined.
    """

    @abstractmethod
    def write_back(self) -> None:
        """Write the changes since the last call into the table."""

    @abstractmethod
    def add(self, time: int, namespace: Any, key: Any, key_group: int) -> bool:
        """Add a timer unless it exists; return whether that changes the earliest time."""

    @abstractmethod
    def add_at(self, time: int, namespace: Any, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        """Add the timers of many keys at one time; the caller must not change the columns afterwards."""

    @abstractmethod
    def remove(self, time: int, namespace: Any, key: Any, key_group: int) -> bool:
        """Remove a timer; return whether it existed."""

    @abstractmethod
    def first_time(self) -> int | None:
        """Return the time of the earliest timer; None without any."""

    @abstractmethod
    def poll(self, until: int) -> Iterator[tuple[int, Any, Any, int]]:
        """Remove and yield each timer up to a time: its time, namespace, key and key group.

        Timers may be added and removed meanwhile.  A caller that stops early loses none.
        """

    @abstractmethod
    def poll_together(self, until: int) -> Iterator[DueTimers]:
        """Remove and yield the timers up to a time, those of one slot together or in several parts."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of timers."""

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[int, Any, Any, int]]:
        """Yield each timer once, in no order: its time, namespace, key and key group."""


def table_namespace(namespace_serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return the namespace type of the table of timers: the time alone, or with the service's namespace."""
    return INT64 if namespace_serializer is VOID else tuple_of(INT64, namespace_serializer)


def timers_in(table: AnyStateTable, *, bare: bool) -> Iterator[tuple[int, Iterable[Slot], Iterable[Any]]]:
    """Yield all timers of a table in parts: their key group, slots and keys."""
    of_key, of_namespace = table.meta.key_serializer, table.meta.namespace_serializer
    snapshot = table.snapshot()
    try:
        for key_group in snapshot.occupied(table.key_groups):
            for batch in snapshot.batches(key_group, _BATCH_ENTRIES):
                # A table of bytes makes a new NaN for each entry.
                keys: Iterable[Any] = batch.keys
                if of_key.needs_canonical:
                    keys = map(of_key.canonical, keys)
                slots: Iterable[Any] = batch.namespaces
                if bare:
                    slots = zip(slots, repeat(VOID_NAMESPACE), strict=False)
                elif of_namespace.needs_canonical:
                    slots = map(of_namespace.canonical, slots)
                yield key_group, slots, keys
    finally:
        snapshot.release()
