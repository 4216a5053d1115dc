"""What `CopyOnWriteStateMap` does, compiled and uncompiled alike."""

from __future__ import annotations

import gc
import itertools
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

NS = ("window", 1)


def contents(state_map: Any) -> dict[tuple[Any, Any], Any]:
    """The entries of a map or snapshot; fails where an address comes twice."""
    found = {}
    for key, namespace, value in state_map:
        assert (key, namespace) not in found
        found[key, namespace] = value
    return found


def filled(cowmap: ModuleType, count: int, **arguments: Any) -> Any:
    """A map of `count` entries number -> number under one namespace."""
    state_map = cowmap.CopyOnWriteStateMap(**arguments)
    for i in range(count):
        state_map.put(i, NS, i)
    return state_map


def until_rehash(state_map: Any, numbers: Iterator[int]) -> list[int]:
    """Put numbers until a rehash begins; return them."""
    put = []
    while not state_map.is_rehashing:
        put.append(next(numbers))
        state_map.put(put[-1], NS, put[-1])
    return put


# -- the basic operations ------------------------------------------------------------------------------


def test_entries_are_addressed_by_key_and_namespace(cowmap: ModuleType) -> None:
    """COW-01."""
    state_map = cowmap.CopyOnWriteStateMap(list)
    for size, (key, namespace, value) in enumerate([(1, 1, [41]), (2, 1, [42]), (1, 2, [43])], 1):
        assert state_map.put_and_get_old(key, namespace, value) is None
        assert len(state_map) == size
        assert state_map.get(key, namespace) is value
    assert not state_map.contains(3, 1)
    assert not state_map.contains(2, 3)
    assert state_map.get(3, 1) is None
    assert contents(state_map) == {(1, 1): [41], (2, 1): [42], (1, 2): [43]}


def test_none_is_a_value(cowmap: ModuleType) -> None:
    """COW-02."""
    state_map = cowmap.CopyOnWriteStateMap(list)
    for key in range(3):
        state_map.put(key, 1, [key])
    state_map.put(2, 1, None)
    assert (len(state_map), state_map.contains(2, 1), state_map.get(2, 1)) == (3, True, None)
    state_map.put(2, 1, [2])
    assert (len(state_map), state_map.get(2, 1)) == (3, [2])
    assert state_map.remove(2, 1)
    assert not state_map.contains(2, 1)


def test_remove_says_what_it_removed(cowmap: ModuleType) -> None:
    """COW-03."""
    state_map = cowmap.CopyOnWriteStateMap(list)
    stored = [42]
    state_map.put(1, 1, [41])
    state_map.put(2, 1, stored)
    state_map.put(1, 2, [43])
    assert state_map.remove_and_get_old(2, 1) is stored
    assert len(state_map) == 2
    assert state_map.remove(1, 2) is True
    assert len(state_map) == 1
    assert state_map.remove_and_get_old(4, 2) is None
    assert state_map.remove(4, 2) is False
    assert contents(state_map) == {(1, 1): [41]}


def test_transform_puts_what_the_function_returns(cowmap: ModuleType) -> None:
    """COW-04."""
    state_map = cowmap.CopyOnWriteStateMap(list)
    state_map.put(1, 1, [41])
    state_map.transform(1, 1, 4711, lambda old, value: [*old, value])
    assert state_map.get(1, 1) == [41, 4711]
    state_map.transform(2, 1, 5, lambda old, value: [old, value])
    assert state_map.get(2, 1) == [None, 5]
    assert len(state_map) == 2


def test_put_and_get_old_replaces(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    first, second = object(), object()
    assert state_map.put_and_get_old("k", NS, first) is None
    assert state_map.put_and_get_old("k", NS, second) is first
    assert state_map.get("k", NS) is second
    assert len(state_map) == 1


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("key-1", "".join(["key", "-1"])),
        (10**30, 10**29 * 10),
        (1, 1.0),
        (1, True),
        (2.5, 5 / 2),
        (b"bytes", bytes(bytearray(b"bytes"))),
        (("a", "b"), tuple("ab")),
        (None, None),
        (frozenset([1, 2]), frozenset([2, 1])),
    ],
)
def test_keys_and_namespaces_are_equal_where_a_dict_holds_them_equal(
    cowmap: ModuleType, stored: Any, asked: Any
) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    state_map.put(stored, "ns", 1)
    state_map.put("key", stored, 2)
    assert (state_map.get(asked, "ns"), state_map.get("key", asked)) == (1, 2)
    state_map.put(asked, "ns", 3)
    assert len(state_map) == 2


def test_a_key_is_found_by_identity_even_where_it_is_not_equal_to_itself(cowmap: ModuleType) -> None:
    nan = float("nan")
    state_map = cowmap.CopyOnWriteStateMap()
    state_map.put(nan, NS, 1)
    assert state_map.get(nan, NS) == 1
    assert not state_map.contains(float("nan"), NS)


def test_different_keys_of_one_hash_are_different_entries(cowmap: ModuleType) -> None:
    same_hash = [5 + i * sys.hash_info.modulus for i in range(50)]
    assert len({hash(key) for key in same_hash}) == 1
    state_map = cowmap.CopyOnWriteStateMap()
    for key in same_hash:
        state_map.put(key, NS, -key)
    assert [state_map.get(key, NS) for key in same_hash] == [-key for key in same_hash]
    for key in same_hash[::2]:
        assert state_map.remove_and_get_old(key, NS) == -key
    assert contents(state_map) == {(key, NS): -key for key in same_hash[1::2]}


def test_keys_that_are_their_own_namespace_are_in_different_buckets(cowmap: ModuleType) -> None:
    """Hashes are XORed: without spreading one of them, the hash of every (n, n) would be 0."""
    state_map = cowmap.CopyOnWriteStateMap()
    for i in range(1000):
        state_map.put(i, i, i)
    visitor, steps = state_map.visitor(1), []
    while visitor.has_next():
        steps.append(len(visitor.next_batch()))
    assert sum(steps) == 1000
    assert max(steps) < 10  # a step ends with a whole chain


@pytest.mark.parametrize(
    ("asked", "capacity"), [(0, 4), (3, 4), (4, 4), (5, 8), (128, 128), (129, 256), (1 << 16, 1 << 16)]
)
def test_the_capacity_is_a_power_of_two(cowmap: ModuleType, asked: int, capacity: int) -> None:
    assert cowmap.CopyOnWriteStateMap(initial_capacity=asked).capacity == capacity
    assert cowmap.CopyOnWriteStateMap().capacity == 128


def test_a_negative_capacity_is_refused(cowmap: ModuleType) -> None:
    with pytest.raises(ValueError, match="initial_capacity is -1"):
        cowmap.CopyOnWriteStateMap(initial_capacity=-1)


def test_clear_empties_the_map_and_spares_snapshots(cowmap: ModuleType) -> None:
    state_map = filled(cowmap, 1000)
    before = contents(state_map)
    snapshot = state_map.snapshot()
    state_map.clear()
    assert (len(state_map), contents(state_map), state_map.get(1, NS)) == (0, {}, None)
    state_map.put(1, NS, "new")
    assert contents(snapshot) == before
    assert contents(state_map) == {(1, NS): "new"}


def test_clear_ends_a_rehash(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    keys = until_rehash(state_map, itertools.count())
    state_map.get_many(keys[:5], NS)
    assert state_map.is_rehashing
    state_map.clear()
    assert not state_map.is_rehashing
    assert state_map.get_many(keys, NS) == [None] * len(keys)
    state_map.put_many(keys, NS, keys)
    assert contents(state_map) == {(key, NS): key for key in keys}


def test_the_source_runs_where_cython_is_not_installed() -> None:
    program = (
        "import sys; sys.modules['cython'] = sys.modules['Cython'] = None\n"
        "from keyedstate_heap_cow.compiled_form import map_module\n"
        "module = map_module(compiled=False)\n"
        "state_map = module.CopyOnWriteStateMap(list)\n"
        "state_map.put('k', 'n', [1])\n"
        "with state_map.snapshot() as snapshot:\n"
        "    state_map.get('k', 'n').append(2)\n"
        "    print(module.COMPILED, list(snapshot), list(state_map))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False [('k', 'n', [1])] [('k', 'n', [1, 2])]\n"


# -- rehashing -----------------------------------------------------------------------------------------


def test_no_entry_is_lost_or_doubled_while_two_tables_exist(cowmap: ModuleType) -> None:
    """COW-05."""
    state_map = cowmap.CopyOnWriteStateMap()
    inserted, removed = 0, 0

    def insert() -> None:
        nonlocal inserted, removed
        state_map.put(inserted, NS, inserted)
        inserted += 1
        if inserted % 8 == 0:
            assert state_map.remove(removed, NS)
            removed += 1
        assert len(state_map) == inserted - removed

    while not state_map.is_rehashing:
        insert()
    assert state_map.capacity == 128
    steps = 0
    while state_map.is_rehashing:
        insert()
        steps += 1
    assert steps > 10
    assert state_map.capacity == 256
    assert not any(state_map.contains(i, NS) for i in range(removed))
    assert all(state_map.get(i, NS) == i for i in range(removed, inserted))
    assert contents(state_map) == {(i, NS): i for i in range(removed, inserted)}


def test_the_map_doubles_above_three_quarters_of_its_capacity(cowmap: ModuleType) -> None:
    state_map = filled(cowmap, 97)
    assert not state_map.is_rehashing
    state_map.put(97, NS, 97)
    assert state_map.is_rehashing


@pytest.mark.parametrize(
    "access",
    [
        lambda m: m.get(0, NS),
        lambda m: m.contains(-1, NS),
        lambda m: m.put(0, NS, 0),
        lambda m: m.put_and_get_old(0, NS, 0),
        lambda m: m.remove(-1, NS),
        lambda m: m.remove_and_get_old(-1, NS),
        lambda m: m.transform(0, NS, 0, lambda old, value: value),
    ],
    ids=["get", "contains", "put", "put_and_get_old", "remove", "remove_and_get_old", "transform"],
)
def test_every_access_moves_at_least_four_entries(
    cowmap: ModuleType, access: Callable[[Any], object]
) -> None:
    state_map = cowmap.CopyOnWriteStateMap(initial_capacity=1024)
    until_rehash(state_map, itertools.count())
    size, steps = len(state_map), 0
    while state_map.is_rehashing:
        access(state_map)
        steps += 1
    assert 10 < steps <= size / 4 + 1
    assert len(state_map) == size


def test_a_rehash_passes_few_empty_buckets_at_a_time(cowmap: ModuleType) -> None:
    """Or the access that comes to empty buckets would take as long as visiting all of them."""

    def rehashing() -> Any:
        state_map = cowmap.CopyOnWriteStateMap(initial_capacity=1 << 14)
        until_rehash(state_map, itertools.count())
        return state_map

    full, steps = rehashing(), 0
    while full.is_rehashing:
        full.get("absent", NS)
        steps += 1
    moved_per_step = len(full) / steps

    emptied, steps = rehashing(), 0
    meeting = len(emptied) / (1 + moved_per_step)  # the rehash begins with the first, this with the last
    for key, _, _ in list(emptied)[::-1]:
        if not emptied.is_rehashing:
            break
        emptied.remove(key, NS)
        steps += 1
    assert steps > meeting + 25
    assert len(contents(emptied)) == len(emptied) == len(full) - steps


def test_a_rehash_with_live_snapshots_changes_no_snapshot(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap(initial_capacity=4)
    taken = []
    for i in range(3000):
        state_map.put(i, NS, i)
        if i % 100 == 99:
            taken.append((state_map.snapshot(), contents(state_map), state_map.is_rehashing))
    assert {during for _, _, during in taken} == {True, False}
    for snapshot, expected, _ in taken:
        assert contents(snapshot) == expected
        assert len(snapshot) == len(expected)
    for snapshot, _, _ in taken:
        snapshot.release()
    assert contents(state_map) == {(i, NS): i for i in range(3000)}


# -- copy on write -------------------------------------------------------------------------------------


def test_without_a_snapshot_the_same_object_comes_back(cowmap: ModuleType) -> None:
    """COW-07."""
    state_map = cowmap.CopyOnWriteStateMap(list)
    value = [1]
    state_map.put(1, 1, value)
    assert state_map.get(1, 1) is value
    state_map.snapshot().release()
    assert state_map.get(1, 1) is value


def test_a_snapshot_makes_an_old_value_be_copied_once(cowmap: ModuleType) -> None:
    """COW-08."""
    state_map = cowmap.CopyOnWriteStateMap(list)
    original, later = [1], [2]
    state_map.put(1, 1, original)
    snapshot = state_map.snapshot()
    copied = state_map.get(1, 1)
    assert copied == original
    assert copied is not original
    assert state_map.get(1, 1) is copied
    state_map.put(2, 1, later)
    assert state_map.get(2, 1) is later
    copied.append(9)
    assert contents(snapshot) == {(1, 1): [1]}
    assert contents(state_map) == {(1, 1): [1, 9], (2, 1): [2]}


def test_a_second_snapshot_makes_it_be_copied_again(cowmap: ModuleType) -> None:
    """COW-09."""
    state_map = cowmap.CopyOnWriteStateMap(list)
    state_map.put(1, 1, [1])
    first = state_map.snapshot()
    copied = state_map.get(1, 1)
    copied.append(2)
    second = state_map.snapshot()
    again = state_map.get(1, 1)
    assert again == copied
    assert again is not copied
    assert state_map.get(1, 1) is again
    again.append(3)
    assert [contents(s)[1, 1] for s in (first, second, state_map)] == [[1], [1, 2], [1, 2, 3]]


def test_after_a_release_only_what_older_snapshots_show_is_copied(cowmap: ModuleType) -> None:
    """COW-10."""
    state_map = cowmap.CopyOnWriteStateMap(list)
    old, between = [1], [2]
    state_map.put(1, 1, old)
    first = state_map.snapshot()
    state_map.put(2, 1, between)
    second = state_map.snapshot()
    second.release()
    assert state_map.get(2, 1) is between
    copied = state_map.get(1, 1)
    assert copied is not old
    first.release()
    assert state_map.get(1, 1) is copied
    assert state_map.get(2, 1) is between

    other = cowmap.CopyOnWriteStateMap(list)
    other.put(1, 1, old)
    first, second = other.snapshot(), other.snapshot()
    second.release()
    first.release()
    assert other.get(1, 1) is old


@pytest.mark.parametrize(
    "change",
    [
        lambda m, v: m.get(1, NS).append(v),
        lambda m, v: m.put(1, NS, [v]),
        lambda m, v: m.put_and_get_old(1, NS, [v]).append(v),
        lambda m, v: m.remove(1, NS),
        lambda m, v: m.remove_and_get_old(1, NS).append(v),
        lambda m, v: m.transform(1, NS, v, lambda old, value: old.append(value) or old),
        lambda m, v: m.get_many([1], NS)[0].append(v),
        lambda m, v: m.put_many([1], NS, [[v]]),
        lambda m, v: m.remove_many([1], NS),
        lambda m, v: m.restore_entries([NS], [1], [[v]]),
        lambda m, v: m.clear(),
    ],
    ids=[
        "get",
        "put",
        "put_and_get_old",
        "remove",
        "remove_and_get_old",
        "transform",
        "get_many",
        "put_many",
        "remove_many",
        "restore_entries",
        "clear",
    ],
)
def test_no_change_is_seen_by_a_snapshot(cowmap: ModuleType, change: Callable[[Any, int], object]) -> None:
    """Every way to change or get an entry, its neighbours in the chain included."""
    same_hash = [1 + i * sys.hash_info.modulus for i in range(4)]
    for position in range(4):
        state_map = cowmap.CopyOnWriteStateMap(list)
        keys = same_hash[1:]
        keys.insert(position, 1)
        for key in keys:
            state_map.put(key, NS, [key])
        expected = {(key, NS): [key] for key in keys}
        first = state_map.snapshot()
        second = state_map.snapshot()
        change(state_map, 7)
        third = state_map.snapshot()
        after = {address: list(value) for address, value in contents(state_map).items()}
        assert after != expected or change(state_map, 7) is None
        state_map.put(1, NS, [8])
        state_map.remove(same_hash[2], NS)
        assert contents(first) == contents(second) == expected
        second.release()
        assert contents(first) == expected
        first.release()
        assert contents(third) == after


def test_an_object_that_is_put_again_is_still_the_snapshots(cowmap: ModuleType) -> None:
    """Flink's map takes it for a new one, and the next change of it goes into the snapshot."""
    state_map = cowmap.CopyOnWriteStateMap(list)
    value = [1]
    for put in (state_map.put, state_map.put_and_get_old):
        state_map.put("k", NS, value)
        snapshot = state_map.snapshot()
        put("k", NS, value)
        state_map.get("k", NS).append(2)
        assert state_map.get("k", NS) == [1, 2]
        assert contents(snapshot) == {("k", NS): [1]}
        snapshot.release()


def test_immutable_values_are_never_copied(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    value = [1]  # an object whose copies differ from it by identity
    state_map.put("k", NS, value)
    snapshot = state_map.snapshot()
    assert state_map.get("k", NS) is value
    assert state_map.put_and_get_old("k", NS, value) is value
    state_map.transform("k", NS, None, lambda old, _: old)
    assert state_map.remove_and_get_old("k", NS) is value
    assert contents(snapshot)["k", NS] is value


def test_none_is_not_copied_though_a_snapshot_shows_it(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap(list.copy)
    for key in range(5):
        state_map.put(key, NS, None)
    snapshot = state_map.snapshot()
    assert state_map.get(0, NS) is None
    assert state_map.get_for_update(1, NS) is None
    assert state_map.put_and_get_old(2, NS, [2]) is None
    assert state_map.remove_and_get_old(3, NS) is None
    state_map.transform(4, NS, 4, lambda old, new: [old, new])
    assert contents(state_map) == {(0, NS): None, (1, NS): None, (2, NS): [2], (4, NS): [None, 4]}
    assert [value for _, _, value in snapshot] == [None] * 5


def test_a_copy_function_is_called_for_values_that_a_snapshot_shows_and_no_others(cowmap: ModuleType) -> None:
    calls = []

    def copy(value: list[int]) -> list[int]:
        calls.append(value)
        return list(value)

    state_map = cowmap.CopyOnWriteStateMap(copy)
    for key in range(6):
        state_map.put(key, NS, [key])
    snapshot = state_map.snapshot()
    state_map.contains(0, NS)
    state_map.put(0, NS, [9])
    state_map.remove(1, NS)
    assert calls == []
    state_map.put_and_get_old(2, NS, [9])
    state_map.remove_and_get_old(3, NS)
    state_map.transform(4, NS, 0, lambda old, _: old)
    state_map.get(5, NS)
    assert calls == [[2], [3], [4], [5]]
    for key in (0, 2, 4, 5):
        state_map.get(key, NS)
    assert len(calls) == 4
    assert list(snapshot.entries()) == sorted(
        snapshot.entries(), key=lambda entry: list(snapshot).index(entry)
    )
    assert len(calls) == 4


# -- snapshots -----------------------------------------------------------------------------------------


def test_a_snapshot_yields_exactly_its_entries(cowmap: ModuleType) -> None:
    """COW-11."""
    state_map = cowmap.CopyOnWriteStateMap(list)
    expected = {(key, key % 2): [key] for key in range(5)}
    for (key, namespace), value in expected.items():
        state_map.put(key, namespace, value)
    snapshot = state_map.snapshot()
    assert len(snapshot) == 5
    assert contents(snapshot) == expected
    assert contents(snapshot.entries()) == expected


def test_a_transformer_changes_and_drops_what_the_reader_sees(cowmap: ModuleType) -> None:
    """COW-12."""
    state_map = cowmap.CopyOnWriteStateMap()
    for value in range(10, 15):
        state_map.put(value, NS, value)
    snapshot = state_map.snapshot(lambda value: cowmap.DROP if value == 12 else value + 2)
    assert sorted(value for _, _, value in snapshot) == [12, 13, 15, 16]
    assert sorted(value for _, _, values in snapshot.batches(3) for value in values) == [12, 13, 15, 16]
    assert [len(keys) for _, keys, _ in snapshot.batches(3)] == [3, 1]
    assert len(snapshot) == 5
    assert sorted(value for _, _, value in state_map) == [10, 11, 12, 13, 14]
    assert repr(cowmap.DROP) == "DROP"


def test_releasing_twice_is_releasing_once(cowmap: ModuleType) -> None:
    """COW-13."""
    state_map = filled(cowmap, 3)
    snapshot = state_map.snapshot()
    assert snapshot.version in state_map.live_snapshot_versions
    snapshot.release()
    assert snapshot.version not in state_map.live_snapshot_versions
    assert snapshot.is_released
    snapshot.release()
    assert state_map.live_snapshot_versions == ()


def test_only_versions_of_live_snapshots_can_be_released(cowmap: ModuleType) -> None:
    """COW-13."""
    state_map = filled(cowmap, 3)
    snapshot = state_map.snapshot()
    with pytest.raises(ValueError, match="no live snapshot of this map has the version 17"):
        state_map.release_version(17)
    assert state_map.live_snapshot_versions == (snapshot.version,)
    snapshot.release()
    with pytest.raises(ValueError, match="no live snapshot"):
        state_map.release_version(snapshot.version)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_snapshots_may_be_released_in_any_order(cowmap: ModuleType, order: tuple[int, ...]) -> None:
    rng = random.Random(7)
    state_map = cowmap.CopyOnWriteStateMap(list, initial_capacity=4)
    model: dict[tuple[int, int], list[int]] = {}

    def change(times: int) -> None:
        for _ in range(times):
            key = rng.randrange(40)
            if rng.random() < 0.3:
                assert state_map.remove(key, NS) == (model.pop((key, NS), None) is not None)
            elif (key, NS) in model:
                state_map.get(key, NS).append(times)
                model[key, NS].append(times)
            else:
                state_map.put(key, NS, [key])
                model[key, NS] = [key]

    taken = []
    for _ in range(4):
        change(30)
        taken.append((state_map.snapshot(), {address: list(value) for address, value in model.items()}))
    assert [snapshot.version for snapshot, _ in taken] == list(state_map.live_snapshot_versions)
    live = set(order)
    for number in order:
        change(30)
        for other in live:
            assert contents(taken[other][0]) == taken[other][1]
        taken[number][0].release()
        live.remove(number)
    change(30)
    assert contents(state_map) == model


def test_a_released_snapshot_cannot_be_read(cowmap: ModuleType) -> None:
    state_map = filled(cowmap, 1000)
    snapshot = state_map.snapshot()
    entries, batches = iter(snapshot), snapshot.batches(10)
    next(entries)
    next(batches)
    snapshot.release()
    for read in (
        lambda: next(entries),
        lambda: next(batches),
        snapshot.entries,
        lambda: snapshot.batches(10),
    ):
        with pytest.raises(RuntimeError, match="snapshot 1 of a state map is released"):
            read()
    assert len(snapshot) == 1000


def test_a_snapshot_released_while_a_batch_is_made_yields_no_wrong_batch(cowmap: ModuleType) -> None:
    state_map = filled(cowmap, 100)

    def transform(value: int) -> int:
        if value == 50:
            snapshot.release()
        return value

    snapshot = state_map.snapshot(transform)
    with pytest.raises(RuntimeError, match="is released"):
        list(snapshot.batches(1000))


def test_leaving_a_with_block_releases_the_snapshot(cowmap: ModuleType) -> None:
    state_map = filled(cowmap, 3)
    with state_map.snapshot() as snapshot:
        assert not snapshot.is_released
    assert snapshot.is_released


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_batches_have_the_size_asked_for(cowmap: ModuleType, size: int) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    expected = {(key, namespace): (key, namespace) for key in range(500) for namespace in "ab"}
    for key, namespace in expected:
        state_map.put(key, namespace, (key, namespace))
    snapshot = state_map.snapshot()
    found: dict[Any, Any] = {}
    sizes = []
    for namespaces, keys, values in snapshot.batches(size):
        assert len(namespaces) == len(keys) == len(values)
        sizes.append(len(keys))
        found.update(zip(zip(keys, namespaces, strict=True), values, strict=True))
    assert found == expected
    assert set(sizes[:-1]) <= {size}
    assert 0 < sizes[-1] <= size
    assert sum(sizes) == 1000


def test_batches_are_refused_or_empty_where_there_is_nothing(cowmap: ModuleType) -> None:
    snapshot = cowmap.CopyOnWriteStateMap().snapshot()
    assert list(snapshot.batches(5)) == []
    assert list(snapshot) == []
    with pytest.raises(ValueError, match="a batch cannot have 0 entries"):
        snapshot.batches(0)


def test_a_snapshot_may_be_released_in_another_thread(cowmap: ModuleType) -> None:
    state_map = filled(cowmap, 20_000 if cowmap.COMPILED else 2_000)
    before = contents(state_map)
    snapshot = state_map.snapshot()
    for key, namespace in before:
        state_map.put(key, namespace, -1)
    thread = threading.Thread(target=snapshot.release)
    thread.start()
    thread.join()
    assert state_map.live_snapshot_versions == ()
    assert set(contents(state_map).values()) == {-1}


# -- walks ---------------------------------------------------------------------------------------------


def test_iteration_fails_when_an_entry_comes_or_goes(cowmap: ModuleType) -> None:
    for change in (lambda m: m.put(-1, NS, 0), lambda m: m.remove(5, NS), lambda m: m.clear()):
        state_map = filled(cowmap, 50)
        walk = iter(state_map)
        next(walk)
        change(state_map)
        with pytest.raises(RuntimeError, match="entries came or went"):
            next(walk)


def test_iteration_goes_on_when_values_are_replaced_and_entries_move(cowmap: ModuleType) -> None:
    """Look-ups during a rehash move entries; each is still shown once."""
    state_map = cowmap.CopyOnWriteStateMap(initial_capacity=512)
    keys = until_rehash(state_map, itertools.count())
    shown = []
    for key, _, _ in state_map:
        shown.append(key)
        state_map.put(keys[-len(shown)], NS, "replaced")
        if len(shown) == 20:
            state_map.snapshot()
    assert not state_map.is_rehashing
    assert sorted(shown) == keys


def test_a_finished_iteration_stays_finished(cowmap: ModuleType) -> None:
    walk = iter(filled(cowmap, 2))
    assert len(list(walk)) == 2
    assert next(walk, None) is None


def test_a_visitor_shows_every_entry_once(cowmap: ModuleType) -> None:
    state_map = filled(cowmap, 1000)
    visitor = state_map.visitor(5)
    shown, steps = [], 0
    while visitor.has_next():
        batch = visitor.next_batch()
        shown += batch
        steps += 1
    assert {(key, namespace): value for key, namespace, value in shown} == contents(state_map)
    assert len(shown) == 1000
    assert steps > 100
    assert visitor.next_batch() == []


@pytest.mark.slow
def test_a_visitor_tolerates_every_change_across_rehashes(cowmap: ModuleType) -> None:
    rng = random.Random(3)
    for round_ in range(20):
        state_map = cowmap.CopyOnWriteStateMap(list, initial_capacity=16)
        for key in range(rng.randrange(20, 400)):
            state_map.put(key, NS, [key])
        untouched = {key for key, _, _ in state_map if rng.random() < 0.5}
        visitor = state_map.visitor(5)
        shown: list[int] = []
        fresh = itertools.count(10_000)
        while visitor.has_next():
            batch = visitor.next_batch()
            shown += [key for key, _, _ in batch]
            for entry in batch:
                if entry[0] not in untouched:
                    if rng.random() < 0.5:
                        visitor.update(entry, [0])
                    else:
                        visitor.remove(entry)
                        if rng.random() < 0.5:
                            state_map.put(entry[0], NS, [1])
            for _ in range(rng.randrange(25)):
                new = next(fresh)
                state_map.put(new, NS, [new])
                if rng.random() < 0.3:
                    state_map.remove(rng.randrange(10_000, new + 1), NS)
            if rng.random() < 0.2:
                state_map.snapshot()
            if len(state_map) > 3000:
                break
        else:
            assert untouched <= set(shown), round_
        assert len(shown) == len(set(shown))


def test_a_visitor_of_a_nearly_empty_map_makes_small_steps(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap(initial_capacity=1 << 15)
    state_map.put("only", NS, 1)
    visitor = state_map.visitor(5)
    shown, empty_steps = [], 0
    while visitor.has_next():
        batch = visitor.next_batch()
        shown += batch
        empty_steps += not batch
    assert shown == [("only", NS, 1)]
    assert empty_steps > 10


def test_a_visitor_of_an_empty_map_has_nothing(cowmap: ModuleType) -> None:
    assert not cowmap.CopyOnWriteStateMap().visitor(5).has_next()
    with pytest.raises(ValueError, match="steps of 0 entries"):
        cowmap.CopyOnWriteStateMap().visitor(0)


# -- many entries --------------------------------------------------------------------------------------


def test_bulk_operations_do_what_single_ones_do(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap(initial_capacity=4)
    keys = [f"key-{i}" for i in range(500)]
    state_map.put_many(keys, NS, range(500))
    assert state_map.get_many((key for key in keys), NS) == list(range(500))
    assert state_map.get_many(["key-3", "absent", "key-3"], NS) == [3, None, 3]
    assert state_map.get_many([], NS) == []
    state_map.put_many(["key-1", "key-2", "key-1"], NS, ["a", "b", "c"])
    assert state_map.get_many(["key-1", "key-2"], NS) == ["c", "b"]
    state_map.remove_many([*keys[::2], "absent"], NS)
    assert sorted(key for key, _, _ in state_map) == sorted(keys[1::2])
    assert state_map.get_many(keys, "other namespace") == [None] * 500


def test_columns_of_unequal_length_are_refused_before_anything_is_written(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    for call in (
        lambda: state_map.put_many([1, 2], NS, [1]),
        lambda: state_map.put_many([1], NS, [1, 2]),
        lambda: state_map.restore_entries([NS], [1, 2], [1, 2]),
        lambda: state_map.restore_entries([NS, NS], [1, 2], [1]),
        lambda: cowmap.put_many([state_map], 0, [0], [1, 2], NS, [1, 2]),
        lambda: cowmap.get_many([state_map], 0, [0, 0], [1], NS),
    ):
        with pytest.raises(ValueError, match="give one of each for every entry"):
            call()
    assert len(state_map) == 0


def test_bulk_operations_over_maps_by_key_group(cowmap: ModuleType) -> None:
    maps = [cowmap.CopyOnWriteStateMap() for _ in range(3)]
    groups, keys = [10, 12, 10, 11] * 50, list(range(200))
    cowmap.put_many(maps, 10, groups, keys, NS, [str(key) for key in keys])
    assert [len(state_map) for state_map in maps] == [100, 50, 50]
    assert cowmap.get_many(maps, 10, groups, keys, NS) == [str(key) for key in keys]
    assert cowmap.get_many(maps, 10, iter(groups[1:]), iter(keys[:-1]), NS)[:3] == [None, None, None]
    cowmap.remove_many(maps, 10, groups[:100], keys[:100], NS)
    assert [len(state_map) for state_map in maps] == [50, 25, 25]
    for group in (9, 13, -1):
        with pytest.raises(IndexError, match=f"key group {group} is not among the 3 from 10"):
            cowmap.get_many(maps, 10, [group], [1], NS)


@pytest.mark.parametrize("live", [False, True], ids=["alone", "under a live snapshot"])
def test_values_that_are_got_in_bulk_for_changing_are_changed_and_noted(
    cowmap: ModuleType, live: bool
) -> None:
    maps = [cowmap.CopyOnWriteStateMap(list) for _ in range(3)]
    groups, keys = [10, 12, 10, 11] * 50, list(range(200))
    cowmap.put_many(maps, 10, groups, keys, NS, [[key] for key in keys])
    snapshots = [state_map.snapshot() for state_map in maps] if live else []
    for state_map in maps:
        state_map.begin_epoch(1)
    asked = [5, 5, 7, 1000]
    found = cowmap.get_many_for_update(maps, 10, (groups[key % 200] for key in asked), iter(asked), NS)
    assert found == [[5], [5], [7], None] and found[0] is found[1]
    found[0].append("new")
    assert cowmap.get_many(maps, 10, groups, keys, NS)[5:8] == [[5, "new"], [6], [7]]
    changed = [maps[number].changes_since(0) for number in (1, 2, 0)]
    assert [keys for _, keys, *_ in changed] == [[7], [5], []]
    for snapshot in snapshots:
        assert all([key] == value for key, _, value in snapshot)
    with pytest.raises(ValueError, match="give one of each"):
        cowmap.get_many_for_update(maps, 10, [10], [1, 2], NS)
    with pytest.raises(IndexError, match="key group 13 is not among the 3 from 10"):
        cowmap.get_many_for_update(maps, 10, [13], [1], NS)


def test_a_restored_map_has_room_for_all_and_needs_no_rehash(cowmap: ModuleType) -> None:
    keys = list(range(1540))  # growing one by one, a map of capacity 2048 would be rehashing
    namespaces = [key % 7 for key in keys]
    state_map = cowmap.CopyOnWriteStateMap()
    state_map.restore_entries(namespaces, keys, keys)
    assert (state_map.capacity, state_map.is_rehashing) == (4096, False)
    assert contents(state_map) == {(key, key % 7): key for key in keys}


def test_restoring_into_a_filled_map_adds_and_replaces(cowmap: ModuleType) -> None:
    state_map = filled(cowmap, 100)
    snapshot = state_map.snapshot()
    before = contents(state_map)
    state_map.restore_entries([NS] * 4, [99, 100, 101, 100], ["a", "b", "c", "d"])
    assert contents(state_map) == before | {(99, NS): "a", (100, NS): "d", (101, NS): "c"}
    assert contents(snapshot) == before


# -- user code that fails or interferes ----------------------------------------------------------------


class Key:
    """A key whose comparisons run a function; all have one hash."""

    def __init__(self, name: str, on_eq: Callable[[object], object] | None = None) -> None:
        self.name = name
        self.on_eq = on_eq

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        # Once per comparison, whichever of the two is asked.
        for key, compared in ((self, other), (other, self)):
            if isinstance(key, Key) and key.on_eq is not None:
                key.on_eq(compared)
        return isinstance(other, Key) and self.name == other.name

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


def fail(*_: object) -> Any:
    raise OSError("on purpose")


OPERATIONS: dict[str, Callable[[Any, Any], object]] = {
    "get": lambda m, key: m.get(key, NS),
    "contains": lambda m, key: m.contains(key, NS),
    "put": lambda m, key: m.put(key, NS, "put"),
    "put_and_get_old": lambda m, key: m.put_and_get_old(key, NS, "put"),
    "remove": lambda m, key: m.remove(key, NS),
    "remove_and_get_old": lambda m, key: m.remove_and_get_old(key, NS),
    "transform": lambda m, key: m.transform(key, NS, "put", lambda old, value: value),
    "get_many": lambda m, key: m.get_many([key], NS),
    "put_many": lambda m, key: m.put_many([key], NS, ["put"]),
    "remove_many": lambda m, key: m.remove_many([key], NS),
    "restore_entries": lambda m, key: m.restore_entries([NS], [key], ["put"]),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_comparison_or_hash_that_raises_changes_nothing(
    cowmap: ModuleType, operation: Callable[[Any, Any], object]
) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    for name in "abc":
        state_map.put(Key(name), NS, name)
    before = contents(state_map)
    with pytest.raises(OSError, match="on purpose"):
        operation(state_map, Key("a", on_eq=fail))
    with pytest.raises(TypeError, match="unhashable"):
        operation(state_map, [])
    assert contents(state_map) == before
    assert len(state_map) == 3


INTERFERENCES: dict[str, Callable[[Any], object]] = {
    "puts another key into the chain": lambda m: m.put(Key("new"), NS, "new"),
    "puts the same key": lambda m: m.put(Key("b"), NS, "other"),
    "removes the entry that is compared": lambda m: (m.remove(Key("a"), NS), m.remove(Key("b"), NS)),
    "removes and puts it again": lambda m: (m.remove(Key("b"), NS), m.put(Key("b"), NS, "again")),
    "clears the map": lambda m: m.clear(),
    "takes a snapshot and puts": lambda m: (m.snapshot(), m.put(Key("c"), NS, "snapshot")),
    "grows the map through rehashes": lambda m: m.put_many(list(range(2000)), NS, range(2000)),
    "moves entries": lambda m: [m.get("absent", NS) for _ in range(100)],
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("interference", INTERFERENCES)
@pytest.mark.parametrize("with_snapshot", [False, True])
@pytest.mark.parametrize("when", ["first", "equal"])
def test_a_comparison_that_changes_the_map_corrupts_nothing(
    cowmap: ModuleType, operation: str, interference: str, with_snapshot: bool, when: str
) -> None:
    """The operation's result may be before or after the interference; the map stays a map."""
    interfering: list[bool] = []
    for name in ["a", "b", "c", "d", "absent"]:
        interfering.clear()
        state_map = cowmap.CopyOnWriteStateMap(initial_capacity=4)
        for other in "abcd":
            state_map.put(Key(other), NS, other)
        expected = {key.name: value for (key, _), value in contents(state_map).items()}
        snapshot = state_map.snapshot() if with_snapshot else None
        interfering.append(True)

        def interfere(compared: Any, name: str = name, state_map: Any = state_map) -> None:
            if interfering and (when == "first" or compared.name == name):
                interfering.clear()
                INTERFERENCES[interference](state_map)

        OPERATIONS[operation](state_map, Key(name, on_eq=interfere))
        assert not interfering or name == "absent"
        interfering.clear()

        if snapshot is not None:
            assert {key.name: value for (key, _), value in contents(snapshot).items()} == expected
        found = contents(state_map)
        assert len(found) == len(state_map)
        for (key, namespace), value in found.items():
            assert state_map.get(key, namespace) == value
        names = [key.name for key, _ in found if isinstance(key, Key)]
        assert len(names) == len(set(names))
        if operation in ("put", "put_and_get_old", "transform", "put_many", "restore_entries"):
            assert state_map.get(Key(name), NS) == "put"
        if operation.startswith("remove"):
            assert not state_map.contains(Key(name), NS)
        for key, namespace in found:
            assert state_map.remove(key, namespace)
        assert len(state_map) == 0


def test_a_comparison_that_changes_the_map_every_time_is_an_error(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    state_map.put(Key("a"), NS, 1)
    serial = itertools.count()
    key = Key("b", on_eq=lambda _: state_map.put(next(serial) * sys.hash_info.modulus + 1, NS, 0))
    with pytest.raises(RuntimeError, match=r"comparing with the key Key\('b'\) changes the map every time"):
        state_map.get(key, NS)
    key.on_eq = None
    assert len(contents(state_map)) == len(state_map)


def test_a_copy_function_that_raises_changes_nothing(cowmap: ModuleType) -> None:
    def copy(value: list[int]) -> list[int]:
        raise OSError("on purpose")

    state_map = cowmap.CopyOnWriteStateMap(copy)
    state_map.put(1, NS, [1])
    snapshot = state_map.snapshot()
    for name in ("get", "put_and_get_old", "remove_and_get_old", "transform", "get_many"):
        with pytest.raises(OSError, match="on purpose"):
            OPERATIONS[name](state_map, 1)
    assert contents(state_map) == contents(snapshot) == {(1, NS): [1]}
    snapshot.release()
    assert state_map.get(1, NS) == [1]


@pytest.mark.parametrize(
    "interference",
    [
        lambda m: m.put("k", NS, ["other"]),
        lambda m: m.remove("k", NS),
        lambda m: m.clear(),
        lambda m: m.snapshot(),
        lambda m: m.put_many(range(1000), NS, range(1000)),
        lambda m: m.release_version(1),
    ],
    ids=["put", "remove", "clear", "snapshot", "grow", "release"],
)
@pytest.mark.parametrize("operation", ["get", "put_and_get_old", "remove_and_get_old", "transform"])
def test_a_copy_function_that_changes_the_map_corrupts_nothing(
    cowmap: ModuleType, operation: str, interference: Callable[[Any], object]
) -> None:
    once = [True]

    def copy(value: list[str]) -> list[str]:
        if once:
            once.pop()
            interference(state_map)
        return list(value)

    state_map = cowmap.CopyOnWriteStateMap(copy)
    original = ["k"]
    state_map.put("k", NS, original)
    snapshot = state_map.snapshot()
    result = OPERATIONS[operation](state_map, "k")
    assert not once
    if operation == "get":
        assert result is state_map.get("k", NS)
    if operation in ("put_and_get_old", "transform"):
        assert state_map.get("k", NS) == "put"
    if operation == "remove_and_get_old":
        assert not state_map.contains("k", NS)
    assert original == ["k"]
    if 1 in state_map.live_snapshot_versions:
        assert contents(snapshot) == {("k", NS): ["k"]}
    assert len(contents(state_map)) == len(state_map)


def test_a_copy_function_that_gets_the_value_itself_makes_one_copy(cowmap: ModuleType) -> None:
    """Two copies would mean that changes to one of them are lost."""
    inner = []

    def copy(value: list[int]) -> list[int]:
        if not inner:
            inner.append(None)
            inner.append(state_map.get("k", NS))
        return list(value)

    state_map = cowmap.CopyOnWriteStateMap(copy)
    state_map.put("k", NS, [1])
    state_map.snapshot()
    outer = state_map.get("k", NS)
    assert outer is inner[1]
    assert state_map.get("k", NS) is outer


def test_a_copy_function_that_changes_the_entry_every_time_is_an_error(cowmap: ModuleType) -> None:
    def copy(value: list[int]) -> list[int]:
        state_map.snapshot()
        state_map.put("k", NS, [0])
        state_map.snapshot()
        return list(value)

    state_map = cowmap.CopyOnWriteStateMap(copy)
    state_map.put("k", NS, [1])
    state_map.snapshot()
    with pytest.raises(RuntimeError, match="copying the value of the key 'k' changes the map every time"):
        state_map.get("k", NS)
    assert [value for _, _, value in state_map] == [[0]]


def test_a_transformation_that_raises_or_interferes_corrupts_nothing(cowmap: ModuleType) -> None:
    state_map = filled(cowmap, 3)
    for key in (1, "absent"):
        with pytest.raises(OSError, match="on purpose"):
            state_map.transform(key, NS, 0, lambda old, value: fail())
    assert contents(state_map) == {(i, NS): i for i in range(3)}

    def remove_it(old: int | None, value: int) -> int:
        state_map.remove(1, NS)
        state_map.put_many(range(10, 500), NS, range(10, 500))
        return value

    state_map.transform(1, NS, 77, remove_it)
    assert state_map.get(1, NS) == 77
    assert len(contents(state_map)) == len(state_map) == 493


class Noisy:
    """An object that calls a function when it dies."""

    def __init__(self, on_del: Callable[[], object]) -> None:
        self.on_del = on_del

    def __del__(self) -> None:
        self.on_del()


@pytest.mark.parametrize(
    "interference",
    [
        lambda m: m.put("k", NS, "from a finalizer"),
        lambda m: m.remove("k", NS),
        lambda m: m.get("k", NS),
        lambda m: m.put_many(range(1000), NS, range(1000)),
        lambda m: m.clear(),
        lambda m: m.snapshot().release(),
        lambda m: list(m),
    ],
    ids=["put", "remove", "get", "grow", "clear", "snapshot", "iterate"],
)
@pytest.mark.parametrize(
    "operation", ["put", "remove", "transform", "put_many", "remove_many", "restore_entries", "clear"]
)
def test_a_dying_value_that_changes_the_map_corrupts_nothing(
    cowmap: ModuleType, operation: str, interference: Callable[[Any], object]
) -> None:
    state_map = cowmap.CopyOnWriteStateMap(initial_capacity=4)
    died = []

    def die() -> None:
        died.append(True)
        interference(state_map)

    # In a list, which is half gone when its items die: to hand it out then would be fatal.
    for key in ("j", "k", "l"):
        state_map.put(key, NS, [Noisy(die)])
    if operation == "clear":
        state_map.clear()
    else:
        OPERATIONS[operation](state_map, "k")
    assert died
    assert len(contents(state_map)) == len(state_map)
    state_map.clear()
    assert len(state_map) in (0, 1, 1000, 1001)
    state_map.clear()


def test_a_dying_snapshot_value_may_change_the_map(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    state_map.put("k", NS, [Noisy(lambda: state_map.put("k", NS, "from a finalizer"))])
    snapshot = state_map.snapshot()
    state_map.put("k", NS, "new")
    snapshot.release()
    del snapshot
    assert contents(state_map) == {("k", NS): "from a finalizer"}


def test_a_namespace_may_change_the_map_when_it_is_hashed_or_forgotten(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()

    class Namespace(Noisy):
        def __hash__(self) -> int:
            state_map.get("j", "another namespace")
            return 5

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Namespace)

    for _ in range(3):
        state_map.put("k", Namespace(lambda: state_map.put("j", "another namespace", 1)), 2)
        assert state_map.get("k", Namespace(lambda: None)) == 2
    assert state_map.get("j", "another namespace") == 1
    assert len(state_map) == 2


def test_a_finalizer_that_the_cycle_collector_runs_may_change_the_map(cowmap: ModuleType) -> None:
    """Before Python 3.12 it runs wherever an object with references is made."""
    if not cowmap.COMPILED:
        pytest.skip("uncompiled it may run in the midst of a change, and must leave the map alone")
    rng = random.Random(5)
    state_map = cowmap.CopyOnWriteStateMap(list, initial_capacity=4)
    busy = []

    def change() -> None:
        if not busy:  # or finalizers would make work for finalizers for ever
            busy.append(True)
            key = rng.randrange(300)
            rng.choice(list(OPERATIONS.values()))(state_map, key)
            if rng.random() < 0.1:
                state_map.snapshot().release()
            busy.pop()

    def make_garbage() -> None:
        noisy = Noisy(change)
        noisy.itself = noisy  # type: ignore[attr-defined]

    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(300):
            make_garbage()
            state_map.put_many([rng.randrange(300) for _ in range(5)], NS, [[1]] * 5)
            make_garbage()
            with state_map.snapshot() as snapshot:
                expected = [(key, tuple(value)) for key, _, value in snapshot]
                make_garbage()
                visitor = state_map.visitor(20)
                while visitor.has_next():
                    visitor.next_batch()
                    make_garbage()
                assert [(key, tuple(value)) for key, _, value in snapshot] == expected
                assert len(expected) == len(snapshot)
            make_garbage()
            state_map.transform(rng.randrange(300), NS, "put", lambda old, value: [value])
            make_garbage()
            try:
                list(state_map)
            except RuntimeError as error:
                assert "came or went" in str(error)  # noqa: PT017 - it need not be raised
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert len(contents(state_map)) == len(state_map)


# -- memory --------------------------------------------------------------------------------------------


class Value:
    """Counts its living instances."""

    alive = 0

    def __init__(self) -> None:
        Value.alive += 1

    def __del__(self) -> None:
        Value.alive -= 1


def test_nothing_leaks_and_nothing_is_freed_too_early(cowmap: ModuleType) -> None:
    """Reference counts are kept by hand in the compiled form."""
    rng = random.Random(11)
    keys = [f"key-{i}" for i in range(300)]
    namespaces = [("ns", i) for i in range(2)]
    counts = [sys.getrefcount(key) for key in keys]
    for copy in (None, lambda value: Value()):
        state_map = cowmap.CopyOnWriteStateMap(copy, initial_capacity=4)
        snapshots = []
        for i in range(20_000 if cowmap.COMPILED else 4_000):
            key, namespace = rng.choice(keys), rng.choice(namespaces)
            draw = rng.random()
            if draw < 0.4:
                state_map.put(key, namespace, Value())
            elif draw < 0.7:
                state_map.get(key, namespace)
            elif draw < 0.8:
                state_map.transform(key, namespace, None, lambda old, _: old or Value())
            else:
                state_map.remove_and_get_old(key, namespace)
            if i % 50 == 0:
                snapshots.append(state_map.snapshot())
            if len(snapshots) > 5:
                snapshots.pop(rng.randrange(len(snapshots))).release()
            if i % 1000 == 999:
                for snapshot in snapshots:
                    assert len(list(snapshot)) == len(snapshot)
                if rng.random() < 0.3:
                    state_map.clear()
        assert Value.alive >= len(state_map)
        for snapshot in snapshots[::2]:
            snapshot.release()
        del state_map, snapshots, snapshot  # the other snapshots die unreleased
        gc.collect()
        assert Value.alive == 0
    del key
    assert [sys.getrefcount(key) for key in keys] == counts


def test_a_long_chain_is_freed_without_recursion(cowmap: ModuleType) -> None:
    length = 4_000 if cowmap.COMPILED else 500
    keys = [1 + i * sys.hash_info.modulus for i in range(length)]
    done = []

    def fill_and_free() -> None:
        state_map = cowmap.CopyOnWriteStateMap()
        state_map.put_many(keys, NS, keys)
        state_map.clear()
        state_map.put_many(keys, NS, keys)
        snapshot = state_map.snapshot()
        state_map.clear()
        del state_map
        snapshot.release()
        done.append(True)

    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=fill_and_free)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert done


def test_a_map_in_a_cycle_through_its_copy_function_is_collected(cowmap: ModuleType) -> None:
    class Owner:
        def __init__(self) -> None:
            self.map = cowmap.CopyOnWriteStateMap(self.copy)
            self.map.put(1, NS, Value())

        def copy(self, value: object) -> object:
            return value

    owner = weakref.ref(Owner())
    gc.collect()
    assert owner() is None
    assert Value.alive == 0


def test_clear_breaks_a_cycle_through_a_value(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    value = Value()
    value.map = state_map  # type: ignore[attr-defined]
    state_map.put(1, NS, value)
    del value
    state_map.clear()
    assert Value.alive == 0
