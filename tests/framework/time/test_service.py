"""The timer service: what fires when, for which key, and what comes back from a checkpoint."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import pandas as pd
import pytest

from keyedstate import errors, types
from keyedstate.backend import EntryChange
from keyedstate.errors import (
    InvalidDescriptorError,
    InvalidTimerNamespaceError,
    InvalidTimerTimeError,
    KeyGroupOutOfRangeError,
    NoCurrentKeyError,
    NoEventTimeError,
    StateMigrationError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import ValueState
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.time import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    Timer,
    TimerServices,
    datetime_of,
    milliseconds_of,
)


def four(instance, register):
    for key in ("key1", "key2"):
        for namespace in ("hello", "ciao"):
            register(key, namespace, 10)


FOUR = {(10, key, namespace) for key in ("key1", "key2") for namespace in ("hello", "ciao")}


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_timers_lie_in_the_key_group_of_their_key(backends, domain):
    """TM-01, PQ-10."""
    instance = backends.instance(key=types.INT64)
    expected = {group: set() for group in range(100)}
    for number in range(100):
        namespace = f"hello_world_{number}"
        getattr(instance, domain)(number, namespace, 10 + number)
        expected[instance.backend.current.key_group].add(Timer(10 + number, number, namespace))
    found = getattr(instance.timers, f"{domain}_time_timers")
    assert {group: found(group) for group in range(100)} == expected
    assert instance.backend.current.key_group_of(42) in expected


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_timers_fire_once_when_their_time_has_come(instance, domain):
    """TM-06, TM-07."""
    four(instance, getattr(instance, domain))
    advance = (
        instance.services.advance_watermark
        if domain == "event"
        else instance.services.advance_processing_time
    )
    fired = instance.target.events if domain == "event" else instance.target.processing
    advance(9)
    assert fired == [] and instance.timers.fired == 0
    advance(10)
    assert len(fired) == 4 and set(fired) == FOUR
    assert instance.timers.fired == 4
    assert instance.timers.num_event_time_timers() == instance.timers.num_processing_time_timers() == 0
    advance(11)
    assert len(fired) == 4


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_deleted_timers_do_not_fire_and_deleting_what_is_not_there_is_no_error(instance, domain):
    """TM-08, TM-09."""
    four(instance, getattr(instance, domain))
    delete = getattr(instance.timers, f"delete_{domain}_time_timer")
    for key, namespace in (("key1", "hello"), ("key2", "ciao")):
        instance.backend.set_current_key(key)
        delete(namespace, 10)
        delete(namespace, 10)
        delete(namespace, 11)
    instance.services.advance_watermark(10)
    instance.services.advance_processing_time(10)
    fired = instance.target.events + instance.target.processing
    assert set(fired) == {(10, "key1", "ciao"), (10, "key2", "hello")} and len(fired) == 2


def test_the_two_time_domains_do_not_touch_each_other(instance):
    instance.event("k", "n", 10)
    instance.processing("k", "n", 10)
    instance.timers.delete_processing_time_timer("n", 10)
    instance.services.advance_processing_time(10)
    assert instance.target.processing == []
    instance.services.advance_watermark(10)
    assert instance.target.events == [(10, "k", "n")]


def test_each_timer_is_shown_with_its_key_as_the_current_one(instance):
    """TM-10."""
    four(instance, instance.event)
    four(instance, instance.processing)
    instance.backend.set_current_key("before")
    current = instance.backend.current
    for for_each in (
        instance.timers.for_each_event_time_timer,
        instance.timers.for_each_processing_time_timer,
    ):
        shown = []
        for_each(lambda namespace, time, shown=shown: shown.append((time, current.key, namespace)))
        assert set(shown) == FOUR and len(shown) == 4
    assert current.key == "before"


def test_a_timer_may_delete_and_register_others_while_all_are_shown(instance):
    """TM-10."""
    four(instance, instance.event)
    instance.timers.for_each_event_time_timer(
        lambda namespace, time: instance.timers.delete_event_time_timer(namespace, time)
    )
    assert instance.timers.num_event_time_timers() == 0


def test_registering_the_same_timer_twice_is_one_timer(instance):
    """TM-11."""
    instance.event("k", "n", 10, 10)
    instance.backend.write_back()
    instance.event("k", "n", 10)
    assert instance.timers.num_event_time_timers() == instance.timers.num_event_time_timers("n") == 1
    assert instance.timers.num_event_time_timers("other") == 0
    instance.services.advance_watermark(10)
    assert instance.target.events == [(10, "k", "n")]


def test_timers_fire_in_the_order_of_time(instance):
    instance.event("a", "n", 30, 10)
    instance.event("b", "m", 20, -5)
    instance.services.advance_watermark(25)
    assert [time for time, *_ in instance.target.events] == [-5, 10, 20]


def test_timers_registered_while_firing_fire_in_the_same_advance_if_they_are_due(instance):
    def once_more(timer):
        if timer.time < 50:
            instance.timers.register_event_time_timer(timer.namespace, timer.time + 10)

    instance.target.then = once_more
    instance.event("k", "n", 10)
    instance.event("l", "n", 25)
    instance.services.advance_watermark(30)
    times = [time for time, *_ in instance.target.events]
    assert times == [10, 20, 25, 30]
    assert instance.timers.num_event_time_timers() == 2


def test_a_timer_that_another_one_deletes_while_firing_does_not_fire(instance):
    def delete_the_other(timer):
        other = {"hello": "ciao", "ciao": "hello"}[timer.namespace]
        instance.timers.delete_event_time_timer(other, timer.time)

    instance.target.then = delete_the_other
    four(instance, instance.event)
    instance.services.advance_watermark(10)
    assert sorted(key for _, key, _ in instance.target.events) == ["key1", "key2"]


def test_a_timer_in_the_past_fires_at_the_next_advance_even_to_the_same_time(instance):
    instance.services.advance_watermark(100)
    instance.event("k", "n", 10)
    assert instance.target.events == []
    instance.services.advance_watermark(100)
    assert instance.target.events == [(10, "k", "n")]


def test_time_never_goes_back(instance):
    instance.services.advance_watermark(100)
    instance.services.advance_processing_time(2000)
    instance.services.advance_watermark(50)
    instance.services.advance_processing_time(1500)
    assert instance.timers.current_watermark == 100
    assert instance.timers.current_processing_time == 2000


def test_processing_time_is_that_of_the_clock_until_it_is_set(backends, instance):
    assert instance.timers.current_processing_time == 1000
    backends.clock.advance(5)
    assert instance.timers.current_processing_time == 1005
    instance.services.clock.set_processing_time(1003)
    assert instance.timers.current_processing_time == 1003


def test_what_the_final_watermark_fires_cannot_register_further_timers(instance):
    def for_ever(timer):
        instance.timers.register_event_time_timer(timer.namespace, min(timer.time + 1, END_OF_TIME))
        instance.timers.register_processing_time_timer(timer.namespace, min(timer.time + 1, END_OF_TIME))
        instance.timers.register_event_time_timers(["x"], None, "n", 5)

    instance.target.then = for_ever
    instance.event("k", "n", 10, END_OF_TIME)
    instance.services.advance_watermark(END_OF_TIME)
    assert [time for time, *_ in instance.target.events] == [10, END_OF_TIME]
    assert instance.timers.num_processing_time_timers() == 0
    instance.event("k", "n", 7)  # after it they are registered as ever
    assert instance.timers.num_event_time_timers() == 1


def test_a_callback_that_raises_stops_firing_and_the_rest_fire_at_the_next_advance(instance):
    """TM-15."""

    def fail(timer):
        if timer.key == "key2":
            raise RuntimeError("stop")

    instance.event("key1", "n", 1)
    instance.event("key2", "n", 2)
    instance.event("key3", "n", 3)
    instance.target.then = fail
    with pytest.raises(RuntimeError, match="stop"):
        instance.services.advance_watermark(10)
    assert [key for _, key, _ in instance.target.events] == ["key1", "key2"]
    instance.services.advance_watermark(10)
    assert [key for _, key, _ in instance.target.events] == ["key1", "key2", "key3"]


def test_interrupted_firing_continues_at_the_same_watermark(instance):
    """TM-15."""
    four(instance, instance.event)
    instance.backend.advance_watermark(10)
    firing = instance.timers.due_timers(in_event_time=True)
    first = next(firing)
    firing.close()
    assert instance.timers.num_event_time_timers() == 3
    rest = list(instance.timers.due_timers(in_event_time=True))
    assert {first, *rest} == FOUR and instance.timers.fired == 4


def test_timers_of_many_keys_are_registered_at_once(instance):
    keys = [f"key-{number}" for number in range(1000)]
    instance.timers.register_event_time_timers(keys, None, "n", 10)
    instance.timers.register_event_time_timers(keys[:10], None, "n", 10)
    groups = np.array([instance.backend.current.key_group_of(key) for key in keys])
    instance.timers.register_event_time_timers(keys, groups, "m", np.arange(1000) + 11)
    instance.timers.register_event_time_timers(keys[:2], None, ["o", "p"], [5, 6])
    instance.timers.register_processing_time_timers(keys[:3], None, "n", 7)
    assert instance.timers.num_event_time_timers() == 2002
    instance.services.advance_watermark(12)
    fired = instance.target.events
    assert fired[:2] == [(5, "key-0", "o"), (6, "key-1", "p")]
    assert set(fired[2:]) == {(10, key, "n") for key in keys} | {(11, "key-0", "m"), (12, "key-1", "m")}
    assert all(
        timer.key in keys for group in range(100) for timer in instance.timers.event_time_timers(group)
    )
    instance.timers.delete_event_time_timers(keys, groups, "m", np.arange(1000) + 11)
    instance.timers.delete_processing_time_timers(["key-0", "nobody"], None, "n", 7)
    assert instance.timers.num_event_time_timers() == 0
    assert instance.timers.num_processing_time_timers() == 2


def test_timers_of_one_time_and_namespace_come_together_where_that_is_asked_for(instance):
    keys = ["a", "b", "c"]
    instance.timers.register_event_time_timers(keys, None, "n", 10)
    instance.event("a", "m", 4)
    instance.processing("a", "m", 4)
    instance.backend.advance_watermark(10)
    instance.services.clock.set_processing_time(2000)
    due = list(instance.timers.due_timers_together(in_event_time=True))
    assert [(d.time, d.namespace, d.keys) for d in due] == [(4, "m", ["a"]), (10, "n", keys)]
    assert due[1].key_groups == [instance.backend.current.key_group_of(key) for key in keys]
    assert [len(d) for d in instance.timers.due_timers_together(in_event_time=False)] == [1]
    assert instance.timers.fired == 5


def test_bulk_calls_refuse_what_does_not_fit_before_any_timer_is_registered(instance):
    register = instance.timers.register_event_time_timers
    with pytest.raises(ValueError, match="2 keys, 1 times"):
        register(["a", "b"], None, "n", [1])
    with pytest.raises(ValueError, match="1 namespaces"):
        register(["a", "b"], None, ["n"], 1)
    with pytest.raises(InvalidTimerTimeError, match=r"2\.5"):
        register(["a", "b"], None, "n", [1, 2.5])
    with pytest.raises(InvalidTimerTimeError, match=str(2**63)):
        register(["a", "b"], None, "n", [1, 2**63])
    with pytest.raises(InvalidTimerNamespaceError, match="'timers'"):
        register(["a", "b"], None, ["n", 3], 1)
    with pytest.raises(InvalidTimerNamespaceError):
        register(["a", "b"], None, 3, 1)
    with pytest.raises(errors.ValueTypeError):
        register(["a", 5], None, "n", 1)
    assert instance.timers.num_event_time_timers() == 0
    register([], None, "n", 1)
    register([], None, [], [])
    assert instance.timers.num_event_time_timers() == 0


@pytest.mark.parametrize("time", [1.5, "10", None, True, pd.NaT, 2**63, -(2**63) - 1, math.nan])
def test_a_time_that_is_no_number_of_milliseconds_is_refused(instance, time):
    instance.backend.set_current_key("k")
    for register in (
        instance.timers.register_event_time_timer,
        instance.timers.register_processing_time_timer,
        instance.timers.delete_event_time_timer,
    ):
        with pytest.raises(InvalidTimerTimeError) as caught:
            register("n", time)
        assert repr(time) in str(caught.value)
    assert instance.backend.num_entries() == 0


def test_a_timer_may_be_given_as_a_datetime(instance):
    instance.backend.set_current_key("k")
    start = dt.datetime(2026, 7, 1, tzinfo=dt.timezone.utc)
    late = start + dt.timedelta(milliseconds=2, microseconds=999)
    instance.timers.register_event_time_timer("n", late.astimezone(dt.timezone(dt.timedelta(hours=5))))
    instance.timers.register_event_time_timer("n", start.replace(tzinfo=None))
    instance.timers.register_event_time_timer("n", start)
    instance.timers.register_event_time_timer("n", start + dt.timedelta(seconds=1))
    instance.timers.delete_event_time_timer("n", start + dt.timedelta(seconds=1))
    instance.services.advance_watermark(milliseconds_of(start + dt.timedelta(days=1)))
    fired = [datetime_of(time) for time, *_ in instance.target.events]
    assert fired == [start, start + dt.timedelta(milliseconds=2)]
    assert datetime_of(2**60) is None


def test_the_least_and_the_greatest_time_are_times(instance):
    instance.event("k", "n", -(2**63), 2**63 - 1, np.int64(3))
    instance.services.advance_watermark(2**63 - 1)
    assert [time for time, *_ in instance.target.events] == [-(2**63), 3, 2**63 - 1]


def test_a_timer_needs_a_current_key_and_a_namespace_of_its_type(backends):
    instance = backends.instance()
    with pytest.raises(NoCurrentKeyError):
        instance.timers.register_event_time_timer("n", 1)
    instance.backend.set_current_key("k")
    for namespace in (None, 3, b"n"):
        with pytest.raises(InvalidTimerNamespaceError, match="'timers'"):
            instance.timers.register_event_time_timer(namespace, 1)
        with pytest.raises(InvalidTimerNamespaceError):
            instance.timers.delete_processing_time_timer(namespace, 1)
    assert instance.backend.num_entries() == 0


def test_event_time_timers_are_refused_where_rows_have_no_event_time(backends):
    instance = backends.instance(event_time=False)
    instance.processing("k", "n", 5)
    with pytest.raises(NoEventTimeError, match=r"event_time=EventTime\('ts'"):
        instance.timers.register_event_time_timer("n", 5)
    with pytest.raises(NoEventTimeError):
        instance.timers.register_event_time_timers(["k"], None, "n", 5)


def test_null_nan_and_negative_zero_are_keys_of_timers(backends):
    instance = backends.instance(key=types.nullable(types.FLOAT64))
    for key in (None, math.nan, float("nan"), -0.0, 0.0):
        instance.event(key, "n", 1)
    base = backends.snapshot(instance.backend)
    again = backends.instance([base], key=types.nullable(types.FLOAT64))
    again.event(float("nan"), "n", 1)
    again.event(None, "n", 1)
    again.services.advance_watermark(1)
    keys = [key for _, key, _ in again.target.events]
    assert len(keys) == 3 and None in keys and 0.0 in keys and any(key != key for key in keys if key)


def test_a_namespace_that_is_nan_is_one_namespace(instance):
    timers = instance.services.service("floats", instance.target, types.FLOAT64)
    instance.backend.set_current_key("k")
    timers.register_event_time_timer(math.nan, 1)
    timers.register_event_time_timer(float("nan"), 1)
    timers.delete_event_time_timer(-math.nan, 1)
    assert timers.num_event_time_timers() == 0


# -- checkpoints ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_timers_come_back_with_any_range_of_key_groups_and_on_any_backend(backends):
    """TM-14: the timers of a range are those of its key groups; PQ-10."""
    instance = backends.instance()
    keys = [f"key-{number}" for number in range(300)]
    instance.timers.register_event_time_timers(keys, None, "n", list(range(300)))
    instance.timers.register_processing_time_timers(keys, None, "n", 5)
    everything = instance.all_event_timers()
    base = backends.snapshot(instance.backend)
    for name in (backends.name, "sqlite", "heap-cow", "nested-map"):
        halves = [
            backends.instance([base], KeyGroupRange(*groups), name=name) for groups in ((0, 32), (33, 99))
        ]
        assert set.union(*(half.all_event_timers() for half in halves)) == everything
        for half in halves:
            half.services.advance_watermark(149)
            half.services.advance_processing_time(5)
            with pytest.raises(KeyGroupOutOfRangeError, match="key group 32" if half is halves[1] else "40"):
                half.timers.event_time_timers(32 if half is halves[1] else 40)
        assert sorted(time for half in halves for time, *_ in half.target.events) == list(range(150))
        assert sum(len(half.target.processing) for half in halves) == 300


def test_two_instances_become_one_with_the_timers_of_both(backends):
    parts = []
    for groups in ((0, 49), (50, 99)):
        part = backends.instance(groups=KeyGroupRange(*groups))
        own = [f"k{n}" for n in range(50) if part.backend.current.key_group_of(f"k{n}") in range(*groups)]
        part.timers.register_event_time_timers(own, None, "n", 3)
        parts.append(part)
    whole = backends.instance([backends.snapshot(part.backend) for part in parts])
    assert whole.all_event_timers() == parts[0].all_event_timers() | parts[1].all_event_timers()
    assert len(whole.all_event_timers()) > 40


def test_a_delta_holds_the_timers_that_came_and_went_and_none_that_did_both(backends):
    instance = backends.instance()
    instance.event("stays", "n", 10)
    instance.event("fires", "n", 1)
    instance.event("deleted", "n", 10)
    base = backends.snapshot(instance.backend)
    instance.backend.begin_epoch(1)
    instance.services.advance_watermark(5)
    instance.timers.delete_event_time_timers(["deleted"], None, "n", 10)
    instance.event("new", "n", 11)
    instance.event("short", "n", 2)
    instance.processing("new", "m", 12)
    instance.services.advance_watermark(5)
    changed = {name: len(changes) for name, changes in instance.backend.changes_since(0).items()}
    assert changed == {EVENT_TIMERS + "timers": 3, PROCESSING_TIMERS + "timers": 1}
    delta = backends.delta(instance.backend, 0)
    chain = backends.chain(base, [delta], instance.backend)
    again = backends.instance([chain])
    assert again.all_event_timers() == {Timer(10, "stays", "n"), Timer(11, "new", "n")}
    assert again.timers.num_processing_time_timers() == 1
    again.services.advance_watermark(20)
    assert again.target.events == [(10, "stays", "n"), (11, "new", "n")]


def test_what_is_registered_again_after_it_was_deleted_is_no_change_that_is_lost(backends):
    instance = backends.instance()
    instance.event("k", "n", 10)
    base = backends.snapshot(instance.backend)
    instance.backend.begin_epoch(1)
    instance.backend.set_current_key("k")
    for _ in range(3):
        instance.timers.delete_event_time_timer("n", 10)
        instance.timers.register_event_time_timer("n", 10)
    instance.timers.delete_event_time_timers(["k"], None, "n", 10)
    instance.timers.register_event_time_timers(["k"], None, "n", 10)
    chain = backends.chain(base, [backends.delta(instance.backend, 0)], instance.backend)
    assert backends.instance([chain]).all_event_timers() == {Timer(10, "k", "n")}


def test_a_snapshot_has_the_timers_of_its_moment(backends):
    instance = backends.instance()
    instance.event("k", "n", 1, 2)
    first = backends.snapshot(instance.backend)
    instance.services.advance_watermark(1)
    instance.event("k", "n", 3)
    second = backends.snapshot(instance.backend)
    assert backends.instance([first]).all_event_timers() == {Timer(1, "k", "n"), Timer(2, "k", "n")}
    assert backends.instance([second]).all_event_timers() == {Timer(2, "k", "n"), Timer(3, "k", "n")}


def test_timers_of_an_unrequested_service_are_kept(backends):
    instance = backends.instance()
    instance.event("k", "n", 1)
    silent = backends.backend([backends.snapshot(instance.backend)])
    assert silent.entries_by_state()[EVENT_TIMERS + "timers"] == 1
    again = backends.instance([backends.snapshot(silent)])
    assert again.all_event_timers() == {Timer(1, "k", "n")}


def test_timers_of_another_key_or_namespace_type_are_refused(backends):
    """TM-14, MIG-11."""
    instance = backends.instance()
    instance.event("k", "n", 1)
    base = backends.snapshot(instance.backend)
    with pytest.raises(StateMigrationError, match="key"):
        backends.instance([base], key=types.INT64)
    backend = backends.backend([base])
    with pytest.raises(StateMigrationError, match="namespace"):
        TimerServices(backend).service("timers", instance.target, types.INT64)
    with pytest.raises(StateMigrationError, match="namespace"):
        TimerServices(backend).service("timers", instance.target)


def test_a_service_is_looked_up_by_its_name(instance):
    same = instance.services.service("timers", instance.target, types.STRING)
    assert same is instance.timers
    other = instance.services.service("other", instance.target)
    instance.event("k", "n", 1)
    other.register_event_time_timer(types.VOID_NAMESPACE, 1)
    assert other.num_event_time_timers() == 1
    instance.services.advance_watermark(1)
    assert instance.target.events == [(1, "k", "n"), (1, "k", types.VOID_NAMESPACE)]
    with pytest.raises(InvalidTimerNamespaceError, match="'other'"):
        instance.services.service("other", instance.target, types.STRING)


def test_no_state_of_a_user_may_have_the_name_of_timers():
    with pytest.raises(InvalidDescriptorError, match="timers"):
        ValueState(EVENT_TIMERS + "timers", types.INT64)


def test_timers_and_states_of_a_key_coexist(backends):
    instance = backends.instance()
    count = instance.backend.get_state(ValueState("count", types.INT64, default=0))
    instance.target.then = lambda timer: count.update(count.value() + timer.time)
    instance.event("a", "n", 1, 2)
    instance.event("b", "n", 5)
    again = backends.instance([backends.snapshot(instance.backend)])
    assert again.all_event_timers() == instance.all_event_timers()
    instance.services.advance_watermark(10)
    found = {}
    for key in ("a", "b"):
        instance.backend.set_current_key(key)
        found[key] = count.value()
    assert found == {"a": 3, "b": 5}


def test_a_new_queue_has_timers_changed_outside_of_the_old_one(backends):
    """As where a resident host catches up with deltas of another one."""
    instance = backends.instance()
    instance.event("k", "n", 1, 2)
    instance.backend.write_back()
    table, group = EVENT_TIMERS + "timers", instance.backend.current.key_group
    changes = [
        EntryChange(table, group, (1, "n"), "k", False, None),
        EntryChange(table, group, (3, "n"), "k", True, types.VOID_NAMESPACE),
    ]
    instance.backend.apply_changes(table, changes)
    again = type(instance)(instance.backend)
    assert again.all_event_timers() == {Timer(2, "k", "n"), Timer(3, "k", "n")}
    again.services.advance_watermark(3)
    instance.backend.begin_epoch(1)
    assert instance.backend.entries_by_state()[table] == 0


def test_when_event_time_is_over_timers_see_it_and_states_do_not(instance):
    instance.event("k", "n", 10)
    instance.services.clock.event_time_over = True
    assert instance.timers.current_watermark == instance.services.clock.watermark == END_OF_TIME
    assert list(instance.timers.due_timers(in_event_time=True)) == [Timer(10, "k", "n")]
    assert instance.backend.watermark == BEFORE_TIME
