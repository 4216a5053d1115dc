"""The walk that finds the expired entries of a table of two tiers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from keyedstate.keygroups import KeyGroupRange
from keyedstate_spillable.objects.disk import SpilledRows

#: Entries in memory that one call looks at, about, and those of a step of the walk.
_SWEPT_ENTRIES = 2_000
_STEP_ENTRIES = 250
#: Groups of rows that one call looks at.
_SWEPT_GROUPS = 2


class ExpirySweep:
    """A walk over the entries of both tiers, which continues with each call and begins again at the end.

    Parameters
    ----------
    key_groups : KeyGroupRange
    maps : sequence of CopyOnWriteStateMap
        One map per key group.
    rows : SpilledRows
    """

    def __init__(self, key_groups: KeyGroupRange, maps: Sequence[Any], rows: SpilledRows) -> None:
        self._first = key_groups.start
        self._maps = maps
        self._rows = rows
        #: The map that is being walked through, and the walk; None before it begins.
        self._hand = 0
        self._walk: Any = None
        #: The last row that was looked at; empty before the first one.
        self._row = b""

    def next_entries(self) -> list[tuple[int, Any, Any, Any]]:
        """Return the next entries of each tier, as key group, key, namespace and present value."""
        return self._next_in_memory() + self._next_on_disk()

    def _next_in_memory(self) -> list[tuple[int, Any, Any, Any]]:
        # Whole steps of the walk: what is kept of one until the next call may have changed by then.
        found: list[tuple[int, Any, Any, Any]] = []
        unfinished = len(self._maps)
        while unfinished and len(found) < _SWEPT_ENTRIES:
            if self._walk is None:
                self._walk = self._maps[self._hand].visitor(_STEP_ENTRIES)
            if self._walk.has_next():
                found += [(self._first + self._hand, *entry) for entry in self._walk.next_batch()]
            else:
                self._walk = None
                self._hand = (self._hand + 1) % len(self._maps)
                unfinished -= 1
        return found

    def _next_on_disk(self) -> list[tuple[int, Any, Any, Any]]:
        if not any(each.elsewhere for each in self._maps):
            return []
        start = self._row + b"\0" if self._row else b""
        groups = islice(self._rows.entries_between(start, None), _SWEPT_GROUPS)
        entries = [entry for some in groups for entry in some]
        self._row = entries[-1].row if entries else b""
        group_of = self._rows.of.layout.group_of
        return [
            (group_of(entry.row), entry.key, entry.namespace, entry.value)
            for entry in entries
            if not self._maps[group_of(entry.row) - self._first].holds(entry.key, entry.namespace)
        ]
