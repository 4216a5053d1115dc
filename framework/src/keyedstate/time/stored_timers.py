"""The timers of a table in the order of time, with a few of each key group in memory.

Flink's ``RocksDBCachingPriorityQueueSet`` for each key group, and over them the heap of
``KeyGroupPartitionedPriorityQueue``.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from keyedstate.backend import TimerTable
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.time.queue import Bucket, Slot
from keyedstate.types import VOID_NAMESPACE, TypeSerializer
from keyedstate.types.contract.transposing import transposed

#: Timers of a key group that are in memory at most, as in Flink, and that are read first, since often only
#: the earliest one is needed.
AHEAD, _FIRST_AHEAD = 128, 4
#: Timers of one time that are read at once where all of them are needed.
_RUN = 4096


class _Group:
    """The next timers of a key group.

    Those from `position` on in `times`, `namespaces` and `keys` are the first ones of the table.  All others
    are after `last`, the key and the table namespace of the one that was read last, or have at least the time
    `since`.  If `over` is set there are no others.  No timer is before `bound`; if any is in memory, the
    first one is at `bound`.  If `bound` is None, there are no timers.
    """

    __slots__ = ("bound", "keys", "last", "namespaces", "over", "position", "since", "size", "times")

    def __init__(self) -> None:
        self.bound: int | None = BEFORE_TIME
        self.since = BEFORE_TIME
        self.forget(BEFORE_TIME)

    def forget(self, since: int) -> None:
        """Drop the timers in memory; the next ones are read from a time on."""
        self.times: list[int] = []
        self.namespaces: list[Any] = []
        self.keys: list[Any] = []
        self.position = 0
        self.last: tuple[Any, Any] | None = None
        self.since = since
        self.over = False
        self.size = _FIRST_AHEAD


class StoredTimers:
    """The timers of a table, in those key groups of which it may have timers.

    At most `ahead` of each key group are in memory. The namespaces of the table are times alone if `bare`.
    """

    def __init__(
        self,
        table: TimerTable,
        key_groups: Iterable[int],
        key_serializer: TypeSerializer[Any],
        namespace_serializer: TypeSerializer[Any],
        *,
        bare: bool,
        ahead: int = AHEAD,
    ) -> None:
        self._table = table
        self._of_key = key_serializer.canonical if key_serializer.needs_canonical else None
        self._of_namespace = namespace_serializer.canonical if namespace_serializer.needs_canonical else None
        self._bare = bare
        self._ahead = ahead
        #: By slot the timers that were taken or removed, and that the table still has.
        self.removed: dict[Slot, Bucket] = {}
        self._groups = {key_group: _Group() for key_group in key_groups}
        #: The bounds of the key groups that may have timers, and outdated ones that no group has any more.
        self._heap: list[tuple[int, int]] = [(BEFORE_TIME, key_group) for key_group in self._groups]

    # -- in the order of time -----------------------------------------------------------------------------

    def first_time(self, until: int = END_OF_TIME) -> int | None:
        """Return the time of the earliest timer; None without one up to a time."""
        return None if self._first(until) is None else self._heap[0][0]

    def _first(self, until: int) -> int | None:
        """Read the earliest timer, move its key group to the head of the heap and return that."""
        heap, groups = self._heap, self._groups
        while heap and heap[0][0] <= until:
            bound, key_group = heap[0]
            group = groups[key_group]
            if bound != group.bound:
                heapq.heappop(heap)
            elif group.position < len(group.times):
                return key_group
            else:
                self._read(key_group, group)
                self._moved(key_group, group)
        return None

    def _read(self, key_group: int, group: _Group) -> None:
        """Read the next timers of a key group that has none in memory."""
        while not group.over and group.position == len(group.times):
            size = min(group.size, self._ahead)
            group.size = 2 * size
            group.over = self._append(key_group, group, size, None) < size

    def _append(self, key_group: int, group: _Group, size: int, until: int | None) -> int:
        """Read the next timers into memory, but those that are removed; return the number of timers read."""
        found = self._table.earliest(key_group, size, since=group.since, until=until, after=group.last)
        if not len(found):
            return 0
        group.last = found.keys[-1], found.namespaces[-1]
        keys, slots = list(found.keys), list(found.namespaces)
        # A table of bytes makes a new NaN for each entry.
        if self._of_key is not None:
            keys = list(map(self._of_key, keys))
        if self._of_namespace is not None:
            slots = list(map(self._of_namespace, slots))
        if self._bare:
            times, namespaces = slots, [VOID_NAMESPACE] * len(slots)
        else:
            times, namespaces = transposed(slots, 2)
        if self.removed:
            nothing: Bucket = {}
            left = [
                number
                for number, (time, namespace, key) in enumerate(zip(times, namespaces, keys, strict=True))
                if key not in self.removed.get((time, namespace), nothing)
            ]
            if len(left) < len(keys):
                times, namespaces, keys = (
                    [column[number] for number in left] for column in (times, namespaces, keys)
                )
        group.times, group.namespaces, group.keys = (
            column[group.position :] + new
            for column, new in ((group.times, times), (group.namespaces, namespaces), (group.keys, keys))
        )
        group.position = 0
        return len(found)

    def _moved(self, key_group: int, group: _Group) -> None:
        """Update the bound of the key group at the head of the heap."""
        if group.position < len(group.times):
            bound: int | None = group.times[group.position]
        elif group.over:
            bound = None
        else:
            bound = group.since if group.last is None else max(group.since, self._time_of(group.last[1]))
        group.bound = bound
        if bound is None:
            heapq.heappop(self._heap)
        else:
            heapq.heapreplace(self._heap, (bound, key_group))

    def _time_of(self, table_namespace: Any) -> int:
        return table_namespace if self._bare else table_namespace[0]  # type: ignore[no-any-return]

    def pop(self, until: int) -> tuple[int, Any, Any, int]:
        """Take the earliest timer; there must be one up to that time."""
        key_group = self._first(until)
        assert key_group is not None, "asked for before"
        group = self._groups[key_group]
        first = group.position
        time, namespace, key = group.times[first], group.namespaces[first], group.keys[first]
        group.position += 1
        self._moved(key_group, group)
        self._note_removed((time, namespace), {key: key_group})
        return time, namespace, key, key_group

    def pop_together(self, until: int, most: int) -> tuple[Slot, Bucket]:
        """Take many of the earliest timers, all of one slot; there must be one up to that time."""
        first = self._first(until)
        assert first is not None, "asked for before"
        group = self._groups[first]
        slot = time, namespace = group.times[group.position], group.namespaces[group.position]
        taken: Bucket = {}
        others: list[tuple[int, int]] = []
        while len(taken) < most and (key_group := self._first(time)) is not None:
            group = self._groups[key_group]
            if _same(group.namespaces[group.position], namespace):
                taken.update(zip(self._run(key_group, group, time, namespace), repeat(key_group)))
                self._moved(key_group, group)
            else:
                others.append(heapq.heappop(self._heap))
        for other in others:
            heapq.heappush(self._heap, other)
        self._note_removed(slot, taken)
        return slot, taken

    def _run(self, key_group: int, group: _Group, time: int, namespace: Any) -> list[Any]:
        """Take the next timers of a key group that are of one slot."""
        taken: list[Any] = []
        exhausted = group.over
        while True:
            stop = group.position
            end = bisect_right(group.times, time, stop)
            while stop < end and _same(group.namespaces[stop], namespace):
                stop += 1
            taken += group.keys[group.position : stop]
            group.position = stop
            if stop < len(group.times) or len(taken) >= _RUN:
                return taken
            if exhausted:
                # The next timer is later.
                group.over = group.over or time == END_OF_TIME
                group.since = max(group.since, min(time + 1, END_OF_TIME))
                return taken
            exhausted = self._append(key_group, group, _RUN, time) < _RUN

    def _note_removed(self, slot: Slot, timers: Bucket) -> None:
        self.removed.setdefault(slot, timers).update(timers)

    # -- changes ------------------------------------------------------------------------------------------

    def remove(self, time: int, namespace: Any, key: Any, key_group: int) -> None:
        """Remove a timer that the table has."""
        self._note_removed((time, namespace), {key: key_group})
        group = self._groups[key_group]
        for position in range(bisect_left(group.times, time, group.position), len(group.times)):
            if group.times[position] != time:
                return
            if _same(group.keys[position], key) and _same(group.namespaces[position], namespace):
                for column in (group.times, group.namespaces, group.keys):
                    del column[position]
                if position == group.position:
                    self._note_bound(key_group, group)
                return

    def written(self, key_group: int, time: int) -> None:
        """Drop the timers in memory from a time on, since timers were written into the table there."""
        group = self._groups.get(key_group)
        if group is None:
            group = self._groups[key_group] = _Group()
            group.bound = None
        last = group.last
        if last is None or self._time_of(last[1]) >= time:
            stop = bisect_left(group.times, time, group.position)
            if stop > group.position:
                for column in (group.times, group.namespaces, group.keys):
                    del column[stop:]
                here = group.times[-1]
                group.last = group.keys[-1], here if self._bare else (here, group.namespaces[-1])
            elif last is None and not group.over:
                group.forget(min(group.since, time))
            else:
                group.forget(time)
        group.over = False
        self._note_bound(key_group, group, time)

    def _note_bound(self, key_group: int, group: _Group, time: int = END_OF_TIME) -> None:
        """Update the bound of a key group that is anywhere in the heap."""
        if group.position < len(group.times):
            bound: int | None = group.times[group.position]
        elif group.over:
            bound = None
        else:
            bound = time if group.bound is None else min(group.bound, time)
        if bound != group.bound:
            group.bound = bound
            if bound is not None:
                heapq.heappush(self._heap, (bound, key_group))
                if len(self._heap) > 4 * len(self._groups):
                    self._heap = [
                        (group.bound, number)
                        for number, group in self._groups.items()
                        if group.bound is not None
                    ]
                    heapq.heapify(self._heap)


def _same(one: Any, other: Any) -> bool:
    """Return whether two canonical keys or namespaces are equal; the one NaN is equal to itself."""
    return one is other or one == other
