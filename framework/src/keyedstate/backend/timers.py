"""Timers in the order of their times, in backends whose rows can be in that order.

The timers of a service are entries without values, at the timer's key and the namespace (time, namespace), or
the time alone.  Any table can store them; one that returns them in the order of time saves the framework an
index of all of them in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from keyedstate.backend.changes import AddressBatch
from keyedstate.backend.meta import StateMeta

#: The prefix of the names of tables of timers (Flink's
#: ``InternalTimeServiceManagerImpl.TIMER_STATE_PREFIX``).
TIMER_TABLES: Final = "_timer_state/"


def holds_timers(meta: StateMeta) -> bool:
    """Return whether a table contains timers."""
    return meta.name.startswith(TIMER_TABLES)


class TimerTable(ABC):
    """A table of timers that keeps them in the order of their times, key group by key group.

    The tables of timers (`holds_timers`) of a backend that claims `Capability.TIMERS_IN_ORDER` implement it
    in addition to `StateTable` and `ChangeTracking`.  Among timers of one time a table has an order of its
    own, which is always the same.
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
        """Return the first timers of a key group in their order, pending ones included.

        Parameters
        ----------
        key_group : int
        size : int
            The most timers to return; fewer are returned only where there are no more.
        since, until : int, optional
            The first and the last time of the timers.
        after : tuple, optional
            The key and the namespace of a timer, existing or not, after which to begin.
        """

    @abstractmethod
    def add_timers(
        self, key_groups: Sequence[int], keys: Sequence[Any], namespaces: Sequence[Any]
    ) -> list[bool]:
        """Add distinct timers and return which are new; the others are no change."""

    @abstractmethod
    def remove_timers(
        self, key_groups: Sequence[int], keys: Sequence[Any], namespaces: Sequence[Any]
    ) -> None:
        """Remove distinct existing timers."""
