"""Timers in the order of time over an ordered byte store: their rows, and the queue that reads them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordered_dict_space import DictSpace

from keyedstate import types
from keyedstate.backend import TIMER_TABLES, StateKind, StateMeta
from keyedstate.errors import CorruptDataError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import WriteBuffer, create_ordered_table
from keyedstate.ordered.row_keys import TimeLayout, layout_of
from keyedstate.time import HeapTimerQueue, OrderedTimerQueue
from keyedstate.time.queue import table_namespace

NS = types.VOID_NAMESPACE
FOREVER = 2**63 - 1
GROUPS = 4
AHEAD, CHANGES = 5, 20


def meta_of(
    namespace: types.TypeSerializer[Any] = types.VOID, key: types.TypeSerializer[Any] = types.INT64
) -> StateMeta:
    return StateMeta(TIMER_TABLES + "event_x", StateKind.VALUE, key, table_namespace(namespace), types.VOID)


def table_over(space: DictSpace, meta: StateMeta | None = None) -> Any:
    return create_ordered_table(
        meta or meta_of(), KeyGroupRange(0, GROUPS - 1), GROUPS, WriteBuffer(space, rows=7)
    )


def queue_over(table: Any, *, bare: bool = True) -> OrderedTimerQueue:
    return OrderedTimerQueue(table, bare=bare, ahead=AHEAD, most_changes=CHANGES)


def in_memory(queue: OrderedTimerQueue) -> int:
    """Return how many timers the queue holds, of those in the table and of changes."""
    stored = queue._stored
    read = sum(len(group.keys) for group in stored._groups.values())
    return read + sum(map(len, stored.removed.values())) + len(queue._new)


# -- rows ---------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from([types.VOID, types.STRING, types.nullable(types.FLOAT64)]),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2), st.text("aé\0"))
    ),
)
def test_rows_of_timers_lie_in_the_order_of_time_and_are_read_back(namespace: Any, timers: Any) -> None:
    """PQ-11: the sign bit is flipped, so that the order of bytes is that of times."""
    names = {types.VOID: [NS] * 3, types.STRING: ["", "a", "ab"]}.get(namespace, [None, -1.5, 2.0])
    layout = layout_of(meta_of(namespace, types.STRING), GROUPS)
    assert isinstance(layout, TimeLayout)
    places = [time if namespace is types.VOID else (time, names[name]) for _, time, name, _ in timers]
    groups, keys = [group for group, *_ in timers], [key for *_, key in timers]
    rows = layout.each_address(groups, keys, places)
    assert rows == [layout.address(*each) for each in zip(groups, keys, places, strict=True)]
    for group, key, place, row in zip(groups, keys, places, rows, strict=True):
        assert layout.addresses([group], [key], place) == [row]
        assert layout.parse(row) == (key, place, len(row))
        assert layout.group_of(row) == group
    assert layout.parse_many(rows) == (keys, places)
    in_order = sorted(zip(rows, timers, strict=True))
    assert [timer[:2] for _, timer in in_order] == sorted((group, time) for group, time, *_ in timers)


@pytest.mark.parametrize("namespace", [types.VOID, types.STRING])
def test_a_row_that_ends_too_early_is_damaged(namespace: Any) -> None:
    layout = layout_of(meta_of(namespace, types.STRING), GROUPS)
    row = layout.address(1, "key", 5 if namespace is types.VOID else (5, "window"))
    for end in range(1, len(row)):
        with pytest.raises(CorruptDataError):
            layout.parse_many([row[:end]])


# -- the queue ----------------------------------------------------------------------------------------------


def test_few_timers_are_in_memory_however_many_there_are() -> None:
    """PQ-11, TIMER-01: while they are registered, deleted and fired."""
    queue, generator = queue_over(table_over(DictSpace())), random.Random(5)
    times = [generator.randrange(-(10**6), 10**6) for _ in range(3_000)]
    most = GROUPS * AHEAD + CHANGES
    for key, time in enumerate(times):
        queue.add(time, NS, key, key % GROUPS)
        assert in_memory(queue) <= most
    for key in range(0, 3_000, 3):
        assert queue.remove(times[key], NS, key, key % GROUPS)
        assert in_memory(queue) <= most
    fired = []
    for time, _, key, _ in queue.poll(FOREVER):
        fired.append((time, key))
        assert in_memory(queue) <= most
    assert [time for time, _ in fired] == sorted(time for key, time in enumerate(times) if key % 3)
    assert {key for _, key in fired} == {key for key in range(3_000) if key % 3}


def test_an_earlier_timer_pushes_out_those_that_were_read() -> None:
    """PQ-11: the head is right at each step, and what was pushed out is read again."""
    queue = queue_over(table_over(DictSpace()))
    for time in range(100, 200):
        queue.add(time, NS, time, 0)
    queue.write_back()
    expected = list(range(100, 200))
    for time in range(99, 60, -1):
        assert queue.first_time() == expected[0]
        assert queue.add(time, NS, time, 0) is True
        expected.insert(0, time)
        queue.write_back()
    assert [time for time, *_ in queue.poll(150)] == expected[: expected.index(151)]
    assert queue.first_time() == 151


def test_what_is_deleted_does_not_fire_whether_it_was_read_before_or_not() -> None:
    """PQ-11: and comes back where it is registered again, in the same epoch or in a later one."""
    queue = queue_over(table_over(DictSpace()))
    for key in range(15):
        queue.add(key, NS, key, 0)
    queue.write_back()
    assert queue.first_time() == 0
    for key in (0, 2, 9, 14):
        assert queue.remove(key, NS, key, 0) is True
        assert queue.remove(key, NS, key, 0) is False
    queue.add(2, NS, 2, 0)
    queue.add(9, NS, 9, 0)
    queue.remove(9, NS, 9, 0)
    queue.write_back()
    queue.add(14, NS, 14, 0)
    assert [key for _, _, key, _ in queue.poll(FOREVER)] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14]
    assert len(queue) == 0


def test_a_timer_that_is_registered_in_each_epoch_is_written_once() -> None:
    """PQ-05, PQ-11: as windows register theirs; it is no change of later epochs, and is read no more."""
    space = DictSpace()
    table = table_over(space)
    queue = queue_over(table)
    table.begin_epoch(1)
    queue.add_at(50, NS, list(range(8)), [key % GROUPS for key in range(8)])
    assert queue.first_time() == 50
    queue.write_back()
    assert queue.first_time() == 50
    table.buffer.flush()
    batches = len(space.batches)
    table.begin_epoch(2)
    queue.add_at(50, NS, list(range(8)), [key % GROUPS for key in range(8)])
    queue.write_back()
    table.buffer.flush()
    assert len(space.batches) == batches
    changes = table.changes_since(1)
    assert len(changes) == 0
    changes.release()
    assert sorted(key for due in queue.poll_together(50) for key in due.keys) == list(range(8))


@pytest.mark.parametrize("together", [False, True])
def test_a_stored_timer_that_is_registered_again_fires_once(together: bool) -> None:
    """PQ-05, TM-11: also beside another one of its time that is stored, and one that is not."""
    queue = queue_over(table_over(DictSpace(), meta_of(types.STRING)), bare=False)
    for namespace in ("a", "b"):
        queue.add_at(5, namespace, [1, 2], [1, 2])
    queue.write_back()
    queue.add_at(5, "a", [1, 3], [1, 3])
    if together:
        fired = [(due.namespace, key) for due in queue.poll_together(5) for key in due.keys]
    else:
        fired = [(namespace, key) for _, namespace, key, _ in queue.poll(5)]
    assert sorted(fired) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]
    assert len(queue) == 0


def test_what_is_due_again_while_it_fires_fires_again() -> None:
    """A timer that registers itself for the same time, and one that does so for an earlier one."""
    queue = queue_over(table_over(DictSpace()))
    for key in range(3):
        queue.add(10, NS, key, 0)
    queue.write_back()
    fired = []
    for time, _, key, group in queue.poll(10):
        fired.append((time, key))
        if len(fired) == 1:
            queue.add(time, NS, key, group)
            queue.add(5, NS, 9, 1)
        queue.write_back()
    assert fired == [(10, 0), (5, 9), (10, 0), (10, 1), (10, 2)] and len(queue) == 0


def test_very_many_timers_of_one_time_come_in_parts_of_bounded_size() -> None:
    queue = queue_over(table_over(DictSpace(), meta_of(types.STRING)), bare=False)
    keys = list(range(500))
    for name in ("a", "b"):
        queue.add_at(7, name, keys, [key % GROUPS for key in keys])
    queue.write_back()
    queue.add_at(7, "a", [3, 1_000], [3, 0])
    queue.add_at(8, "a", [4], [0])
    found: dict[str, list[int]] = {"a": [], "b": []}
    for due in queue.poll_together(7):
        assert due.time == 7 and len(due.keys) == len(due.key_groups)
        found[due.namespace] += due.keys
    assert sorted(found["a"]) == [*keys, 1_000] and sorted(found["b"]) == keys
    assert [*queue] == [(8, "a", 4, 0)]


def test_a_function_that_stops_taking_timers_by_columns_loses_none() -> None:
    """TM-15."""
    queue = queue_over(table_over(DictSpace()))
    for time in range(30):
        queue.add_at(time // 3, NS, [time], [time % GROUPS])
    queue.write_back()
    taken: list[int] = []
    while due := next(queue.poll_together(FOREVER), None):
        taken += due.keys
        queue.write_back()
    assert sorted(taken) == list(range(30))
    assert [time // 3 for time in taken] == sorted(time // 3 for time in taken)


def test_nothing_is_read_of_key_groups_whose_timers_come_later() -> None:
    """One look at each key group when the queue is made, and then only where something is due."""
    space = DictSpace()
    table = table_over(space)
    for group in range(GROUPS):
        table.put_many([group] * 50, range(50), 1_000 * (group + 1), [NS] * 50)
    queue = queue_over(table)
    assert queue.first_time() == 1_000
    before = space.reads
    for now in range(0, 1_000, 100):
        assert list(queue.poll(now)) == [] and queue.first_time() == 1_000
        queue.add(now + 500_000, NS, 77, 2)
    assert space.reads == before


def test_both_queues_continue_from_the_same_table() -> None:
    table = table_over(DictSpace())
    queue: Any = HeapTimerQueue(table, bare=True)
    for key in range(40):
        queue.add(40 - key, NS, key, key % GROUPS)
    for made in (queue_over, lambda found: HeapTimerQueue(found, bare=True), queue_over):
        queue.write_back()
        queue = made(table)
        assert [next(queue.poll(FOREVER))[0] for _ in range(5)]
    assert [time for time, *_ in queue.poll(FOREVER)] == list(range(16, 41))


def test_a_table_that_is_in_no_order_is_refused() -> None:
    with pytest.raises(TypeError, match="is no TimerTable; derive it"):
        OrderedTimerQueue(
            create_ordered_table(
                StateMeta("state", StateKind.VALUE, types.INT64, types.INT64, types.VOID),
                KeyGroupRange(0, 3),
                4,
                WriteBuffer(DictSpace()),
            ),
            bare=True,
        )
