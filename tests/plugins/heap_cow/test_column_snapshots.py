"""Snapshots of columns show their moment, whatever the owner changes before and while they are read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from keyedstate import types
from keyedstate.backend import Column, StateKind, StateMeta
from keyedstate.testing import open_instance
from keyedstate.testing.contract.base import KEY_GROUPS, Address
from keyedstate.testing.contract.machines.state_machine import profile
from keyedstate_heap_cow import COLUMNS, CopyOnWriteColumns

if COLUMNS:
    from keyedstate_heap_cow import before_images, column_snapshot

pytestmark = pytest.mark.skipif(not COLUMNS, reason="the index of columns is not compiled")

SUMS = StateMeta(
    "sums",
    StateKind.VALUE,
    types.INT64,
    types.INT64,
    types.accumulators_of({"n": types.nullable(types.INT64), "x": types.nullable(types.FLOAT64)}),
)
_KEYS = st.lists(st.integers(0, 59), min_size=1, max_size=12)


def address_of(key: int) -> Address:
    return KEY_GROUPS.start + key % len(KEY_GROUPS), key, key % 3


def entries_of(snapshot: Any, size: int) -> Iterator[tuple[Address, Any]]:
    """Yield the entries of a snapshot, read in small pieces."""
    for key_group in KEY_GROUPS:
        for batch in snapshot.batches(key_group, size):
            for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
                yield (key_group, key, namespace), value


class SnapshotsMachine(RuleBasedStateMachine):
    """A table, a dict as its model, and snapshots that are read step by step between changes."""

    def __init__(self, backend: str, folder: Path) -> None:
        super().__init__()
        self.instance = open_instance(backend, folder, key_groups=KEY_GROUPS, max_parallelism=16)
        self.table: Any = self.instance.table(SUMS)
        self.model: dict[Address, Any] = {}
        #: Of each snapshot its reader, the entries that must come, and those that came.
        self.readers: list[tuple[Any, Iterator[Any], dict[Address, Any], dict[Address, Any]]] = []
        self.epoch = 0

    @rule(keys=_KEYS, number=st.none() | st.integers(-9, 9), none=st.booleans())
    def put(self, keys: list[int], number: int | None, none: bool) -> None:
        value = None if none else (number, None if number is None else number / 2)
        for group, key, namespace in map(address_of, keys):
            self.table.put(group, key, namespace, value)
            self.model[group, key, namespace] = value

    @rule(keys=_KEYS)
    def remove(self, keys: list[int]) -> None:
        for address in map(address_of, keys):
            self.table.remove(*address)
            self.model.pop(address, None)

    @rule(keys=_KEYS)
    def get_for_update(self, keys: list[int]) -> None:
        for address in map(address_of, keys):
            assert self.table.get_for_update(*address) == self.model.get(address)

    @rule()
    def begin_an_epoch(self) -> None:
        self.epoch += 1
        self.table.begin_epoch(self.epoch)
        self.table.forget_changes(self.epoch - 1)

    @rule(key_group=st.sampled_from(list(KEY_GROUPS)), limit=st.integers(1, 9))
    def move_some_to_disk(self, key_group: int, limit: int) -> None:
        if hasattr(self.table, "spill"):
            self.table.spill(key_group, limit)

    @precondition(lambda machine: len(machine.readers) < 4)
    @rule(size=st.integers(1, 5))
    def take_a_snapshot(self, size: int) -> None:
        snapshot = self.table.snapshot()
        self.readers.append((snapshot, entries_of(snapshot, size), dict(self.model), {}))

    @precondition(lambda machine: machine.readers)
    @rule(which=st.integers(0, 3), steps=st.integers(1, 9))
    def continue_to_read(self, which: int, steps: int) -> None:
        snapshot, entries, expected, found = self.readers[which % len(self.readers)]
        for _ in range(steps):
            read = next(entries, None)
            if read is None:
                assert found == expected
                snapshot.release()
                del self.readers[which % len(self.readers)]
                return
            address, value = read
            assert address not in found
            assert value == expected[address]
            found[address] = value

    @precondition(lambda machine: machine.readers)
    @rule(which=st.integers(0, 3))
    def stop_to_read(self, which: int) -> None:
        snapshot, *_ = self.readers.pop(which % len(self.readers))
        snapshot.release()

    def teardown(self) -> None:
        for snapshot, entries, expected, found in self.readers:
            found.update(entries)
            assert found == expected
            snapshot.release()
        self.instance.close()


@pytest.mark.parametrize("backend", ["heap-cow", "spillable"])
def test_snapshots_that_are_read_between_changes_equal_the_dict_of_their_moment(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SB-51.  Entries get other numbers meanwhile, and the arrays grow."""
    monkeypatch.setattr(column_snapshot, "_RUN_ENTRIES", 2)
    monkeypatch.setattr(before_images, "_PIECE", 7)
    monkeypatch.setattr(CopyOnWriteColumns, "few_unused", 4)
    monkeypatch.setattr(CopyOnWriteColumns, "most_unused", 0.1)
    monkeypatch.setattr(CopyOnWriteColumns, "renumbered_together", 5)
    chosen = profile()
    if chosen.derandomize:  # the short one
        chosen = settings(chosen, max_examples=12, stateful_step_count=50)
    run_state_machine_as_test(lambda: SnapshotsMachine(backend, tmp_path), settings=chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize("growing", [False, True])
def test_threads_read_their_snapshots_while_every_entry_changes(tmp_path: Path, growing: bool) -> None:
    """SB-51.  An entry's two fields are equal in every state, so that half a change is seen."""
    instance = open_instance("heap-cow", tmp_path, key_groups=KEY_GROUPS, max_parallelism=16)
    table: Any = instance.table(SUMS)
    entries, batch = 150_000, 3_000
    numbers = np.random.default_rng(7)

    def write(keys: Any, value: int) -> None:
        groups = (KEY_GROUPS.start + keys % len(KEY_GROUPS)).astype(np.int32)
        found = table.locate([pa.array(keys)], groups, [0])
        whole = np.full(len(found), value, np.int64)
        found.write([Column(whole), Column(whole.astype(np.float64))])
        expected[keys] = value

    def read(snapshot: Any) -> tuple[Any, Any, Any]:
        started.set()
        keys, whole, real = [], [], []
        for key_group in KEY_GROUPS:
            for found in snapshot.batches(key_group, 1_000):
                keys.append(found.columns.column(1).to_numpy())
                parts = found.columns.column(2).flatten()
                whole.append(parts[0].to_numpy(zero_copy_only=False))
                real.append(parts[1].to_numpy(zero_copy_only=False))
        snapshot.release()
        return tuple(map(np.concatenate, (keys, whole, real)))

    expected = np.zeros(entries, np.int64)
    write(np.arange(entries), 1)
    with ThreadPoolExecutor(2) as pool:
        for attempt in range(3):
            readers = []
            for _ in range(2):
                started = Event()
                readers.append((expected.copy(), pool.submit(read, table.snapshot())))
                started.wait(60)
                for value in range(20):
                    write(numbers.choice(entries, batch, replace=False), 100 * attempt + value)
            if growing:
                more = np.arange(len(expected), 2 * len(expected))
                expected = np.concatenate([expected, np.zeros(len(more), np.int64)])
                write(more, 5)
            for before, reader in readers:
                keys, whole, real = reader.result(timeout=60)
                assert len(keys) == len(before)
                assert (whole == before[keys]).all()
                assert (real == whole).all()
    instance.close()


@pytest.mark.parametrize("changed_after_the_access", [False, True])
def test_a_change_in_the_middle_of_a_read_is_not_seen(changed_after_the_access: bool) -> None:
    """The owner runs at the worst moments: right before the reader's access, and right after it."""
    images = before_images.BeforeImages()
    elements = np.arange(10)

    class Interrupted:
        dtype = elements.dtype

        def __getitem__(self, slots: Any) -> Any:
            read = elements[slots] if changed_after_the_access else None
            images.keep(np.array([3, 7]), [elements])
            elements[[3, 7]] += 100
            return elements[slots] if read is None else read

    array: Any = Interrupted()
    frozen = images.freeze([array], 10)
    for _ in range(2):
        assert frozen.read(np.arange(2, 9), [0])[0].tolist() == list(range(2, 9))
    images.release(frozen)
