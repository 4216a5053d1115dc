"""The copy-on-write map's notes of what changed: compiled and uncompiled."""

from __future__ import annotations

import gc
import sys
import weakref
from types import ModuleType
from typing import Any

import pytest

NS = ("window", 1)


class Key:
    """A key that records when its last reference is gone."""


def changes(state_map: Any, epoch: int) -> tuple[dict[Any, Any], set[Any]]:
    written_namespaces, written_keys, values, namespaces, keys, *_ = state_map.changes_since(epoch)
    written = dict(zip(zip(written_keys, written_namespaces, strict=True), values, strict=True))
    assert len(written) == len(values)
    return written, set(zip(keys, namespaces, strict=True))


def test_nothing_is_noted_before_the_first_epoch(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    state_map.put("a", NS, 1)
    assert changes(state_map, 0) == ({}, set())
    state_map.begin_epoch(1)
    assert changes(state_map, 0) == ({}, set())
    state_map.put("a", NS, 2)
    assert changes(state_map, 0) == ({("a", NS): 2}, set())


@pytest.mark.parametrize("copy", [None, list], ids=["immutable", "mutable"])
@pytest.mark.parametrize("live", [False, True], ids=["alone", "under a live snapshot"])
def test_an_entry_is_noted_once_an_epoch(cowmap: ModuleType, copy: Any, live: bool) -> None:
    state_map, key = cowmap.CopyOnWriteStateMap(copy), Key()
    state_map.put(key, NS, [0])
    state_map.begin_epoch(1)
    if live:
        state_map.snapshot()
    value = [1]
    state_map.put(key, NS, value)
    before = sys.getrefcount(key)
    for _ in range(1000):
        state_map.put(key, NS, value)
        state_map.put(key, NS, value.copy())
        state_map.put_and_get_old(key, NS, [2])
        state_map.transform(key, NS, 3, lambda old, new: [new])
        state_map.get_for_update(key, NS).append(4)
        state_map.get(key, NS)
        if live:
            state_map.snapshot().release()
    assert sys.getrefcount(key) == before
    assert changes(state_map, 0) == ({(key, NS): [3, 4]}, set())


def test_an_unchanging_value_that_is_put_again_under_a_live_snapshot_is_noted_once(
    cowmap: ModuleType,
) -> None:
    """Small numbers and strings are the same objects again and again."""
    state_map, key = cowmap.CopyOnWriteStateMap(), Key()
    state_map.put(key, NS, 1)
    state_map.snapshot()
    state_map.begin_epoch(1)
    state_map.put(key, NS, 1)
    before = sys.getrefcount(key)
    for _ in range(1000):
        state_map.put(key, NS, 1)
    assert sys.getrefcount(key) == before


def test_an_entry_that_comes_and_goes_is_not_noted_each_time(cowmap: ModuleType) -> None:
    state_map, key = cowmap.CopyOnWriteStateMap(), Key()
    state_map.begin_epoch(1)
    before = sys.getrefcount(key)
    for number in range(50_000):
        state_map.put(key, NS, number)
        state_map.remove(key, NS)
    assert sys.getrefcount(key) < before + 10_000
    assert changes(state_map, 0) == ({}, set())
    state_map.put(key, NS, 1)
    assert changes(state_map, 0) == ({(key, NS): 1}, set())


def test_keys_that_came_and_went_in_one_epoch_do_not_pile_up(cowmap: ModuleType) -> None:
    """The windows of a long epoch."""
    state_map = cowmap.CopyOnWriteStateMap()
    state_map.begin_epoch(1)
    alive: weakref.WeakSet[Key] = weakref.WeakSet()
    for number in range(30_000):
        key = Key()
        alive.add(key)
        state_map.put(key, NS, number)
        if number % 10:
            state_map.remove(key, NS)
    del key
    gc.collect()
    assert 3_000 <= len(alive) < 3_000 + 10_000
    written, removed = changes(state_map, 0)
    assert sorted(written.values()) == list(range(0, 30_000, 10))
    assert removed == set()


def test_forgotten_epochs_let_go_of_their_keys(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    key = Key()
    alive = weakref.ref(key)
    state_map.put(key, NS, 1)
    state_map.begin_epoch(1)
    state_map.remove(key, NS)
    del key
    assert changes(state_map, 0)[1] == {(alive(), NS)}
    state_map.begin_epoch(2)
    gc.collect()
    assert alive() is not None
    state_map.forget_changes(1)
    gc.collect()
    assert alive() is None
    state_map.forget_changes(2)  # the running epoch stays
    state_map.put("b", NS, 2)
    assert changes(state_map, 1) == ({("b", NS): 2}, set())


def test_clearing_removes_what_was_there(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    for number in range(1000):
        state_map.put(number, NS, number)
    state_map.begin_epoch(1)
    state_map.put("new", NS, 1)
    state_map.clear()
    state_map.put(7, NS, 8)
    assert changes(state_map, 0) == ({(7, NS): 8}, {(n, NS) for n in range(1000) if n != 7})


def test_changes_survive_rehashes(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    state_map.put("old", NS, 0)
    state_map.begin_epoch(1)
    model = {}
    for number in range(20_000):
        state_map.put(number, NS, number)
        model[number, NS] = number
        if number % 3 == 0:
            state_map.remove(number // 2, NS)
            model.pop((number // 2, NS), None)
    assert changes(state_map, 0) == (model, set())


def test_reading_and_copying_for_a_reader_is_no_change(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap(list)
    for key in range(100):
        state_map.put(key, NS, [key])
    state_map.begin_epoch(1)
    with state_map.snapshot():
        for key in range(100):
            state_map.get(key, NS)
        state_map.get_for_update(5, NS).append(0)
        state_map.get(5, NS)
    assert changes(state_map, 0) == ({(5, NS): [5, 0]}, set())


def test_cached_values_are_copied_before_the_owner_changes_them(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap(list)
    state_map.begin_epoch(1)
    state_map.put("a", NS, [1])
    (_, _, (value,), *_) = state_map.changes_since(0)
    version = state_map.hold()
    state_map.get_for_update("a", NS).append(2)
    state_map.get("a", NS).append(3)
    assert value == [1]
    state_map.release_version(version)
    assert state_map.live_snapshot_versions == ()
    assert state_map.get("a", NS) == [1, 2, 3]


def test_epochs_ascend(cowmap: ModuleType) -> None:
    state_map = cowmap.CopyOnWriteStateMap()
    state_map.begin_epoch(5)
    for epoch in (5, 4):
        with pytest.raises(ValueError, match=f"epoch {epoch} cannot begin after epoch 5"):
            state_map.begin_epoch(epoch)


def test_a_key_that_changes_the_map_when_it_is_asked_loses_no_change(cowmap: ModuleType) -> None:
    """User code runs while the notes are shortened and gathered."""

    class Meddling:
        def __init__(self, number: int) -> None:
            self.number = number

        def __hash__(self) -> int:
            if meddle:
                meddle.pop()()
            return self.number % 7

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Meddling) and self.number == other.number

    meddle: list[Any] = []
    state_map = cowmap.CopyOnWriteStateMap()
    state_map.begin_epoch(1)
    keys = [Meddling(number) for number in range(300)]
    for turn in range(15):
        for key in keys:
            state_map.put(key, NS, turn)
            if key.number % 2:
                state_map.remove(key, NS)
        meddle.append(lambda turn=turn: state_map.put(("extra", turn), NS, turn))
    written, removed = changes(state_map, 0)
    assert removed == set()
    assert {key: value for (key, _), value in written.items() if isinstance(key, Meddling)} == {
        key: 14 for key in keys if key.number % 2 == 0
    }
    meddle.append(lambda: state_map.begin_epoch(2))
    state_map.changes_since(0)
    state_map.put("after", NS, 1)
    assert changes(state_map, 1) == ({("after", NS): 1}, set())
