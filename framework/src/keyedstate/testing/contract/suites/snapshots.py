"""What the snapshots and restores of every backend must do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import AnyStateTable, Capability, EntryBatch, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange, key_group_ranges
from keyedstate.testing.contract.base import (
    KEY_GROUPS,
    MAX_PARALLELISM,
    META,
    Address,
    ContractBase,
    Open,
    content,
    fill,
    requires,
)
from keyedstate.testing.instances import Instance


class SnapshotContract(ContractBase):
    """Tests of `TableSnapshot`, `SnapshotStrategy` and `RestoreOperation`, through real segment files."""

    def test_a_snapshot_gives_each_key_group_in_batches_of_the_size_asked_for(
        self, table: AnyStateTable
    ) -> None:
        model = fill(table, 7 * 25)
        snapshot = table.snapshot()
        for key_group in KEY_GROUPS:
            batches = list(snapshot.batches(key_group, 10))
            assert all(0 < len(batch) <= 10 for batch in batches)
            entries = {
                (key_group, key, namespace): value
                for batch in batches
                for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True)
            }
            assert entries == {address: value for address, value in model.items() if address[0] == key_group}
        snapshot.release()
        snapshot.release()

    def test_a_snapshot_names_every_key_group_that_had_entries(self, table: AnyStateTable) -> None:
        """Others too, if it does not know; what comes and goes afterwards changes nothing."""
        for key_group in (3, 5, 6, 9):
            table.put(key_group, "a", 1, [key_group])
        table.remove(6, "a", 1)
        snapshot = table.snapshot()
        occupied = list(snapshot.occupied(KEY_GROUPS))
        within = list(snapshot.occupied(KeyGroupRange(4, 8)))
        snapshot.release()
        assert occupied == sorted(set(occupied)) and {3, 5, 9} <= set(occupied) <= set(KEY_GROUPS)
        assert within == [key_group for key_group in occupied if 4 <= key_group <= 8]

    def test_restored_entries_are_there_beside_those_of_other_batches(self, table: AnyStateTable) -> None:
        table.restore_entries(3, EntryBatch([1, 1, 2], ["a", "b", "a"], [[1], None, [3]]))
        table.restore_entries(3, EntryBatch([1], ["c"], [[4]]))
        table.restore_entries(9, EntryBatch([], [], []))
        assert content(table) == {(3, "a", 1): [1], (3, "b", 1): None, (3, "a", 2): [3], (3, "c", 1): [4]}
        assert len(table) == 4

    def test_a_restored_instance_holds_what_was_written(
        self, open_instance: Open, instance: Instance, tmp_path: Path
    ) -> None:
        """SB-37: also a state that is not registered, and one without entries."""
        model = fill(instance.table(META), 60)
        empty = StateMeta("empty", StateKind.VALUE, META.key_serializer, types.INT64, types.INT64)
        instance.table(empty)
        handle = instance.write(instance.prepare(), tmp_path)
        for _ in range(2):
            restored = open_instance(handles=[handle])
            assert restored.tables.keys() == {"visits", "empty"}
            assert content(restored.table(META)) == model
            assert len(restored.table(empty)) == 0
            handle = restored.write(restored.prepare(), tmp_path)

    def test_an_instance_without_handles_starts_empty(self, open_instance: Open) -> None:
        """SB-48."""
        assert open_instance().tables == {}

    @pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 5), (5, 2)])
    @requires(Capability.RESCALING)
    def test_state_follows_its_key_groups_to_other_instances(
        self, open_instance: Open, tmp_path: Path, before: int, after: int
    ) -> None:
        """SB-38."""
        model: dict[Address, Any] = {}
        handles = []
        for key_groups in key_group_ranges(before, MAX_PARALLELISM):
            source = open_instance(key_groups)
            model |= fill(source.table(META), 3 * len(key_groups))
            handles.append(source.write(source.prepare(), tmp_path))
        found: dict[Address, Any] = {}
        for key_groups in key_group_ranges(after, MAX_PARALLELISM):
            target = content(open_instance(key_groups, handles).table(META))
            assert all(address[0] in key_groups for address in target)
            found |= target
        assert found == model

    @requires(Capability.ASYNC_SNAPSHOT)
    def test_a_snapshot_is_written_while_the_owner_goes_on_where_that_is_claimed(
        self, open_instance: Open, instance: Instance, tmp_path: Path
    ) -> None:
        """SB-51."""
        table = instance.table(META)
        model = fill(table, 2_000)
        expected = {address: list(value) for address, value in model.items()}
        snapshot = instance.prepare()
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(instance.write, snapshot, tmp_path)
            for number, address in enumerate(model):
                match number % 4:
                    case 0:
                        table.remove(*address)
                    case 1:
                        table.put(*address, [-1])
                    case 2:
                        table.transform(*address, -2, lambda old, new: [*(old or []), new])
                    case _:
                        # As the handle of a map does with an object that is kept by reference.
                        found = table.get(*address)
                        assert found is not None
                        found.append(-3)
                table.put(address[0], f"new-{address[1]}", address[2], [0])
            handle = written.result(timeout=60)
        assert content(open_instance(handles=[handle]).table(META)) == expected

    def test_a_restored_table_takes_the_serializers_of_the_running_program(
        self, open_instance: Open, instance: Instance, tmp_path: Path
    ) -> None:
        fill(instance.table(META), 10)
        restored = open_instance(handles=[instance.write(instance.prepare(), tmp_path)]).tables["visits"]
        adopted = META.duplicate()
        restored.replace_meta(adopted)
        assert restored.meta is adopted
        assert restored.get(3, "key-0", 0) == [0]
