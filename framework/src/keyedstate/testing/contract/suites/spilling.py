"""What a table must do that moves entries between memory and disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from keyedstate.backend import AnyStateTable, SpillableTable
from keyedstate.testing.contract.base import META, Address, ContractBase, Open, content, fill, requires
from keyedstate.testing.contract.parts import TablePart
from keyedstate.testing.contract.suites.changes import changed

#: Moves everything that a table has, one way or the other.
Moving = Callable[[SpillableTable], None]


def spillable(table: AnyStateTable) -> SpillableTable:
    """Return a table by its other interface."""
    return cast(SpillableTable, table)


def spill_groups(table: SpillableTable) -> None:
    """Spill all key groups."""
    for group in table.spillable_groups():
        while table.spill(group.key_group, 7) == 7:
            pass


def spill_coldest(table: SpillableTable) -> None:
    """Spill all entries in the order of the table."""
    while table.spill_coldest(7):
        pass


def load_groups(table: SpillableTable) -> None:
    """Load all key groups."""
    for group in table.spillable_groups():
        while table.load(group.key_group, 7) == 7:
            pass


def spill_and_load(table: SpillableTable) -> None:
    """Spill everything, and load it again."""
    spill_groups(table)
    load_groups(table)


every_move = pytest.mark.parametrize("move", [spill_groups, spill_coldest, spill_and_load])


class SpillContract(ContractBase):
    """Tests of `SpillableTable`."""

    @requires(TablePart.SPILLING)
    @every_move
    def test_entries_that_were_moved_are_read_as_before(self, table: AnyStateTable, move: Moving) -> None:
        """SP-04."""
        model = fill(table, 300)
        move(spillable(table))
        assert len(table) == len(model)
        assert content(table) == model
        assert set(table.keys_and_namespaces()) == {(key, namespace) for _, key, namespace in model}
        for address, value in model.items():
            assert table.contains(*address)
            assert table.get(*address) == value
        assert table.get(table.key_groups.start, "no such key", 0) is None

    @requires(TablePart.SPILLING)
    @every_move
    def test_moved_entries_are_changed_and_removed_as_before(
        self, table: AnyStateTable, move: Moving
    ) -> None:
        """SP-04: while everything moves again and again."""
        model = fill(table, 120)
        for step, address in enumerate(list(model)):
            if step % 20 == 0:
                move(spillable(table))
            if step % 3 == 0:
                table.remove(*address)
                del model[address]
            elif step % 3 == 1:
                table.transform(*address, step, lambda old, value: [*(old or ()), value])
                model[address] = [*model[address], step]
            else:
                assert table.put_and_get_old(*address, [step]) == model[address]
                model[address] = [step]
        move(spillable(table))
        assert content(table) == model
        assert len(table) == len(model)

    @requires(TablePart.SPILLING)
    def test_groups_tell_where_entries_are(self, table: AnyStateTable) -> None:
        fill(table, 300)
        moving = spillable(table)
        load_groups(moving)
        before = {group.key_group: group for group in moving.spillable_groups()}
        assert before.keys() == set(table.key_groups)
        assert all(group.on_disk == 0 and group.memory_bytes > 0 for group in before.values())
        key_group = table.key_groups.start
        whole = before[key_group].in_memory
        assert moving.spill(key_group, 5) == 5
        assert moving.spill(key_group, whole) == whole - 5
        assert moving.spill(key_group, 1) == 0
        (group,) = [group for group in moving.spillable_groups() if group.key_group == key_group]
        assert (group.in_memory, group.on_disk, group.memory_bytes) == (0, whole, 0)
        assert moving.load(key_group, 3) == 3
        assert moving.load(key_group, whole) == whole - 3
        assert moving.load(key_group, 1) == 0
        after = {group.key_group: (group.in_memory, group.on_disk) for group in moving.spillable_groups()}
        assert after == {number: (group.in_memory, 0) for number, group in before.items()}

    @requires(TablePart.SPILLING)
    def test_requests_of_a_key_group_ascend(self, table: AnyStateTable) -> None:
        fill(table, 60)
        key_group = table.key_groups.start

        def requests() -> int:
            groups = spillable(table).spillable_groups()
            return next(group.requests for group in groups if group.key_group == key_group)

        before = requests()
        for _ in range(10):
            table.get(key_group, "key-0", 0)
        assert requests() >= before + 10

    @requires(TablePart.SPILLING)
    @every_move
    def test_a_snapshot_shows_what_was_there_before_a_move(self, table: AnyStateTable, move: Moving) -> None:
        """SP-05: also while entries change after it."""
        model = fill(table, 200)
        snapshot = table.snapshot()
        move(spillable(table))
        for number, address in enumerate(model):
            if number % 2:
                table.put(*address, [-1])
            else:
                table.remove(*address)
        move(spillable(table))
        found: dict[Address, Any] = {}
        for key_group in table.key_groups:
            for batch in snapshot.batches(key_group, 50):
                for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
                    assert (key_group, key, namespace) not in found
                    found[key_group, key, namespace] = value
        snapshot.release()
        assert found == model

    @requires(TablePart.SPILLING, TablePart.CHANGE_TRACKING)
    @every_move
    def test_a_move_is_no_change(self, table: Any, move: Moving) -> None:
        fill(table, 100)
        table.begin_epoch(1)
        move(table)
        changes = table.changes_since(0)
        assert changed(changes) == ({}, set())
        changes.release()

    @requires(TablePart.SPILLING, TablePart.CHANGE_TRACKING)
    @every_move
    def test_changes_are_the_same_after_a_move(self, table: Any, move: Moving) -> None:
        model = fill(table, 100)
        table.begin_epoch(1)
        written, removed = list(model)[:20], list(model)[20:40]
        for address in written:
            table.put(*address, [-1])
        for address in removed:
            table.remove(*address)
        move(table)
        captured = table.changes_since(0)
        move(table)
        assert changed(captured) == ({address: [-1] for address in written}, set(removed))
        captured.release()

    @requires(TablePart.SPILLING)
    @every_move
    def test_a_walk_shows_each_entry_once_although_entries_move(
        self, table: AnyStateTable, move: Moving
    ) -> None:
        model = fill(table, 100)
        visitor = table.visitor(5)
        found: list[Address] = []
        while entries := visitor.next_entries():
            found += [(entry.key_group, entry.key, entry.namespace) for entry in entries]
            move(spillable(table))
        assert sorted(found, key=str) == sorted(model, key=str)

    @requires(TablePart.SPILLING)
    @every_move
    def test_moved_entries_are_in_a_snapshot_that_is_restored(
        self, open_instance: Open, tmp_path: Path, move: Moving
    ) -> None:
        """SP-09."""
        instance = open_instance()
        table = instance.table(META)
        model = fill(table, 200)
        move(spillable(table))
        handle = instance.write(instance.prepare(), tmp_path)
        assert content(open_instance(handles=[handle]).table(META)) == model
