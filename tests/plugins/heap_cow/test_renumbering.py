"""Entries of columns that get other numbers, in slices, while they change."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.testing import open_instance
from keyedstate.testing.contract.base import KEY_GROUPS, Address, content
from keyedstate.testing.contract.suites.changes import changed
from keyedstate_heap_cow import COLUMNS, CopyOnWriteColumns

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
