"""What the kinds of state do about their time to live beyond the common rules."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count
from operator import add

import pytest

from keyedstate import types
from keyedstate.errors import (
    InvalidDescriptorError,
    NothingToRemoveError,
    StateMigrationError,
    StateValueError,
)
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    FoldingState,
    ListState,
    ManualClock,
    MapState,
    ReducingState,
    Ttl,
    TtlClock,
    UpdateType,
    ValueState,
    Visibility,
)

READ = UpdateType.ON_READ_AND_WRITE
RELAXED = Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
TTL = Ttl(100, background_cleanup=False)


class Timed:
    """A backend and its clock; going to a time begins a record of key 1."""

    def __init__(self, instances):
        self.instances = instances
        self.clock = ManualClock(0)
        self.backend = instances.open(clock=self.clock)
        self.backend.set_current_key(1)

    def at(self, now, key=1):
        self.clock.now = now
        self.backend.set_current_key(key)

    def state(self, descriptor, namespace=0):
        return self.backend.get_state(descriptor, namespace, types.INT64)

    def restored(self):
        segment = self.instances.snapshot(self.backend)
        self.backend = self.instances.open([segment], clock=self.clock)
        self.backend.set_current_key(1)


@pytest.fixture
def timed(instances):
    return Timed(instances)


# -- value ------------------------------------------------------------------------------------------------


def test_an_update_with_none_clears_an_expired_value_too(timed):
    """TTL-02."""
    state = timed.state(ValueState("v", types.STRING, ttl=Ttl(100, visibility=RELAXED)))
    state.update("a")
    assert state.value() == "a"
    state.update(None)
    assert state.value() is None
    state.update("b")
    timed.at(100)
    state.update(None)
    assert state.value() is None and timed.backend.num_entries() == 0


def test_an_expired_value_gives_way_to_a_copy_of_the_default_for_each_key(timed):
    """SB-44."""
    state = timed.state(ValueState("v", types.list_of(types.INT64), default=[7], ttl=TTL))
    first = state.value()
    first.append(8)
    assert state.value() == [7]
    state.update([1])
    timed.at(100)
    assert state.value() == [7] and timed.backend.num_entries() == 0


@dataclass
class Visit:
    page: str
    seconds: float = 0.0


def test_a_value_of_a_class_of_the_users_has_a_time_to_live(timed):
    """SB-10."""
    for name, type_ in (("record", types.record_of(Visit)), ("pickled", types.pickled())):
        descriptor = ValueState(name, type_, ttl=TTL)
        timed.at(0)
        timed.state(descriptor).update(Visit("a", 1.5))
        timed.restored()
        timed.at(99)
        assert timed.state(descriptor).value() == Visit("a", 1.5)
        timed.at(100)
        assert timed.state(descriptor).value() is None


def test_a_wrong_value_changes_neither_the_value_nor_its_time(timed):
    state = timed.state(ValueState("v", types.INT64, ttl=TTL))
    state.update(1)
    timed.at(50)
    with pytest.raises(StateValueError, match="'v'"):
        state.update("x")
    with pytest.raises(StateValueError, match="'v'"):
        state.update_many([1, 2], [3, "x"])
    timed.at(99)
    assert state.value() == 1
    timed.at(100)
    assert state.value() is None


def test_a_value_changed_in_place_shows_in_a_later_read(timed):
    state = timed.state(ValueState("v", types.list_of(types.INT64), ttl=TTL))
    state.update([1])
    value = state.value()
    value.append(2)
    state.update(value)
    timed.restored()
    assert timed.state(ValueState("v", types.list_of(types.INT64), ttl=TTL)).value() == [1, 2]


# -- list -------------------------------------------------------------------------------------------------


def test_list_elements_expire_one_by_one_and_the_last_one_removes_the_list(timed):
    state = timed.state(ListState("l", types.INT64, ttl=TTL))
    for now, element in ((0, 1), (40, 2), (80, 3)):
        timed.at(now)
        state.add(element)
    for now, shown in ((99, [1, 2, 3]), (100, [2, 3]), (139, [2, 3]), (140, [3])):
        timed.at(now)
        assert state.get() == shown == state.get_internal()
        assert timed.backend.num_entries() == 1
    timed.at(180)
    assert state.get() == [] and state.get_internal() is None
    assert timed.backend.num_entries() == 0


def test_a_read_that_counts_writes_the_living_elements_back_without_the_expired_ones(timed):
    state = timed.state(ListState("l", types.INT64, ttl=Ttl(100, READ, RELAXED, background_cleanup=False)))
    state.add(1)
    timed.at(50)
    state.add(2)
    timed.at(120)
    assert state.get() == [1, 2]
    assert state.get() == [2]
    timed.at(219)
    assert state.get() == [2]


def test_the_lists_of_merged_namespaces_keep_the_time_of_each_element(timed):
    descriptor = ListState("l", types.INT64, ttl=TTL)
    for now, namespace in ((0, 1), (50, 2), (70, 3)):
        timed.at(now)
        timed.state(descriptor, namespace).add(namespace)
    state = timed.state(descriptor, 2)
    state.merge_namespaces(2, [1, 3])
    assert state.get() == [2, 1, 3]
    timed.at(120)
    assert state.get() == [2, 3]
    timed.at(169)
    assert state.get() == [3]


def test_an_overwritten_stored_list_begins_to_live(timed):
    state = timed.state(ListState("l", types.INT64, ttl=TTL))
    state.add(1)
    timed.at(60)
    state.update_internal([*state.get_internal(), 2])
    timed.at(159)
    assert state.get() == [1, 2]
    state.update_internal(None)
    assert state.get() == [] and timed.backend.num_entries() == 0


# -- map --------------------------------------------------------------------------------------------------


def test_map_entries_expire_one_by_one_and_an_access_removes_those_that_it_meets(timed):
    state = timed.state(MapState("m", types.STRING, types.INT64, ttl=TTL))
    for now, key in ((0, "a"), (40, "b"), (80, "c")):
        timed.at(now)
        state.put(key, now)
    timed.at(100)
    assert state.size() == 2 and not state.is_empty()
    assert state.get("a") is None and not state.contains("a")
    assert state.get_all(["c", "a", "b"]) == {"c": 80, "b": 40}
    assert list(state.items()) == [("b", 40), ("c", 80)]
    timed.at(140)
    assert list(state.keys()) == ["c"] and list(state.values()) == [80]
    assert state.first() == state.last() == ("c", 80) and state.between("a", "z") == [("c", 80)]
    timed.at(180)
    assert state.is_empty() and state.size() == 0
    assert list(state.items()) == [] and timed.backend.num_entries() == 0


def test_a_read_renews_the_time_of_one_map_entry_only(timed):
    state = timed.state(MapState("m", types.STRING, types.INT64, ttl=Ttl(100, READ)))
    state.put_all({"a": 1, "b": 2, "c": 3, "d": 4})
    timed.at(50)
    assert state.get("a") == 1 and state.contains("b") and state.get_all(["c"]) == {"c": 3}
    timed.at(149)
    assert dict(state.items()) == {"a": 1, "b": 2, "c": 3}


def test_asking_for_the_size_of_a_map_is_no_read(timed):
    state = timed.state(MapState("m", types.STRING, types.INT64, ttl=Ttl(100, READ)))
    state.put("a", 1)
    timed.at(50)
    assert state.size() == 1 and not state.is_empty()
    timed.at(100)
    assert state.size() == 0 and state.is_empty()


def test_the_iterator_removes_only_directly_after_it_showed_an_entry(timed):
    """TTL-19."""
    state = timed.state(MapState("m", types.INT64, types.INT64, ttl=TTL))
    state.put_all({1: 10, 2: 20})
    entries = state.entries()
    with pytest.raises(NothingToRemoveError):
        entries.remove()
    assert next(entries) == (1, 10)
    entries.remove()
    with pytest.raises(NothingToRemoveError):
        entries.remove()
    assert next(entries) == (2, 20)
    assert not entries.has_next()
    with pytest.raises(NothingToRemoveError):
        entries.remove()
    assert dict(state.items()) == {2: 20}


def test_iterating_removes_expired_entries_and_gives_a_new_time_where_reads_count(timed):
    """TTL-19."""
    state = timed.state(MapState("m", types.INT64, types.INT64, ttl=Ttl(100, READ, background_cleanup=False)))
    state.put_all({1: 10, 2: 20})
    timed.at(60)
    state.put(3, 30)
    timed.at(100)
    assert list(state.entries()) == [(3, 30)]
    timed.at(199)
    assert list(state.entries()) == [(3, 30)]
    timed.at(299)
    assert list(state.entries()) == [] and timed.backend.num_entries() == 0


def test_an_entry_written_through_the_iterator_begins_to_live(timed):
    """TTL-19."""
    state = timed.state(MapState("m", types.INT64, types.INT64, ttl=TTL))
    state.put_all({1: 10, 2: 20})
    timed.at(60)
    next(state.entries()).set_value(11)
    timed.at(159)
    assert dict(state.items()) == {1: 11}


def test_an_expired_entry_that_is_shown_by_the_iterator_is_removed_by_it(timed):
    """TTL-19."""
    state = timed.state(
        MapState("m", types.INT64, types.INT64, ttl=Ttl(100, visibility=RELAXED, background_cleanup=False))
    )
    state.put(1, 10)
    timed.at(100)
    iterator = state.entries()
    assert next(iterator) == (1, 10)
    with pytest.raises(NothingToRemoveError):
        iterator.remove()
    assert timed.backend.num_entries() == 0


def test_putting_nothing_into_a_map_changes_nothing(timed):
    state = timed.state(MapState("m", types.INT64, types.INT64, ttl=TTL))
    state.put_all({})
    assert timed.backend.num_entries() == 0
    state.put(1, 1)
    state.remove(1)
    state.remove(2)
    state.remove_all([3])
    assert state.is_empty() and timed.backend.num_entries() == 0


# -- reducing and aggregating -----------------------------------------------------------------------------


def accumulating(kind):
    return {
        "reducing": ReducingState("a", add, types.INT64, ttl=TTL),
        "folding": FoldingState("a", 0, add, types.INT64, ttl=TTL),
    }[kind]


@pytest.mark.parametrize("kind", ["reducing", "folding"])
def test_an_addition_to_an_expired_value_starts_empty(timed, kind):
    state = timed.state(accumulating(kind))
    state.add(1)
    timed.at(99)
    state.add(2)
    assert state.get() == 3
    timed.at(199)
    state.add(5)
    assert state.get() == 5
    state.update_internal(9)
    timed.at(298)
    assert state.get_internal() == 9
    state.update_internal(None)
    assert state.get() is None and timed.backend.num_entries() == 0


def test_merged_namespaces_begin_to_live_and_leave_out_what_is_expired(timed):
    descriptor = accumulating("reducing")
    for now, namespace, value in ((0, 1, 1), (60, 2, 10), (70, 3, 100)):
        timed.at(now)
        timed.state(descriptor, namespace).add(value)
    timed.at(120)
    state = timed.state(descriptor, 4)
    state.merge_namespaces(4, [1, 2, 3])
    assert state.get() == 110
    timed.at(219)
    assert state.get() == 110
    timed.at(220)
    assert state.get() is None and timed.backend.num_entries() == 0


def test_a_late_row_that_adds_makes_nothing_older(timed):
    descriptor = ReducingState("a", add, types.INT64, ttl=Ttl(100, clock=TtlClock.EVENT_TIME))
    timed.backend.advance_watermark(500)
    state = timed.state(descriptor)
    for timestamp in (1000, 600):
        timed.backend.current.timestamp = timestamp
        timed.backend.set_current_key(1)
        state.add(1)
    timed.backend.advance_watermark(1099)
    assert state.get() == 2
    timed.backend.advance_watermark(1100)
    assert state.get() is None


def test_one_merged_source_keeps_its_time(timed):
    descriptor = accumulating("reducing")
    timed.state(descriptor, 1).add(1)
    timed.at(60)
    state = timed.state(descriptor, 2)
    state.merge_namespaces(2, [1])
    timed.at(100)
    assert state.get() is None


def test_a_function_that_returns_a_wrong_value_changes_nothing(timed):
    state = timed.state(ReducingState("r", lambda a, b: "wrong", types.INT64, ttl=TTL))
    state.add(1)
    timed.at(50)
    with pytest.raises(StateValueError, match="'r'"):
        state.add(2)
    assert state.get() == 1
    timed.at(100)
    assert state.get() is None


# -- many keys --------------------------------------------------------------------------------------------

SETTINGS = [
    Ttl(100, update, visibility, background_cleanup=False, expiry_index=index)
    for update in UpdateType
    for visibility in Visibility
    for index in (False, True)
]


@pytest.mark.parametrize("ttl", SETTINGS, ids=str)
def test_bulk_methods_do_what_their_loops_do(instances, kind, ttl):
    """Random writes and reads at random times, in bulk on one backend and one by one on another."""
    rng = random.Random(7)
    numbers = count()
    one, many = Timed(instances), Timed(instances)
    singles, bulk = (rig.backend.get_state(kind.declare(ttl)) for rig in (one, many))
    for _ in range(60):
        now = one.clock.now + rng.randrange(60)
        one.at(now)
        many.at(now)
        keys = [rng.randrange(6) for _ in range(rng.randrange(8))]
        step = rng.randrange(4)
        if step == 0:
            expected = []
            for key in keys:
                one.backend.set_current_key(key)
                expected.append(dict(singles.items()) if hasattr(singles, "items") else _read(singles))
            assert bulk.get_many(keys) == expected
        elif step == 1:
            for key in keys:
                one.backend.set_current_key(key)
                singles.clear()
            bulk.clear_many(keys)
        else:
            _write(one, singles, bulk, keys, rng, numbers)
        if step == 3:
            one.backend.end_epoch()
            many.backend.end_epoch()
        assert one.backend.num_entries() == many.backend.num_entries()


def _read(handle):
    return handle.value() if hasattr(handle, "value") else handle.get()


def _write(one, singles, bulk, keys, rng, numbers):
    is_map = hasattr(singles, "put_many")
    strings = "STRING" in repr(singles._value_type if is_map else singles._serializer)
    values = [str(next(numbers)) if strings else next(numbers) for _ in keys]
    if is_map:
        map_keys = ["k" if singles._key_type is types.STRING else 3 for _ in keys]
        for key, map_key, value in zip(keys, map_keys, values, strict=True):
            one.backend.set_current_key(key)
            singles.put(map_key, value)
        bulk.put_many(keys, map_keys, values)
    elif hasattr(singles, "add_many") and (not hasattr(singles, "update_many") or rng.random() < 0.5):
        for key, value in zip(keys, values, strict=True):
            one.backend.set_current_key(key)
            singles.add(value)
        bulk.add_many(keys, values)
    else:
        wrapped = [[value, value] for value in values] if hasattr(singles, "add_all") else values
        for key, value in zip(keys, wrapped, strict=True):
            one.backend.set_current_key(key)
            singles.update(value)
        bulk.update_many(keys, wrapped)


# -- types that change ------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, TTL])
@pytest.mark.parametrize("after", [None, TTL])
def test_types_migrate_with_and_without_a_time_to_live(timed, before, after):
    """MIG-01, MIG-04, MIG-08: and together with a time to live that comes or goes."""

    def states(small, ttl):
        return (
            ValueState("v", small, ttl=ttl),
            ListState("l", small, ttl=ttl),
            MapState("m", types.STRING, small, ttl=ttl),
        )

    value, elements, entries = map(timed.state, states(types.INT16, before))
    value.update(1)
    elements.add_all([1, 2])
    entries.put_all({"a": 1, "b": None})
    timed.restored()
    value, elements, entries = map(timed.state, states(types.INT64, after))
    value_before = value.value()
    elements.add(2**40)
    entries.put("c", 2**40)
    assert value_before == 1
    assert elements.get() == [1, 2, 2**40]
    assert dict(entries.items()) == {"a": 1, "b": None, "c": 2**40}
    timed.restored()
    value, elements, entries = map(timed.state, states(types.INT64, after))
    assert (value.value(), elements.get(), entries.get("c")) == (1, [1, 2, 2**40], 2**40)


@pytest.mark.parametrize("before", [None, TTL])
@pytest.mark.parametrize("after", [None, TTL])
def test_an_incompatible_type_is_refused_whatever_the_time_to_live(timed, before, after):
    """MIG-03: and nothing of the restored state is lost."""
    timed.state(ValueState("v", types.STRING, ttl=before)).update("a")
    timed.restored()
    with pytest.raises(StateMigrationError, match="'v'"):
        timed.state(ValueState("v", types.INT64, ttl=after))
    assert timed.state(ValueState("v", types.STRING, ttl=before)).value() == "a"


def test_a_second_look_up_with_another_time_to_live_is_refused(timed):
    timed.state(ValueState("v", types.STRING, ttl=TTL))
    with pytest.raises(StateMigrationError, match="'v'"):
        timed.state(ValueState("v", types.STRING))
    with pytest.raises(InvalidDescriptorError, match=r"'v'.* 200 ms .* 100 ms"):
        timed.state(ValueState("v", types.STRING, ttl=Ttl(200, background_cleanup=False)))


def test_a_restored_state_that_is_not_registered_keeps_its_timestamps(timed):
    """SB-37."""
    timed.state(ValueState("v", types.STRING, ttl=TTL)).update("a")
    timed.restored()
    timed.restored()
    timed.at(99)
    assert timed.state(ValueState("v", types.STRING, ttl=TTL)).value() == "a"
    timed.at(100)
    assert timed.state(ValueState("v", types.STRING, ttl=TTL)).value() is None


def test_an_aggregate_has_a_time_to_live(timed):
    """TTL-03."""

    class Mean(AggregateFunction):
        def create_accumulator(self):
            return (0, 0)

        def add(self, value, accumulator):
            return accumulator[0] + value, accumulator[1] + 1

        def get_result(self, accumulator):
            return accumulator[0] / accumulator[1]

    state = timed.state(AggregatingState("mean", Mean(), types.tuple_of(types.INT64, types.INT64), ttl=TTL))
    state.add_many([1, 1, 2], [1, 2, 10])
    assert state.get_many([1, 2, 3]) == [1.5, 10.0, None]
    timed.at(100)
    assert state.get() is None
