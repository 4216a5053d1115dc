"""Entries of columns that get other numbers, in slices, while they change."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from keyedstate import types
from keyedstate.backend import SpillableTable, StateKind, StateMeta
from keyedstate.testing import open_instance
from keyedstate.testing.contract.base import KEY_GROUPS, Address, content
from keyedstate.testing.contract.suites.changes import changed
from keyedstate_heap_cow import COLUMNS, CopyOnWriteColumns, renumbering

pytestmark = pytest.mark.skipif(not COLUMNS, reason="the index of columns is not compiled")

SUMS = StateMeta(
    "sums",
    StateKind.VALUE,
    types.INT64,
    types.INT64,
    types.accumulators_of({"n": types.nullable(types.INT64)}),
)


@pytest.mark.parametrize("together", [1, 3, 50])
def test_entries_that_change_while_numbers_do_are_those_of_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """And so are the changes of each epoch."""
    columns = CopyOnWriteColumns
    monkeypatch.setattr(columns, "few_unused", 4)
    monkeypatch.setattr(columns, "most_unused", 0.1)
    monkeypatch.setattr(columns, "renumbered_together", together)
    instance = open_instance("heap-cow", tmp_path, key_groups=KEY_GROUPS, max_parallelism=16)
    table: Any = instance.table(SUMS)
    random = Random(together)
    model: dict[Address, Any] = {}
    for epoch in range(1, 101):
        table.begin_epoch(epoch)
        table.forget_changes(epoch - 1)
        before, put = set(model), set()
        for step in range(40):
            key = random.randrange(60)
            address = KEY_GROUPS.start + key % len(KEY_GROUPS), key, random.randrange(5)
            if random.random() < 0.5:
                model[address] = (step,)
                table.put(*address, (step,))
                put.add(address)
            else:
                model.pop(address, None)
                table.remove(*address)
        assert content(table) == model
        written = {address: model[address] for address in put & set(model)}
        captured = table.changes_since(epoch - 1)
        assert changed(captured) == (written, before - set(model))
        captured.release()
    assert len(table) == len(model)
    assert table.numbering > 5
    instance.close()


@pytest.mark.parametrize("backend", ["heap-cow", "spillable"])
@pytest.mark.parametrize("step", ["copy_from", "zeros"])
@pytest.mark.parametrize("failing", [1, 2, 6, 10])
def test_an_error_while_numbers_change_leaves_all_entries_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, step: str, failing: int
) -> None:
    """The next call begins to renumber again."""
    instance = open_instance(backend, tmp_path, key_groups=KEY_GROUPS, max_parallelism=16)
    table: Any = instance.table(SUMS)
    monkeypatch.setattr(CopyOnWriteColumns, "most_unused", 0.1)
    monkeypatch.setattr(CopyOnWriteColumns, "renumbered_together", 3_000)
    model: dict[Address, Any] = {}

    def write(keys: range, value: int | None) -> None:
        groups = [KEY_GROUPS.start + key % len(KEY_GROUPS) for key in keys]
        found = {(group, key, 0): (value,) for group, key in zip(groups, keys, strict=True)}
        if value is None:
            for address in found:
                model.pop(address, None)
            table.remove_many(groups, keys, 0)
        else:
            model.update(found)
            table.put_many(groups, keys, 0, [(value,)] * len(keys))

    write(range(20_000), 1)
    if isinstance(table, SpillableTable):
        table.spill_coldest(2_000)
    calls = 0

    def count_call(name: str) -> None:
        nonlocal calls
        calls += name == step
        if calls == failing and name == step:
            raise MemoryError

    class FailingIndex(renumbering.KeyIndex):  # type: ignore[misc]
        def copy_from(self, *arguments: Any) -> None:
            super().copy_from(*arguments)
            count_call("copy_from")

    class Arrays:
        def __getattr__(self, name: str) -> Any:
            count_call(name)
            return getattr(np, name)

    monkeypatch.setattr(renumbering, "KeyIndex", FailingIndex)
    monkeypatch.setattr(renumbering, "np", Arrays())
    numbering, errors = table.numbering, 0
    for start in range(0, 20_000, 1_000):
        for keys, value in ((range(start, start + 700), None), (range(start, start + 1), 2)):
            try:
                write(keys, value)
            except MemoryError:
                errors += 1
                write(keys, value)
    assert table.numbering > numbering
    assert errors == (calls >= failing)
    write(range(350), 3)
    assert content(table) == model
    instance.close()


@pytest.mark.parametrize("backend", ["heap-cow", "spillable"])
def test_changes_are_tracked_over_any_distance_of_epochs(tmp_path: Path, backend: str) -> None:
    """The stamps of entries are of 16 bits, later of 32, until an epoch needs more."""
    instance = open_instance(backend, tmp_path, key_groups=KEY_GROUPS, max_parallelism=16)
    table: Any = instance.table(SUMS)
    addresses = [(KEY_GROUPS.start, key, 0) for key in range(100)]
    table.put(*addresses[0], (0,))
    first = -(2**61)
    epochs = [first, *(first + 2**bits - less for bits in (15, 31) for less in (2, 1)), 5, 2**61]
    for place, epoch in enumerate(epochs, 1):
        table.begin_epoch(epoch)
        table.put(*addresses[place], (epoch,))
        table.remove(*addresses[place - 1])
        if isinstance(table, SpillableTable):
            table.spill(KEY_GROUPS.start, 100)
        captured = table.changes_since(epoch - 1)
        assert changed(captured) == ({addresses[place]: (epoch,)}, {addresses[place - 1]})
        captured.release()
    captured = table.changes_since(epochs[1])
    assert changed(captured) == ({addresses[7]: (2**61,)}, {addresses[2]})
    captured.release()
    instance.close()
