"""The queue of a table that orders timers itself, on disk; few of them are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress, repeat
from typing import Any

from keyedstate.backend import AnyStateTable, TimerTable
from keyedstate.time.heap_queue import HeapTimerQueue
from keyedstate.time.queue import Bucket, DueTimers, Slot, TimerQueue, timers_in
from keyedstate.time.stored_timers import AHEAD, StoredTimers

#: So many changes are in memory at most; more are written before the end of the epoch.
_MOST_CHANGES = 1 << 16


class OrderedTimerQueue(TimerQueue):
    """The timers of a table that returns them in the order of time, and the changes since it was written.

    The namespaces of the table are those of `table_namespace`, times alone if `bare`. In memory are at most
    `ahead` stored timers of each key group, and `most_changes` changes. Raises TypeError where the table is
    no `TimerTable`, although its backend claims to have such ones.
    """

    # A timer exists if it is in `_new`, or if the table has it and it is not in `_stored.removed`.  `add`
    # does not look into the table, so a timer of `_new` may be in the table too.  Of one time the stored ones
    # are taken first, also out of `_new`: so what is then taken from `_new` is not in the table.

    def __init__(
        self, table: AnyStateTable, *, bare: bool, ahead: int = AHEAD, most_changes: int = _MOST_CHANGES
    ) -> None:
        if not isinstance(table, TimerTable):
            raise TypeError(
                f"the backend claims timers in order, but its {type(table).__name__} is no TimerTable; "
                "derive it from that class too, or do not claim it"
            )
        self._table: AnyStateTable = table
        self._timers: TimerTable = table
        self._bare = bare
        meta = table.meta
        snapshot = table.snapshot()
        try:
            occupied = list(snapshot.occupied(table.key_groups))
        finally:
            snapshot.release()
        self._stored = StoredTimers(
            table, occupied, meta.key_serializer, meta.namespace_serializer, bare=bare, ahead=ahead
        )
        self._new = HeapTimerQueue(None, bare=bare)
        self._changes = 0
        self._most_changes = most_changes
        #: How often the table was written.
        self._writes = 0

    # -- the table ----------------------------------------------------------------------------------------

    def write_back(self) -> None:
        stored = self._stored
        if stored.removed:
            self._timers.remove_timers(*self._columns(stored.removed))
            stored.removed = {}
        added = self._new.take_all()
        if added:
            columns = self._columns(added)
            new = self._timers.add_timers(*columns)
            times = chain.from_iterable(repeat(time, len(keys)) for (time, _), keys in added.items())
            earliest: dict[int, int] = {}
            for key_group, time in compress(zip(columns[0], times, strict=True), new):
                if earliest.setdefault(key_group, time) > time:
                    earliest[key_group] = time
            for key_group, time in earliest.items():
                stored.written(key_group, time)
        self._changes = 0
        self._writes += 1

    def _columns(self, timers: dict[Slot, Bucket]) -> tuple[list[int], list[Any], list[Any]]:
        """Return the key groups, the keys and the namespaces in the table of timers."""
        key_groups: list[int] = []
        keys: list[Any] = []
        namespaces: list[Any] = []
        for slot, bucket in timers.items():
            key_groups += bucket.values()
            keys += bucket
            namespaces += [self._table_namespace(slot)] * len(bucket)
        return key_groups, keys, namespaces

    def _table_namespace(self, slot: Slot) -> Any:
        return slot[0] if self._bare else slot

    def _note_changes(self, count: int) -> None:
        self._changes += count
        if self._changes >= self._most_changes:
            self.write_back()

    # -- changes ------------------------------------------------------------------------------------------

    def add(self, time: int, namespace: Any, key: Any, key_group: int) -> bool:
        first = self._new.first_time()
        if first is None or time < first:
            first = self._stored.first_time(time)
        self._new.add(time, namespace, key, key_group)
        self._note_changes(1)
        return first is None

    def add_at(self, time: int, namespace: Any, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        self._new.add_at(time, namespace, keys, key_groups)
        self._note_changes(len(keys))

    def remove(self, time: int, namespace: Any, key: Any, key_group: int) -> bool:
        was_new = self._new.remove(time, namespace, key, key_group)
        slot = time, namespace
        removed = self._stored.removed.get(slot)
        if removed is not None and key in removed:
            return was_new
        if not self._table.contains(key_group, key, self._table_namespace(slot)):
            return was_new
        self._stored.remove(time, namespace, key, key_group)
        self._note_changes(1)
        return True

    # -- in the order of time -----------------------------------------------------------------------------

    def first_time(self) -> int | None:
        new = self._new.first_time()
        stored = self._stored.first_time() if new is None else self._stored.first_time(new)
        return new if stored is None else stored

    def poll(self, until: int) -> Iterator[tuple[int, Any, Any, int]]:
        new, stored = self._new, self._stored
        while True:
            first, first_new = stored.first_time(until), new.first_time()
            if first is None or (first_new is not None and first_new < first):
                if first_new is None or first_new > until:
                    return
                writes = self._writes
                for timer in new.poll(until if first is None else first - 1):
                    yield timer
                    if self._writes != writes:
                        # New timers may be stored by now, and those come first.
                        break
                continue
            taken = stored.pop(first)
            if first_new == first:
                new.remove(*taken)
            self._note_changes(1)
            yield taken

    def poll_together(self, until: int) -> Iterator[DueTimers]:
        new, stored = self._new, self._stored
        while True:
            first, first_new = stored.first_time(until), new.first_time()
            if first is None or (first_new is not None and first_new < first):
                if first_new is None or first_new > until:
                    return
                yield next(new.poll_together(first_new))
                continue
            slot, taken = stored.pop_together(first, self._most_changes)
            due = dict(taken)
            if first_new == first:
                if stored.first_time(first) is None:
                    # No other timer of this slot is in the table.
                    due.update(new.take(slot))
                else:
                    for key in taken.keys() & new.at(slot).keys():
                        new.remove(*slot, key, taken[key])
            self._note_changes(len(taken))
            yield DueTimers(*slot, list(due), list(due.values()))

    # -- looking ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        self.write_back()
        return len(self._table)

    def __iter__(self) -> Iterator[tuple[int, Any, Any, int]]:
        self.write_back()
        for key_group, slots, keys in timers_in(self._table, bare=self._bare):
            for (time, namespace), key in zip(slots, keys, strict=True):
                yield time, namespace, key, key_group
