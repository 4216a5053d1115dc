"""Map state over every installed state backend: its iterator, its order, several entries at once."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal

import pytest

from keyedstate import types
from keyedstate.errors import NothingToRemoveError, StateValueError, UnorderedKeyError
from keyedstate.state import MapState

COUNTS = MapState("counts", types.INT64, types.nullable(types.STRING))


@pytest.fixture
def counts(backend):
    backend.set_current_key(1)
    return backend.get_state(COUNTS)


# -- the iterator -----------------------------------------------------------------------------------------


def test_the_iterator_removes_and_its_entries_write_through(instances):
    """SB-29: also over snapshots that saw the map before."""
    backend = instances.open()
    backend.set_current_key(1)
    counts = backend.get_state(COUNTS)
    counts.put_all({1: "a", 2: "b", 3: None})
    before = instances.snapshot(backend)
    iterator = counts.entries()
    for entry in iterator:
        if entry.key == 2:
            iterator.remove()
        elif entry.value is None:
            entry.set_value("c")
            assert entry == (3, "c")
    assert dict(counts.items()) == {1: "a", 3: "c"}
    for handle, expected in (
        (before, {1: "a", 2: "b", 3: None}),
        (instances.snapshot(backend), {1: "a", 3: "c"}),
    ):
        restored = instances.open([handle])
        restored.set_current_key(1)
        assert dict(restored.get_state(COUNTS).items()) == expected


def test_an_iterator_removes_each_of_many_entries_once(counts):
    """SB-31: remove() twice is an error, has_next() between next() and remove() does not matter."""
    for key in range(4096):
        counts.put(key, str(key))
    iterator, seen = counts.iterator(), []
    with pytest.raises(NothingToRemoveError, match="the map state 'counts' has nothing to remove"):
        iterator.remove()
    while iterator.has_next():
        key, value = next(iterator)
        assert value == str(key)
        seen.append(key)
        if key % 2:
            iterator.has_next()
            iterator.remove()
            with pytest.raises(NothingToRemoveError):
                iterator.remove()
    assert sorted(seen) == list(range(4096))
    assert sorted(counts.keys()) == list(range(0, 4096, 2))
    with pytest.raises(StopIteration):
        next(iterator)


def test_removing_every_entry_removes_the_map(backend, counts):
    counts.put_all({1: "a", 2: "b"})
    iterator = counts.entries()
    for _ in iterator:
        iterator.remove()
    assert counts.is_empty() and backend.num_entries() == 0
    assert not counts.entries().has_next()


def test_an_entry_equals_the_pair_and_the_entry_of_another_state(backend, counts):
    """SB-32."""
    other = backend.get_state(MapState("other", types.INT64, types.STRING))
    for state in (counts, other):
        state.put(0, "10")
    (mine,), (theirs,) = counts.entries(), other.entries()
    assert mine == (0, "10") == mine
    assert mine == theirs
    assert mine != (0, "11") and mine != (0, "10", None) and mine != 0
    assert (mine.key, mine.value, tuple(mine)) == (0, "10", (0, "10"))


def test_an_iterator_continues_over_a_map_that_changes(counts):
    counts.put_all({1: "a", 2: "b", 3: "c"})
    iterator = counts.entries()
    assert next(iterator) == (1, "a")
    counts.remove(2)
    counts.put(3, "changed")
    counts.put(4, "new")
    assert list(iterator) == [(3, "changed")]
    iterator.remove()
    assert dict(counts.items()) == {1: "a", 4: "new"}


def test_an_iterator_stays_with_the_key_that_it_was_made_for(backend, counts):
    counts.put(1, "a")
    iterator = counts.entries()
    (entry,) = iterator
    backend.set_current_key(2)
    counts.put(1, "z")
    entry.set_value("b")
    iterator.remove()
    assert dict(counts.items()) == {1: "z"}
    backend.set_current_key(1)
    assert counts.is_empty()
    entry.set_value("again")
    assert dict(counts.items()) == {1: "again"}


def test_an_iterator_that_continues_after_a_snapshot_does_not_change_it(instances):
    """SB-51."""
    backend = instances.open()
    backend.set_current_key(1)
    counts = backend.get_state(COUNTS)
    counts.put_all({1: "a", 2: "b"})
    iterator = counts.entries()
    entry = next(iterator)
    task = backend.snapshot(1)
    if task.asynchronous:
        entry.set_value("changed")
        next(iterator)
        iterator.remove()
    restored = instances.open([instances.write(backend, task)])
    restored.set_current_key(1)
    assert dict(restored.get_state(COUNTS).items()) == {1: "a", 2: "b"}
    assert dict(counts.items()) == ({1: "changed"} if task.asynchronous else {1: "a", 2: "b"})


def test_a_wrong_type_written_through_is_refused(counts):
    counts.put(1, "a")
    (entry,) = counts.entries()
    with pytest.raises(StateValueError, match="'counts'"):
        entry.set_value(5)
    assert entry.value == "a" and counts.get(1) == "a"


# -- several entries --------------------------------------------------------------------------------------


def test_several_entries_are_read_and_removed_at_once(backend, counts):
    assert counts.get_all([1, 2]) == {}
    counts.remove_all([1])
    counts.put_all({1: "a", 2: None, 3: "c"})
    assert list(counts.get_all([3, 9, 2]).items()) == [(3, "c"), (2, None)]
    counts.remove_all(iter([3, 9]))
    assert counts.size() == 2
    counts.remove_all([1, 2])
    assert backend.num_entries() == 0


def test_several_entries_of_nan_and_negative_zero_are_found(backend):
    backend.set_current_key(1)
    weights = backend.get_state(MapState("weights", types.FLOAT64, types.INT64))
    weights.put_all({math.nan: 1, -0.0: 2, 1.0: 3})
    assert list(weights.get_all([-math.nan, 0.0]).values()) == [1, 2]
    weights.remove_all([float("nan"), -0.0])
    assert dict(weights.items()) == {1.0: 3}


# -- the order of map keys --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "keys"),
    [
        (types.INT64, [-5, -1, 0, 3, 2**40]),
        (types.STRING, ["", "B", "a", "ab", "b", "\uffff", "\U0001f600"]),
        (types.BYTES, [b"", b"\x00", b"\x7f", b"\x80\x00", b"\xff"]),
        (types.BOOLEAN, [False, True]),
        (types.FLOAT64, [-math.inf, -1.0, 0.0, 2.5, math.inf, math.nan]),
        (types.DATE, [dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(2024, 3, 1)]),
        (types.TIMESTAMP_NTZ, [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1)]),
        (types.decimal(10, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("10.25")]),
        (types.tuple_of(types.STRING, types.INT64), [("a", 2), ("a", 10), ("b", 1)]),
        (
            types.tuple_of(types.nullable(types.INT64), types.nullable(types.FLOAT64)),
            [(None, None), (None, 1.0), (None, math.nan), (1, None), (1, -math.inf), (2, 0.0)],
        ),
    ],
    ids=repr,
)
def test_ranges_first_and_last_follow_the_order_of_the_map_keys(backend, type_, keys):
    backend.set_current_key(1)
    handle = backend.get_state(MapState("ordered", type_, types.INT64))
    assert (handle.first(), handle.last(), handle.between()) == (None, None, [])
    numbers = {type_.canonical(key): number for number, key in enumerate(keys)}
    shuffled = list(keys)
    random.Random(7).shuffle(shuffled)
    for key in shuffled:
        handle.put(key, numbers[type_.canonical(key)])
    assert [value for _, value in handle.between()] == list(range(len(keys)))
    assert handle.first()[1] == 0
    assert handle.last()[1] == len(keys) - 1
    for low in range(len(keys)):
        assert [value for _, value in handle.between(low=keys[low])] == list(range(low, len(keys)))
        for high in range(len(keys)):
            found = handle.between(keys[low], keys[high])
            assert [value for _, value in found] == list(range(low, high + 1))
    assert handle.between()[0] == handle.first()


def test_a_bound_need_not_be_a_map_key(counts):
    counts.put_all({10: "a", 20: "b", 30: None})
    assert counts.between(11, 30) == [(20, "b"), (30, None)]
    assert counts.between(21, 29) == []
    assert counts.between(high=19) == [(10, "a")]
    assert counts.between(30, 10) == []


@pytest.mark.parametrize("call", [lambda m: m.between(1, 2), lambda m: m.first(), lambda m: m.last()])
def test_an_unordered_key_type_is_refused_by_name(backend, call):
    backend.set_current_key(1)
    unordered = MapState("by_colour", Colours(), types.INT64)
    with pytest.raises(
        UnorderedKeyError, match=r"'by_colour' has keys of the type COLOURS.*items\(\)"
    ) as caught:
        call(backend.get_state(unordered))
    assert caught.value.state == "by_colour"
    nested = MapState("nested", types.tuple_of(types.INT64, Colours()), types.INT64)
    with pytest.raises(UnorderedKeyError, match="'nested'"):
        call(backend.get_state(nested))


def test_a_bound_of_the_wrong_type_is_refused(counts):
    with pytest.raises(StateValueError, match=r"'counts' refuses the value: expected INT64.*got str"):
        counts.between("a", "b")


class Colour:
    """An immutable value without an order."""


class Colours(type(types.STRING)):
    """The type of colours: whatever a stranger's serializer may be."""

    type_name = "colours"
    python_type = Colour
