"""The queue of timers: a set in the order of time."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count, islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from keyedstate import types
from keyedstate.time import HeapTimerQueue, OrderedTimerQueue
from keyedstate.time.queue import table_namespace

NS = types.VOID_NAMESPACE
FOREVER = 2**63 - 1
TABLE = "_timer_state/event_test"


@pytest.fixture
def queue(backends):
    return make_queue(backends)


def make_queue(backends, namespace=types.VOID, backend=None, name=TABLE):
    backend = backends.backend(key=types.INT64) if backend is None else backend
    table = backend.internal_table(name, table_namespace(namespace))
    queue = queue_over(table, backends.timer_queue, bare=namespace is types.VOID)
    backend.write_back = queue.write_back
    return queue


def queue_over(table, kind, *, bare):
    """Return a queue of which far less is in memory than what the tests put into it."""
    if kind == "heap":
        return HeapTimerQueue(table, bare=bare)
    return OrderedTimerQueue(table, bare=bare, ahead=3, most_changes=50)


def drained(queue):
    return list(queue.poll(FOREVER))


def test_a_timer_that_came_back_by_itself_and_with_others_is_one(queue):
    """TM-11, PQ-05: a stored timer is removed, comes back beside a new one, and then again in bulk."""
    queue.add(5, NS, 1, 0)
    queue.write_back()
    queue.remove(5, NS, 1, 0)
    queue.add(5, NS, 2, 0)
    queue.add(5, NS, 1, 0)
    queue.add_at(5, NS, [1, 2], [0, 0])
    assert len(queue) == 2
    assert sorted(drained(queue)) == [(5, NS, 1, 0), (5, NS, 2, 0)]


def test_timers_come_in_the_order_of_time(queue):
    """PQ-01."""
    generator = random.Random(7)
    elements = {(generator.randrange(-(2**63), 2**63), generator.randrange(64)) for _ in range(900)}
    some = [(time, generator.randrange(64)) for time, _ in generator.sample(sorted(elements), 100)]
    earliest = None
    for time, key in [*elements, *some]:
        new_first = earliest is None or time < earliest
        assert queue.add(time, NS, key, key % 100) is new_first
        earliest = time if new_first else earliest
    elements.update(some)
    found = []
    for left in range(len(elements), 0, -1):
        assert len(queue) == left
        first = queue.first_time()
        time, _, key, key_group = next(queue.poll(FOREVER))
        assert time == first and key_group == key % 100
        found.append((time, key))
    assert sorted(found) == sorted(elements)
    assert [time for time, _ in found] == sorted(time for time, _ in elements)
    assert len(queue) == 0


def test_an_empty_queue_has_no_first_time_and_gives_nothing(queue):
    """PQ-03, PQ-04."""
    assert queue.first_time() is None and drained(queue) == [] and len(queue) == 0
    queue.add(5, NS, 1, 1)
    assert queue.first_time() == 5 and len(queue) == 1
    drained(queue)
    assert queue.first_time() is None and len(queue) == 0


def test_a_timer_that_is_added_several_times_exists_once(queue):
    """PQ-05, TM-11."""
    keys = list(range(10))
    queue.add_at(3, NS, keys, keys)
    queue.add_at(3, NS, keys, keys)
    for key in keys:
        queue.add(3, NS, key, key)
    queue.write_back()
    queue.add_at(3, NS, [*keys, *keys], [*keys, *keys])
    queue.add(3, NS, 4, 4)
    assert len(queue) == 10
    assert Counter(key for _, _, key, _ in drained(queue)) == Counter(keys)


def test_looking_at_all_timers_shows_each_once_and_takes_none(queue):
    """PQ-06, PQ-09."""
    for key in range(20):
        queue.add(key % 3, NS, key, key)
        if key == 10:
            queue.write_back()
    shown = list(queue)
    assert sorted(key for _, _, key, _ in shown) == list(range(20))
    assert len(queue) == 20
    iterator = iter(queue)
    for _ in range(20):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_adding_returns_a_new_earliest_time_and_removing_whether_the_timer_existed(queue):
    """PQ-07."""
    assert queue.add(5, NS, 1, 1) is True
    assert queue.add(7, NS, 1, 1) is False
    assert queue.add(3, NS, 1, 1) is True
    assert queue.remove(3, NS, 2, 2) is False
    assert queue.remove(4, NS, 1, 1) is False
    assert queue.remove(3, NS, 1, 1) is True
    assert queue.remove(3, NS, 1, 1) is False
    assert queue.first_time() == 5
    # What was removed is no longer before it.
    assert queue.add(4, NS, 1, 1) is True


def test_timers_that_are_all_removed_leave_an_empty_queue(queue):
    """PQ-08."""
    for key in range(300):
        queue.add(key, NS, key, key % 100)
        if key % 2:
            queue.write_back()
    for key in range(300):
        assert queue.remove(key, NS, key, key % 100)
    assert len(queue) == 0 and queue.first_time() is None and drained(queue) == []


def test_a_queue_keeps_the_order_while_its_changes_go_to_the_table(backends):
    """PQ-11: what is on the disk is indexed again, whatever the number of timers."""
    backend = backends.backend(key=types.INT64)
    queue = make_queue(backends, backend=backend)
    generator = random.Random(3)
    times = [generator.randrange(-(10**6), 10**6) for _ in range(500)]
    for number, time in enumerate(times):
        queue.add(time, NS, number, number % 100)
        if number % 50 == 0:
            queue.write_back()
    polled = [next(queue.poll(FOREVER))[0] for _ in range(100)]
    queue.write_back()
    again = make_queue(backends, backend=backend)
    assert again.first_time() == queue.first_time()
    polled += [time for time, *_ in drained(again)]
    assert polled == sorted(times)
    again.write_back()
    assert backend.entries_by_state() == {"_timer_state/event_test": 0}


def test_registering_and_removing_over_and_over_does_not_make_the_queue_grow(queue):
    for time in range(10_000):
        queue.add(time, NS, 1, 1)
        queue.remove(time - 1, NS, 1, 1)
    assert len(queue) == 1
    assert len(getattr(queue, "_new", queue)._heap) < 1000
    assert drained(queue) == [(9_999, NS, 1, 1)]


def test_timers_of_one_time_and_namespace_are_taken_together(backends):
    queue = make_queue(backends, types.STRING)
    queue.add_at(5, "a", [1, 2], [1, 2])
    queue.write_back()
    queue.add_at(5, "a", [2, 3], [2, 3])
    queue.add(4, "b", 9, 9)
    queue.add(6, "a", 1, 1)
    together = [(due.time, due.namespace, due.keys, due.key_groups) for due in queue.poll_together(5)]
    assert together == [(4, "b", [9], [9]), (5, "a", [1, 2, 3], [1, 2, 3])]
    assert [*queue] == [(6, "a", 1, 1)]


class QueueMachine(RuleBasedStateMachine):
    """The queue against a plain set, and the table against both when it is written back."""

    # One backend for all runs, since a database takes long to open, with a table for each.
    backends = backend = None
    numbers = count()

    def __init__(self):
        super().__init__()
        self.name = f"{TABLE}_{next(self.numbers)}"
        self.queue = make_queue(self.backends, types.STRING, self.backend, self.name)
        self.model = set()

    # So few that the same one is often there already.
    timers = st.tuples(st.integers(-1, 3), st.sampled_from("ab"), st.integers(0, 2))

    @rule(timer=timers)
    def add(self, timer):
        first = min((time for time, *_ in self.model), default=None)
        expected = timer not in self.model and (first is None or timer[0] < first)
        assert self.queue.add(*timer, timer[2] * 7) is expected
        self.model.add(timer)

    @rule(time=st.integers(-1, 3), keys=st.lists(st.integers(0, 2)))
    def add_at(self, time, keys):
        self.queue.add_at(time, "a", keys, [key * 7 for key in keys])
        self.model.update((time, "a", key) for key in keys)

    @rule(timer=timers)
    def remove(self, timer):
        assert self.queue.remove(*timer, timer[2] * 7) is (timer in self.model)
        self.model.discard(timer)

    @rule(
        until=st.integers(-2, 3),
        most=st.integers(1, 9),
        meanwhile=st.lists(st.tuples(st.sampled_from(["add", "remove", "write"]), timers)),
    )
    def poll(self, until, most, meanwhile):
        left = iter(meanwhile)
        for time, namespace, key, key_group in islice(self.queue.poll(until), most):
            assert time <= until and key_group == key * 7
            assert time == min(earliest for earliest, *_ in self.model)
            self.model.remove((time, namespace, key))
            match next(left, None):
                case "add", timer:
                    self.add(timer)
                case "remove", timer:
                    self.remove(timer)
                case "write", _:
                    self.queue.write_back()

    @rule(until=st.integers(-2, 3))
    def poll_together(self, until):
        polled = [
            (due.time, due.namespace, key) for due in self.queue.poll_together(until) for key in due.keys
        ]
        assert len(polled) == len(set(polled))
        assert set(polled) == {timer for timer in self.model if timer[0] <= until}
        self.model -= set(polled)

    @rule()
    def write_back(self):
        self.queue.write_back()
        stored = {(time, ns, key) for key, (time, ns) in self.backend.get_keys_and_namespaces(self.name)}
        assert stored == self.model

    @rule()
    def restart(self):
        self.queue.write_back()
        self.queue = make_queue(self.backends, types.STRING, self.backend, self.name)

    @rule()
    def look_at_all(self):
        assert {found[:3] for found in self.queue} == self.model
        assert len(self.queue) == len(self.model)
        assert all(key_group == key * 7 for *_, key, key_group in self.queue)

    @invariant()
    def the_first_one_is_known(self):
        assert self.queue.first_time() == min((time for time, *_ in self.model), default=None)


def test_earlier_timers_that_are_added_while_others_fire_come_before_what_is_left(queue):
    """Also those that earlier ones have added."""
    queue.add_at(10, NS, [1, 2, 3], [1, 2, 3])
    queue.write_back()
    fired = []
    for time, _, key, _ in queue.poll(10):
        fired.append((time, key))
        if len(fired) < 4:
            queue.add(time - len(fired), NS, key, key)
            queue.add(10, NS, key, key)
    assert [time for time, _ in fired] == [10, 9, 7, 4, 10, 10, 10]
    assert sorted(key for _, key in fired[-3:]) == [1, 2, 3]
    assert len(queue) == 0


def test_the_head_and_each_key_group_are_what_the_timers_make_them(backends):
    """SB-03, SB-04, PQ-10: one by one and many at once; "a" and "b" are two keys of two key groups."""
    for at_once in (False, True):
        backend = backends.backend(key=types.STRING)
        queue = make_queue(backends, backend=backend)
        elements = [(44, "a", 1), (1, "b", 8), (1, "b", 8), (3, "b", 8), (42, "a", 1)]
        if at_once:
            for time, key, group in elements:
                queue.add_at(time, NS, [key], [group])
        else:
            assert [queue.add(time, NS, key, group) for time, key, group in elements] == [
                True,
                True,
                False,
                False,
                False,
            ]
        groups = {group: {found[0] for found in queue if found[3] == group} for group in (1, 8)}
        assert groups == {1: {42, 44}, 8: {1, 3}}
        assert queue.first_time() == 1
        assert next(queue.poll(FOREVER)) == (1, NS, "b", 8)
        assert queue.first_time() == 3 and len(queue) == 3
        assert sorted((time, key) for time, _, key, _ in queue) == [(3, "b"), (42, "a"), (44, "a")]
        assert queue.remove(1, NS, "b", 8) is False
        assert queue.remove(3, NS, "b", 8) is True
        assert queue.first_time() == 42


def test_the_queue_is_a_set_in_the_order_of_time(backends):
    """PQ-01, PQ-05, PQ-07, PQ-11: also while timers come, go and are written as others fire."""

    class Machine(QueueMachine):
        pass

    Machine.backends, Machine.backend = backends, backends.backend(key=types.INT64)
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
    )
