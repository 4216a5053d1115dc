"""The queue whose order is in memory: an index of all timers, made from the table when the queue is."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

from keyedstate.backend import AnyStateTable
from keyedstate.time.queue import Bucket, DueTimers, Place, TimerQueue, timers_in
from keyedstate.types import VOID_NAMESPACE

#: So many places in the heap that have lost their timers are not worth a new heap.
_FEW_PLACES = 128

#: So many bulk registrations at one place are merged: they may be of the same keys again and again.
_MANY_CALLS = 16


class HeapTimerQueue(TimerQueue):
    """For each time and namespace the keys, and a heap of times (Flink's ``HeapPriorityQueueSet``).

    Parameters
    ----------
    table : StateTable, optional
        Its namespaces are those of `table_namespace`.  Without it all timers are in memory alone, and
        `take_all` is what writes them anywhere.
    bare : bool
        Whether they are times alone.
    """

    # A timer is either in `_stored`, where the table has it too, or in `_fresh`, where it has not; in `_gone`
    # are those that only the table still has; and in `_noted` are bulk registrations as they came, which
    # become some of these, or nothing, when their place is looked at.  No bucket and no list of these is
    # empty.  Each place with timers is in the heap, perhaps twice.  A place in the heap may have lost its
    # timers, but not the first one there.

    def __init__(self, table: AnyStateTable | None, *, bare: bool) -> None:
        self._table = table
        self._bare = bare
        self._stored: dict[Place, Bucket] = {}
        self._fresh: dict[Place, Bucket] = {}
        self._gone: dict[Place, Bucket] = {}
        self._noted: dict[Place, list[tuple[Sequence[Any], Sequence[int]]]] = {}
        #: Time, a number that makes every element another one, and the namespace.
        self._heap: list[tuple[int, int, Any]] = []
        self._numbers = 0
        if table is not None and len(table):
            for key_group, places, keys in timers_in(table, bare=bare):
                for place, key in zip(places, keys, strict=True):
                    self._stored.setdefault(place, {})[key] = key_group
            self._make_heap()

    def write_back(self) -> None:
        self._look_at_all()
        table, stored = self._table, self._stored
        assert table is not None, "a queue in memory alone has nothing to write to"
        for place, bucket in self._gone.items():
            if len(bucket) == 1:
                ((key, key_group),) = bucket.items()
                table.remove(key_group, key, self._table_place(place))
            else:
                table.remove_many(bucket.values(), bucket, self._table_place(place))
        self._gone = {}
        nothing = VOID_NAMESPACE
        for place, bucket in self._fresh.items():
            if len(bucket) == 1:
                ((key, key_group),) = bucket.items()
                table.put(key_group, key, self._table_place(place), nothing)
            else:
                table.put_many(bucket.values(), bucket, self._table_place(place), [nothing] * len(bucket))
            known = stored.get(place)
            if known is None:
                stored[place] = bucket
            else:
                known.update(bucket)
        self._fresh = {}

    def take_all(self) -> dict[Place, Bucket]:
        """Return the timers of a queue without a table, which has none any more."""
        self._look_at_all()
        taken, self._fresh, self._heap = self._fresh, {}, []
        return taken

    def _table_place(self, place: Place) -> Any:
        return place[0] if self._bare else place

    # -- changes ------------------------------------------------------------------------------------------

    def add(self, time: int, namespace: Any, key: Any, key_group: int) -> bool:
        place = time, namespace
        if place in self._noted:
            self._look_at(place)
        stored = self._stored.get(place)
        if stored is not None and key in stored:
            return False
        fresh = self._fresh.get(place)
        gone = self._gone.get(place)
        known = stored is not None or fresh is not None
        if not known:
            self._enter(place)
        if gone is not None and key in gone:
            self._merge(place, {key: key_group})
        elif fresh is not None:
            fresh.setdefault(key, key_group)
        else:
            self._fresh[place] = {key: key_group}
        return not known and self._heap[0][1] == self._numbers

    def add_at(self, time: int, namespace: Any, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        if not keys:
            return
        place = time, namespace
        noted = self._noted.get(place)
        if noted is None:
            if place not in self._stored and place not in self._fresh:
                self._enter(place)
            self._noted[place] = [(keys, key_groups)]
        else:
            noted.append((keys, key_groups))
            if len(noted) > _MANY_CALLS:
                self._look_at(place)

    def _look_at_all(self) -> None:
        for place in list(self._noted):
            self._look_at(place)

    def _look_at(self, place: Place) -> None:
        """Make timers of the bulk registrations at a place."""
        for keys, key_groups in self._noted.pop(place):
            self._merge(place, dict(zip(keys, key_groups, strict=True)))

    def _merge(self, place: Place, added: Bucket) -> None:
        stored = self._stored.get(place)
        fresh = self._fresh.get(place)
        if stored is not None:
            for key in stored.keys() & added.keys():
                del added[key]
        gone = self._gone.get(place)
        if gone is not None:
            back = {key: gone.pop(key) for key in gone.keys() & added.keys()}
            if not gone:
                del self._gone[place]
            if back:
                # The table has them still.
                self._stored.setdefault(place, {}).update(back)
                for key in back:
                    del added[key]
        if added:
            if fresh is None:
                self._fresh[place] = added
            else:
                fresh.update(added)

    def remove(self, time: int, namespace: Any, key: Any, key_group: int) -> bool:
        return self._take((time, namespace), key) is not None

    def _take(self, place: Place, key: Any) -> int | None:
        """Remove a timer and return its key group; None where it is not there."""
        if place in self._noted:
            self._look_at(place)
        key_group: int | None = None
        fresh = self._fresh.get(place)
        if fresh is not None:
            key_group = fresh.pop(key, None)
            if not fresh:
                del self._fresh[place]
        if key_group is None:
            stored = self._stored.get(place)
            if stored is None:
                return None
            key_group = stored.pop(key, None)
            if key_group is None:
                return None
            if not stored:
                del self._stored[place]
            gone = self._gone.get(place)
            if gone is None:
                self._gone[place] = {key: key_group}
            else:
                gone[key] = key_group
        if place not in self._stored and place not in self._fresh:
            self._left()
        return key_group

    # -- in the order of time -----------------------------------------------------------------------------

    def first_time(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def poll(self, until: int) -> Iterator[tuple[int, Any, Any, int]]:
        take = self._take
        # Places that are being taken, with the keys that are left; above each an earlier one, whose timers
        # were added meanwhile.
        begun: list[tuple[Place, Iterator[Any]]] = []
        while True:
            first = self._heap[0] if self._heap and self._heap[0][0] <= until else None
            if first is not None and (not begun or first[0] < begun[-1][0][0]):
                place = first[0], first[2]
                begun.append((place, iter(list(self.at(place)))))
            elif not begun:
                return
            place, keys = begun[-1]
            time, namespace = place
            for key in keys:
                key_group = take(place, key)
                if key_group is not None:
                    yield time, namespace, key, key_group
                    if self._heap and self._heap[0][0] < time:
                        break
            else:
                begun.pop()

    def poll_together(self, until: int) -> Iterator[DueTimers]:
        while self._heap and self._heap[0][0] <= until:
            time, _, namespace = self._heap[0]
            due = self.take_at((time, namespace))
            yield DueTimers(time, namespace, list(due), list(due.values()))

    def take_at(self, place: Place) -> Bucket:
        """Remove and return the timers of a place."""
        due = dict(self.at(place))
        self._fresh.pop(place, None)
        stored = self._stored.pop(place, None)
        if stored is not None:
            gone = self._gone.setdefault(place, stored)
            if gone is not stored:
                gone.update(stored)
        self._left()
        return due

    # -- looking ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        self._look_at_all()
        return sum(map(len, self._stored.values())) + sum(map(len, self._fresh.values()))

    def __iter__(self) -> Iterator[tuple[int, Any, Any, int]]:
        """Yield each timer once, in no order: its time, namespace, key and key group."""
        self._look_at_all()
        for buckets in (self._stored, self._fresh):
            for (time, namespace), bucket in buckets.items():
                for key, key_group in bucket.items():
                    yield time, namespace, key, key_group

    def at(self, place: Place) -> Bucket:
        """Return the timers of a place."""
        if place in self._noted:
            self._look_at(place)
        stored, fresh = self._stored.get(place), self._fresh.get(place)
        if stored is not None and fresh is not None:
            return {**stored, **fresh}
        return stored or fresh or {}

    # -- the heap -----------------------------------------------------------------------------------------

    def _enter(self, place: Place) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (place[0], self._numbers, place[1]))

    def _left(self) -> None:
        """Clear the heap's head of places that have lost their timers, and all of it where most have."""
        heap = self._heap
        timers: tuple[dict[Place, Any], ...] = self._stored, self._fresh, self._noted
        while heap:
            place = heap[0][0], heap[0][2]
            if any(place in found for found in timers):
                break
            heapq.heappop(heap)
        if len(heap) > _FEW_PLACES + 2 * sum(len(found) for found in timers):
            self._make_heap()

    def _make_heap(self) -> None:
        places = dict.fromkeys((*self._stored, *self._fresh, *self._noted))
        self._heap = [(time, number, namespace) for number, (time, namespace) in enumerate(places)]
        heapq.heapify(self._heap)
        self._numbers = len(places)
