"""The queue that keeps an index of all timers in memory, made from the table when the queue is created."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

from keyedstate.backend import AnyStateTable
from keyedstate.time.queue import Bucket, DueTimers, Slot, TimerQueue, timers_in
from keyedstate.types import VOID_NAMESPACE

#: The heap is rebuilt when it has more than so many slots without timers.
_FEW_SLOTS = 128

#: So many pending bulk registrations of one slot are merged, since they may be of the same keys.
_MANY_CALLS = 16


class HeapTimerQueue(TimerQueue):
    """For each time and namespace the keys, and a heap of times (Flink's ``HeapPriorityQueueSet``).

    The namespaces of the table are those of `table_namespace`, times alone if `bare`. Without a table all
    timers are in memory, until `take_all` takes them.
    """

    # A timer is in `_stored` if the table has it too, else in `_unwritten`.  `_removed` has the timers that
    # only the table still has.  `_pending` has bulk registrations as they came; `_apply` merges those of a
    # slot into the others.  No bucket and no list is empty.  Each slot with timers is in the heap, perhaps
    # twice.  A slot in the heap may have no timers any more, but the first one has.

    def __init__(self, table: AnyStateTable | None, *, bare: bool) -> None:
        self._table = table
        self._bare = bare
        self._stored: dict[Slot, Bucket] = {}
        self._unwritten: dict[Slot, Bucket] = {}
        self._removed: dict[Slot, Bucket] = {}
        self._pending: dict[Slot, list[tuple[Sequence[Any], Sequence[int]]]] = {}
        #: Time, a number that makes every element unique, and the namespace.
        self._heap: list[tuple[int, int, Any]] = []
        self._numbers = 0
        if table is not None and len(table):
            for key_group, slots, keys in timers_in(table, bare=bare):
                for slot, key in zip(slots, keys, strict=True):
                    self._stored.setdefault(slot, {})[key] = key_group
            self._make_heap()

    def write_back(self) -> None:
        self._apply_all()
        table, stored = self._table, self._stored
        assert table is not None, "a queue without a table has nothing to write to"
        for slot, bucket in self._removed.items():
            if len(bucket) == 1:
                ((key, key_group),) = bucket.items()
                table.remove(key_group, key, self._table_namespace(slot))
            else:
                table.remove_many(bucket.values(), bucket, self._table_namespace(slot))
        self._removed = {}
        nothing = VOID_NAMESPACE
        for slot, bucket in self._unwritten.items():
            if len(bucket) == 1:
                ((key, key_group),) = bucket.items()
                table.put(key_group, key, self._table_namespace(slot), nothing)
            else:
                table.put_many(bucket.values(), bucket, self._table_namespace(slot), [nothing] * len(bucket))
            known = stored.get(slot)
            if known is None:
                stored[slot] = bucket
            else:
                known.update(bucket)
        self._unwritten = {}

    def take_all(self) -> dict[Slot, Bucket]:
        """Remove and return all timers of a queue without a table."""
        self._apply_all()
        taken, self._unwritten, self._heap = self._unwritten, {}, []
        return taken

    def _table_namespace(self, slot: Slot) -> Any:
        return slot[0] if self._bare else slot

    # -- changes ------------------------------------------------------------------------------------------

    def add(self, time: int, namespace: Any, key: Any, key_group: int) -> bool:
        slot = time, namespace
        if slot in self._pending:
            self._apply(slot)
        stored = self._stored.get(slot)
        if stored is not None and key in stored:
            return False
        unwritten = self._unwritten.get(slot)
        removed = self._removed.get(slot)
        known = stored is not None or unwritten is not None
        if not known:
            self._push(slot)
        if removed is not None and key in removed:
            self._merge(slot, {key: key_group})
        elif unwritten is not None:
            unwritten.setdefault(key, key_group)
        else:
            self._unwritten[slot] = {key: key_group}
        return not known and self._heap[0][1] == self._numbers

    def add_at(self, time: int, namespace: Any, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        if not keys:
            return
        slot = time, namespace
        pending = self._pending.get(slot)
        if pending is None:
            if slot not in self._stored and slot not in self._unwritten:
                self._push(slot)
            self._pending[slot] = [(keys, key_groups)]
        else:
            pending.append((keys, key_groups))
            if len(pending) > _MANY_CALLS:
                self._apply(slot)

    def _apply_all(self) -> None:
        for slot in list(self._pending):
            self._apply(slot)

    def _apply(self, slot: Slot) -> None:
        """Merge the pending bulk registrations of a slot."""
        for keys, key_groups in self._pending.pop(slot):
            self._merge(slot, dict(zip(keys, key_groups, strict=True)))

    def _merge(self, slot: Slot, added: Bucket) -> None:
        stored = self._stored.get(slot)
        unwritten = self._unwritten.get(slot)
        if stored is not None:
            for key in stored.keys() & added.keys():
                del added[key]
        removed = self._removed.get(slot)
        if removed is not None:
            back = {key: removed.pop(key) for key in removed.keys() & added.keys()}
            if not removed:
                del self._removed[slot]
            if back:
                # The table still has them.
                self._stored.setdefault(slot, {}).update(back)
                for key in back:
                    del added[key]
        if added:
            if unwritten is None:
                self._unwritten[slot] = added
            else:
                unwritten.update(added)

    def remove(self, time: int, namespace: Any, key: Any, key_group: int) -> bool:
        return self._pop((time, namespace), key) is not None

    def _pop(self, slot: Slot, key: Any) -> int | None:
        """Remove a timer and return its key group; None if it does not exist."""
        if slot in self._pending:
            self._apply(slot)
        key_group: int | None = None
        unwritten = self._unwritten.get(slot)
        if unwritten is not None:
            key_group = unwritten.pop(key, None)
            if not unwritten:
                del self._unwritten[slot]
        if key_group is None:
            stored = self._stored.get(slot)
            if stored is None:
                return None
            key_group = stored.pop(key, None)
            if key_group is None:
                return None
            if not stored:
                del self._stored[slot]
            removed = self._removed.get(slot)
            if removed is None:
                self._removed[slot] = {key: key_group}
            else:
                removed[key] = key_group
        if slot not in self._stored and slot not in self._unwritten:
            self._clean_heap()
        return key_group

    # -- in the order of time -----------------------------------------------------------------------------

    def first_time(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def poll(self, until: int) -> Iterator[tuple[int, Any, Any, int]]:
        pop = self._pop
        # A stack of slots whose timers are being taken, with the keys that are left: above each is an earlier
        # slot whose timers were added meanwhile.
        stack: list[tuple[Slot, Iterator[Any]]] = []
        while True:
            first = self._heap[0] if self._heap and self._heap[0][0] <= until else None
            if first is not None and (not stack or first[0] < stack[-1][0][0]):
                slot = first[0], first[2]
                stack.append((slot, iter(list(self.at(slot)))))
            elif not stack:
                return
            slot, keys = stack[-1]
            time, namespace = slot
            for key in keys:
                key_group = pop(slot, key)
                if key_group is not None:
                    yield time, namespace, key, key_group
                    if self._heap and self._heap[0][0] < time:
                        break
            else:
                stack.pop()

    def poll_together(self, until: int) -> Iterator[DueTimers]:
        while self._heap and self._heap[0][0] <= until:
            time, _, namespace = self._heap[0]
            due = self.take((time, namespace))
            yield DueTimers(time, namespace, list(due), list(due.values()))

    def take(self, slot: Slot) -> Bucket:
        """Remove and return the timers of a slot."""
        due = dict(self.at(slot))
        self._unwritten.pop(slot, None)
        stored = self._stored.pop(slot, None)
        if stored is not None:
            removed = self._removed.setdefault(slot, stored)
            if removed is not stored:
                removed.update(stored)
        self._clean_heap()
        return due

    # -- looking ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        self._apply_all()
        return sum(map(len, self._stored.values())) + sum(map(len, self._unwritten.values()))

    def __iter__(self) -> Iterator[tuple[int, Any, Any, int]]:
        self._apply_all()
        for buckets in (self._stored, self._unwritten):
            for (time, namespace), bucket in buckets.items():
                for key, key_group in bucket.items():
                    yield time, namespace, key, key_group

    def at(self, slot: Slot) -> Bucket:
        """Return the timers of a slot."""
        if slot in self._pending:
            self._apply(slot)
        stored, unwritten = self._stored.get(slot), self._unwritten.get(slot)
        if stored is not None and unwritten is not None:
            return {**stored, **unwritten}
        return stored or unwritten or {}

    # -- the heap -----------------------------------------------------------------------------------------

    def _push(self, slot: Slot) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (slot[0], self._numbers, slot[1]))

    def _clean_heap(self) -> None:
        """Remove slots without timers from the head of the heap, and from all of it if most have none."""
        heap = self._heap
        timers: tuple[dict[Slot, Any], ...] = self._stored, self._unwritten, self._pending
        while heap:
            slot = heap[0][0], heap[0][2]
            if any(slot in found for found in timers):
                break
            heapq.heappop(heap)
        if len(heap) > _FEW_SLOTS + 2 * sum(len(found) for found in timers):
            self._make_heap()

    def _make_heap(self) -> None:
        slots = dict.fromkeys((*self._stored, *self._unwritten, *self._pending))
        self._heap = [(time, number, namespace) for number, (time, namespace) in enumerate(slots)]
        heapq.heapify(self._heap)
        self._numbers = len(slots)
