"""What a queue of timers does: the set of those of one service and one time domain, in the order of time.

A table holds one entry per timer, at the timer's key and the namespace (time, namespace), without a value;
so snapshots, deltas, savepoints, rescaling and every backend know timers without a line about them.  Changes
stay with the queue until `TimerQueue.write_back`, which the keyed backend calls before it captures its
tables: a timer that comes and goes within an epoch never reaches the table.
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

#: Time and namespace: where the timers of many keys lie together.
Place: TypeAlias = tuple[int, Any]
#: The key group of each key that has a timer at a place.
Bucket: TypeAlias = dict[Any, int]


@dataclass(frozen=True, slots=True)
class DueTimers:
    """The timers of many keys at one time and in one namespace.

    Attributes
    ----------
    time : int
        In milliseconds since 1970 UTC.
    namespace : object
    keys : sequence
    key_groups : sequence of int
        The key group of each key.
    """

    time: int
    namespace: Any
    keys: Sequence[Any]
    key_groups: Sequence[int]

    def __len__(self) -> int:
        return len(self.keys)


class TimerQueue(ABC):
    """A set of timers in the order of time (Flink's ``KeyGroupedInternalPriorityQueue``).

    It is made over the table that holds the timers, which nobody else changes; in which order those of one
    time come is its own affair.
    """

    @abstractmethod
    def write_back(self) -> None:
        """Write into the table what has changed since the last time."""

    @abstractmethod
    def add(self, time: int, namespace: Any, key: Any, key_group: int) -> bool:
        """Add a timer, unless it is there; return whether the earliest time is a new one by that."""

    @abstractmethod
    def add_at(self, time: int, namespace: Any, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        """Add the timers of many keys at one time: the columns, which must stay as they are, are noted."""

    @abstractmethod
    def remove(self, time: int, namespace: Any, key: Any, key_group: int) -> bool:
        """Remove a timer; return whether it was there."""

    @abstractmethod
    def first_time(self) -> int | None:
        """Return the time of the earliest timer, or None where there is none."""

    @abstractmethod
    def poll(self, until: int) -> Iterator[tuple[int, Any, Any, int]]:
        """Remove and yield each timer up to a time: its time, namespace, key and key group.

        What is added meanwhile counts, and so does what is removed.  Whoever stops early may call again.
        """

    @abstractmethod
    def poll_together(self, until: int) -> Iterator[DueTimers]:
        """Remove and yield the timers up to a time, those of one time and namespace at once.

        Where they are very many they come in several parts.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of timers."""

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[int, Any, Any, int]]:
        """Yield each timer once, in no order: its time, namespace, key and key group."""


def table_namespace(namespace_serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return the namespace type of the table of timers: the time, with the namespace where there are any."""
    return INT64 if namespace_serializer is VOID else tuple_of(INT64, namespace_serializer)


def timers_in(table: AnyStateTable, *, bare: bool) -> Iterator[tuple[int, Iterable[Place], Iterable[Any]]]:
    """Yield all timers of a table in parts: their key group, places and keys."""
    of_key, of_place = table.meta.key_serializer, table.meta.namespace_serializer
    snapshot = table.snapshot()
    try:
        for key_group in snapshot.occupied(table.key_groups):
            for batch in snapshot.batches(key_group, _BATCH_ENTRIES):
                # A table of bytes makes another NaN of each.
                keys: Iterable[Any] = batch.keys
                if of_key.needs_canonical:
                    keys = map(of_key.canonical, keys)
                places: Iterable[Any] = batch.namespaces
                if bare:
                    places = zip(places, repeat(VOID_NAMESPACE), strict=False)
                elif of_place.needs_canonical:
                    places = map(of_place.canonical, places)
                yield key_group, places, keys
    finally:
        snapshot.release()
