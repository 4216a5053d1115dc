"""Timers in the order of their times, in backends that can keep their rows so.

The timers of a service are the entries of a table without values, at the timer's key and the namespace (time,
namespace), or the time alone.  Any table can hold them; one that also gives them in the order of time spares
the framework an index of all of them in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from keyedstate.backend.changes import AddressBatch
from keyedstate.backend.meta import StateMeta

#: What the names of tables of timers begin with, and of no other; Flink's
#: ``InternalTimeServiceManagerImpl.TIMER_STATE_PREFIX``.
TIMER_TABLES: Final = "_timer_state/"


def holds_timers(meta: StateMeta) -> bool:
    """Return whether a table is one of timers."""
    return meta.name.startswith(TIMER_TABLES)


class TimerTable(ABC):
    """A table of timers that keeps them in the order of their times, key group by key group.

    The tables of timers (`holds_timers`) of a backend that claims `Capability.TIMERS_IN_ORDER` implement it
    beside `StateTable` and `ChangeTracking`.  Among timers of one time the order is the table's own, and
    always the same.
    """

    @abstractmethod
    def earliest(
        self,
        key_group: int,
        size: int,
        *,
        since: int | None = None,
        until: int | None = None,
        after: tuple[Any, Any] | None = None,
    ) -> AddressBatch[Any, Any]:
        """Return the first timers of a key group in their order; what was written before is seen.

        Parameters
        ----------
        key_group : int
        size : int
            At most so many are returned; fewer only where there are no more.
        since, until : int, optional
            Only timers of these times and those between.
        after : tuple, optional
            The key and the namespace of a timer, there or not: only those that come behind it.
        """

    @abstractmethod
    def add_timers(
        self, key_groups: Sequence[int], keys: Sequence[Any], namespaces: Sequence[Any]
    ) -> list[bool]:
        """Add timers, each named once, and return which were not there: the others are no change."""

    @abstractmethod
    def remove_timers(
        self, key_groups: Sequence[int], keys: Sequence[Any], namespaces: Sequence[Any]
    ) -> None:
        """Remove timers that are all there, each named once."""
