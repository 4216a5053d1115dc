"""Bulk methods over many keys do what their loops do, on every installed state backend."""

from __future__ import annotations

import operator
import random

import numpy as np
import pytest

from keyedstate import types
from keyedstate.errors import StateValueError, ValueTypeError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    FoldingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)

NUMBER = ValueState("number", types.INT64, default=-1)
TAGS = ValueState("tags", types.list_of(types.STRING), default=["none"])
SEEN = ListState("seen", types.INT64)
TOTAL = ReducingState("total", operator.add, types.INT64)
COUNTS = MapState("counts", types.STRING, types.nullable(types.INT64))


class Listed(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator):
        return tuple(accumulator)


LISTED = AggregatingState("listed", Listed(), types.list_of(types.INT64))


def write_one_by_one(backend, keys, numbers):
    """Write rows into every kind of state with single calls."""
    for key, number in zip(keys, numbers, strict=True):
        backend.set_current_key(key)
        backend.get_state(NUMBER).update(None if number % 7 == 0 else number)
        backend.get_state(SEEN).add(number)
        backend.get_state(TOTAL).add(None if number % 11 == 0 else number)
        backend.get_state(LISTED).add(None if number % 13 == 0 else number)
        backend.get_state(COUNTS).put(str(number % 3), None if number % 5 == 0 else number)


def write_at_once(backend, keys, numbers, key_groups=None):
    """Write the same rows with one call per state."""
    backend.get_state(NUMBER).update_many(
        keys, [None if number % 7 == 0 else number for number in numbers], key_groups
    )
    backend.get_state(SEEN).add_many(keys, numbers, key_groups)
    backend.get_state(TOTAL).add_many(
        keys, [None if number % 11 == 0 else number for number in numbers], key_groups
    )
    backend.get_state(LISTED).add_many(
        keys, [None if number % 13 == 0 else number for number in numbers], key_groups
    )
    backend.get_state(COUNTS).put_many(
        keys,
        [str(number % 3) for number in numbers],
        [None if number % 5 == 0 else number for number in numbers],
        key_groups,
    )


def read_one_by_one(backend, keys):
    found = []
    for key in keys:
        backend.set_current_key(key)
        found.append(
            (
                backend.get_state(NUMBER).value(),
                backend.get_state(SEEN).get(),
                backend.get_state(TOTAL).get(),
                backend.get_state(LISTED).get(),
                dict(backend.get_state(COUNTS).items()),
            )
        )
    return found


def read_at_once(backend, keys, key_groups=None):
    states = (NUMBER, SEEN, TOTAL, LISTED, COUNTS)
    columns = [backend.get_state(state).get_many(keys, key_groups) for state in states]
    return list(zip(*columns, strict=True))


def groups_of(backend, keys):
    groups = []
    for key in keys:
        backend.set_current_key(key)
        groups.append(backend.current.key_group)
    return groups


@pytest.mark.parametrize("given", ["computed", "list", "array"])
def test_bulk_methods_do_what_their_loops_do(instances, given):
    generator = random.Random(42)
    one, many = instances.open(), instances.open()
    for _ in range(5):
        keys = [generator.randrange(40) for _ in range(200)]
        numbers = [generator.randrange(1000) for _ in range(200)]
        groups = None if given == "computed" else groups_of(many, keys)
        write_one_by_one(one, keys, numbers)
        write_at_once(many, keys, numbers, np.array(groups) if given == "array" else groups)
        everything = list(range(45))
        assert one.entries_by_state() == many.entries_by_state()
        expected = read_one_by_one(one, everything)
        assert read_one_by_one(many, everything) == expected
        assert read_at_once(many, everything) == expected
        cleared = keys[:20]
        for state in (NUMBER, SEEN, TOTAL, LISTED, COUNTS):
            for key in cleared:
                one.set_current_key(key)
                one.get_state(state).clear()
            many.get_state(state).clear_many(cleared, groups_of(many, cleared))
    # Both continue from what a snapshot kept.
    restored = instances.open([instances.snapshot(many)])
    assert read_at_once(restored, everything) == read_one_by_one(one, everything)


@pytest.mark.parametrize("tracked", [False, True], ids=["", "tracked"])
@pytest.mark.slow
def test_bulk_methods_equal_their_loops_over_many_rows_and_during_a_snapshot(instances, tracked):
    """More rows than one chunk has, keys that come once and again, stored before and new."""
    generator = random.Random(42)
    one, many = (instances.open(track_changes=tracked) for _ in range(2))
    everything, empty = list(range(3000)), instances.snapshot(instances.open())
    tasks, expected = [], [read_one_by_one(one, everything)]
    for epoch in range(1, 4):
        if tracked:
            one.begin_epoch(epoch)
            many.begin_epoch(epoch)
        keys = generator.sample(everything, 1500) + [generator.randrange(2000) for _ in range(500)]
        numbers = [generator.randrange(1000) for _ in keys]
        lists = [[number] * (number % 3) for number in numbers]
        write_one_by_one(one, keys, numbers)
        write_at_once(many, keys, numbers)
        expected.append(read_one_by_one(one, everything))
        assert read_at_once(many, everything) == expected[-1]
        if tracked:
            assert changed(one, epoch - 1) == changed(many, epoch - 1)
        if instances.asynchronous:
            tasks.append((many.snapshot(epoch), expected[-1]))
        for key, values in zip(keys, lists, strict=True):
            one.set_current_key(key)
            one.get_state(SEEN).update(values)
        many.get_state(SEEN).update_many(keys, (tuple(values) for values in lists))
        assert many.get_state(SEEN).get_many(everything) == one.get_state(SEEN).get_many(everything)
    for task, then in tasks:
        assert read_one_by_one(instances.open([empty, instances.write(many, task)]), everything) == then


def changed(backend, epoch):
    """Return what every state tells of its changes, whatever their order."""
    captured = backend.changes_since(epoch)
    found = {}
    for name, changes in captured.items():
        for group in backend.key_groups:
            for batch in changes.written(group, 100):
                found.update(
                    ((name, key), repr(value)) for key, value in zip(batch.keys, batch.values, strict=True)
                )
            for batch in changes.removed(group, 100):
                found.update(((name, key), "removed") for key in batch.keys)
        changes.release()
    return found


def test_a_function_that_fails_for_one_of_many_keys_changes_none(backend):
    """Whether it raises, or makes what cannot be stored; for immutable values, and for repeated keys too."""

    def fail(stored, value):
        if value == 99:
            raise ZeroDivisionError
        return {98: None, 97: "x", 96: 2**63}.get(value, stored + value)

    keys = list(range(1000))
    for state in (
        ReducingState("reducing", fail, types.INT64),
        FoldingState("folding", 0, fail, types.INT64),
    ):
        handle = backend.get_state(state)
        handle.add_many(keys, [1] * 1000)
        for value, error in (
            (99, ZeroDivisionError),
            (98, StateValueError),
            (97, StateValueError),
            (96, StateValueError),
        ):
            for columns in (
                (keys, [5] * 999 + [value]),
                ([1, 2, 2, 3], [5, 5, value, 5]),
                ([1, 2, 3], [None, 5, value]),
            ):
                with pytest.raises(error):
                    handle.add_many(*columns)
        assert handle.get_many(keys) == [1] * 1000


def test_lists_of_any_iterables_are_taken_once_and_are_the_states_own(backend):
    seen = backend.get_state(SEEN)
    given = [1, 2]
    seen.update_many(range(4), [given, (3,), iter([4, 5]), {6: None}.keys()])
    given.append(7)
    seen.update_many([9], [given])
    given.append(8)
    assert seen.get_many([0, 1, 2, 3, 9]) == [[1, 2], [3], [4, 5], [6], [1, 2, 7]]


def test_bulk_methods_take_nothing(backend):
    write_at_once(backend, [], [])
    assert read_at_once(backend, []) == []
    backend.get_state(NUMBER).clear_many([])
    assert backend.num_entries() == 0


def test_bulk_methods_need_no_current_key_and_leave_it(backend):
    write_at_once(backend, [1, 2], [3, 4])
    backend.set_current_key(9)
    write_at_once(backend, [1, 2], [3, 4])
    assert (backend.current.key, backend.get_state(SEEN).get()) == (9, [])


def test_bulk_methods_work_in_the_namespace_of_the_accessor(backend):
    seen = backend.get_state(SEEN, "w1", types.STRING)
    seen.add_many([1, 2], [10, 20])
    seen.set_namespace("w2")
    assert seen.get_many([1, 2]) == [[], []]
    seen.update_many([2], [[5]])
    assert sorted(backend.get_keys_and_namespaces("seen")) == [(1, "w1"), (2, "w1"), (2, "w2")]


def test_the_last_of_a_repeated_key_counts(backend):
    number = backend.get_state(NUMBER)
    number.update_many([1, 1, 2, 2, 3], [5, None, None, 6, 7])
    assert number.get_many([1, 2, 3]) == [-1, 6, 7]
    seen = backend.get_state(SEEN)
    seen.update_many([1, 1, 2], [[1], [], [2, 3]])
    assert seen.get_many([1, 2]) == [[], [2, 3]]


def test_defaults_and_results_belong_to_the_caller(backend):
    tags = backend.get_state(TAGS)
    first, second = tags.get_many([1, 2])
    assert first == second == ["none"] and first is not second
    seen, counts = backend.get_state(SEEN), backend.get_state(COUNTS)
    seen.add_many([1], [1])
    counts.put_many([1], ["a"], [1])
    seen.get_many([1])[0].append(2)
    counts.get_many([1])[0]["b"] = 2
    assert (seen.get_many([1]), counts.get_many([1])) == ([[1]], [{"a": 1}])


@pytest.mark.parametrize(
    "call",
    [
        lambda backend: backend.get_state(NUMBER).update_many([1, 2], [1, "x"]),
        lambda backend: backend.get_state(SEEN).add_many([1, 2], [1, "x"]),
        lambda backend: backend.get_state(SEEN).add_many([1, 2], [1, True]),
        lambda backend: backend.get_state(SEEN).add_many([1, 2], [1, 2**63]),
        lambda backend: backend.get_state(SEEN).update_many([1, 2], [[1], ["x"]]),
        lambda backend: backend.get_state(SEEN).update_many([1, 2], [[1], iter([None])]),
        lambda backend: backend.get_state(TOTAL).add_many([1, 2], [1, "x"]),
        lambda backend: backend.get_state(COUNTS).put_many([1, 2], ["a", 5], [1, 2]),
        lambda backend: backend.get_state(COUNTS).put_many([1, 2], ["a", "b"], [1, "x"]),
    ],
)
def test_one_wrong_value_refuses_all_by_the_name_of_the_state(backend, call):
    with pytest.raises(StateValueError, match=r"the state '(number|seen|total|counts)' refuses the value"):
        call(backend)
    assert backend.num_entries() == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda backend: backend.get_state(NUMBER).update_many([1, 2], [1]), "2 keys and 1 values.*'number'"),
        (lambda backend: backend.get_state(SEEN).add_many([1], [1, 2]), "1 keys and 2 values.*'seen'"),
        (lambda backend: backend.get_state(SEEN).update_many([1], []), "1 keys and 0 lists"),
        (lambda backend: backend.get_state(TOTAL).add_many([], [1]), "0 keys and 1 values"),
        (lambda backend: backend.get_state(COUNTS).put_many([1], [], [1]), "1 keys and 0 map keys"),
        (lambda backend: backend.get_state(NUMBER).get_many([1, 2], [0]), "2 keys and 1 key groups"),
    ],
)
def test_columns_of_unequal_length_are_refused(backend, call, message):
    with pytest.raises(ValueError, match=message):
        call(backend)
    assert backend.num_entries() == 0


def test_a_key_of_another_instance_or_type_is_refused(instances):
    backend = instances.open(groups=KeyGroupRange(0, 4))
    number = backend.get_state(NUMBER)
    with pytest.raises(ValueError, match=r"the key \d+ belongs to key group \d, outside key groups \[0, 4\]"):
        number.update_many(range(100), range(100))
    with pytest.raises(ValueError, match="the key 1 belongs to key group 7, outside"):
        number.get_many([1], [7])
    with pytest.raises(ValueTypeError, match=r"expected INT64.*got str 'x'"):
        number.get_many(["x"])
    assert backend.num_entries() == 0


@pytest.mark.parametrize(
    ("key_type", "keys"),
    [
        (types.nullable(types.STRING), [None, "", "a", "ä", "\U0001f600"]),
        (types.FLOAT64, [float("nan"), 0.0, -0.0, 1.5, -float("nan")]),
        (
            types.tuple_of(types.nullable(types.STRING), types.FLOAT64),
            [(None, -0.0), (None, 0.0), ("a", 1.0)],
        ),
        (types.BOOLEAN, [True, False]),
        (types.INT8, [-128, 0, 127]),
    ],
    ids=repr,
)
def test_keys_of_every_kind_are_found_by_bulk_and_by_single_calls(instances, key_type, keys):
    backend = instances.open(key=key_type, max_parallelism=128)
    number = backend.get_state(NUMBER)
    number.update_many(keys, range(len(keys)))
    for key in keys:
        backend.set_current_key(key)
        assert number.value() == number.get_many([key])[0] >= 0
        number.update(100)
    assert number.get_many(keys) == [100] * len(keys)
    assert backend.num_entries() == len({repr(key_type.canonical(key)) for key in keys})
