"""What the tables of every backend must do about values changed in place and changes since an epoch."""

from __future__ import annotations

import random
from typing import Any

import pytest

from keyedstate.backend import AnyStateTable, Capability, ChangeTracking, StateTable, TableChanges
from keyedstate.testing.contract.base import KEY_GROUPS, META, Address, ContractBase, content, fill, requires
from keyedstate.testing.contract.parts import TablePart
from keyedstate.testing.instances import Instance


class TrackingTable(StateTable[Any, Any, Any], ChangeTracking[Any, Any, Any]):
    """The type of a table that tracks changes."""


def changed(changes: TableChanges[Any, Any, Any], size: int = 10) -> tuple[dict[Address, Any], set[Address]]:
    """Return the written entries and the removed addresses; one that is shown twice is an error."""
    written: dict[Address, Any] = {}
    removed: list[Address] = []
    for key_group in KEY_GROUPS:
        for batch in changes.written(key_group, size):
            assert 0 < len(batch) <= size
            for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
                assert (key_group, key, namespace) not in written
                written[key_group, key, namespace] = value
        for gone in changes.removed(key_group, size):
            assert 0 < len(gone) <= size
            removed += [(key_group, key, ns) for ns, key in zip(gone.namespaces, gone.keys, strict=True)]
    occupied = list(changes.occupied(KEY_GROUPS))
    assert occupied == sorted(set(occupied))
    assert {address[0] for address in (*written, *removed)} <= set(occupied)
    assert len(set(removed)) == len(removed)
    assert len(changes) == len(written) + len(removed)
    return written, set(removed)


class ChangeContract(ContractBase):
    """Tests of `StateTable.get_for_update` and `ChangeTracking`."""

    @pytest.fixture
    def tracking(self, instance: Instance) -> TrackingTable:
        """An empty table that tracks changes, in epoch 1."""
        table = instance.table(META)
        assert isinstance(table, ChangeTracking), "claimed, but the table does not derive from it"
        table.begin_epoch(1)
        return table  # type: ignore[return-value]

    @requires(Capability.OBJECTS_BY_REFERENCE)
    def test_a_value_changed_in_place_is_changed_where_objects_are_kept(self, table: AnyStateTable) -> None:
        assert table.get_for_update(3, "a", 1) is None
        table.put(3, "a", 1, [1])
        value = table.get_for_update(3, "a", 1)
        assert value is not None
        value.append(2)
        assert content(table) == {(3, "a", 1): [1, 2]}

    @requires(Capability.OBJECTS_BY_REFERENCE, Capability.ASYNC_SNAPSHOT)
    def test_a_value_changed_in_place_is_not_changed_in_a_live_snapshot(self, table: AnyStateTable) -> None:
        """SB-51."""
        table.put(3, "a", 1, [1])
        snapshot = table.snapshot()
        value = table.get_for_update(3, "a", 1)
        assert value is not None
        value.append(2)
        assert [list(batch.values) for batch in snapshot.batches(3, 10)] == [[[1]]]
        snapshot.release()
        assert table.get(3, "a", 1) == [1, 2]

    @requires(TablePart.CHANGE_TRACKING)
    def test_changes_are_told_from_what_an_epoch_left_alone(self, tracking: TrackingTable) -> None:
        model = fill(tracking, 60)
        tracking.begin_epoch(2)
        assert changed(tracking.changes_since(1)) == ({}, set())
        addresses = list(model)
        tracking.put(*addresses[0], [-1])
        tracking.transform(*addresses[1], -2, lambda old, new: [*(old or []), new])
        tracking.remove(*addresses[2])
        tracking.put(*addresses[3], None)
        tracking.put(4, "new", 1, [5])
        tracking.put(4, "short-lived", 1, [6])
        tracking.remove(4, "short-lived", 1)
        tracking.remove(4, "never there", 1)
        tracking.get(*addresses[4])
        changes = tracking.changes_since(1)
        assert changed(changes) == (
            {addresses[0]: [-1], addresses[1]: [1, -2], addresses[3]: None, (4, "new", 1): [5]},
            {addresses[2]},
        )
        changes.release()
        changes.release()

    @requires(TablePart.CHANGE_TRACKING)
    def test_what_was_there_before_the_first_epoch_is_no_change(self, instance: Instance) -> None:
        table: Any = instance.table(META)
        model = fill(table, 20)
        table.begin_epoch(7)
        assert changed(table.changes_since(6)) == ({}, set())
        address = next(iter(model))
        table.remove(*address)
        assert changed(table.changes_since(6)) == ({}, {address})

    @requires(TablePart.CHANGE_TRACKING)
    def test_epochs_ascend_and_can_be_forgotten(self, tracking: TrackingTable) -> None:
        with pytest.raises(ValueError):
            tracking.begin_epoch(1)
        tracking.put(3, "a", 1, [1])
        tracking.begin_epoch(2)
        tracking.put(3, "b", 1, [2])
        tracking.begin_epoch(5)
        tracking.forget_changes(1)
        tracking.put(3, "c", 1, [3])
        assert changed(tracking.changes_since(1)) == ({(3, "b", 1): [2], (3, "c", 1): [3]}, set())
        tracking.forget_changes(5)
        assert changed(tracking.changes_since(4)) == ({(3, "c", 1): [3]}, set())

    @requires(TablePart.CHANGE_TRACKING, Capability.ASYNC_SNAPSHOT, Capability.OBJECTS_BY_REFERENCE)
    def test_captured_changes_stay_while_the_owner_continues_where_that_is_claimed(
        self, tracking: TrackingTable
    ) -> None:
        """SB-51."""
        model = fill(tracking, 60)
        expected = {address: list(value) for address, value in model.items()}
        changes = tracking.changes_since(0)
        for number, address in enumerate(model):
            value = tracking.get_for_update(*address)
            assert value is not None
            value.append(-1)
            if number % 3 == 0:
                tracking.remove(*address)
        assert changed(changes) == (expected, set())
        changes.release()

    @requires(TablePart.CHANGE_TRACKING)
    def test_the_changes_of_many_random_operations_are_those_of_a_model(
        self, tracking: TrackingTable
    ) -> None:
        generator, model, before, touched = (
            random.Random(42),
            dict[Address, Any](),
            dict[Address, Any](),
            set[Address](),
        )
        for number in range(3_000):
            address = (
                3 + generator.randrange(len(KEY_GROUPS)),
                f"key-{generator.randrange(10)}",
                generator.randrange(3),
            )
            match generator.randrange(6):
                case 0:
                    tracking.put(*address, [number])
                    model[address] = [number]
                    touched.add(address)
                case 1:
                    tracking.remove(*address)
                    if model.pop(address, None) is not None:
                        touched.add(address)
                case 2:
                    tracking.put_many([address[0]], [address[1]], address[2], [[number]])
                    model[address] = [number]
                    touched.add(address)
                case 3:
                    tracking.remove_many([address[0]], [address[1]], address[2])
                    if model.pop(address, None) is not None:
                        touched.add(address)
                case 4 if number % 10 == 0:
                    tracking.trim(0.0)
                case _:
                    assert tracking.get(*address) == model.get(address)
            if number % 100 == 99:
                epoch = 2 + number // 100
                changes = tracking.changes_since(epoch - 2)
                assert changed(changes) == (
                    {address: model[address] for address in touched if address in model},
                    {address for address in touched if address in before and address not in model},
                )
                changes.release()
                tracking.begin_epoch(epoch)
                before, touched = dict(model), set()
