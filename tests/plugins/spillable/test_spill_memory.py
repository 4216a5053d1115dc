"""The memory of the databases of spilled entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.memory import process_memory
from keyedstate.testing import open_instance
from keyedstate.testing.contract.base import META
from keyedstate.types import accumulators_of

MIB = 1 << 20


@pytest.mark.parametrize(("options", "reserved"), [({}, 64 * MIB), ({"spillable.disk-memory": 9 * MIB}, 0)])
def test_spilled_entries_share_their_part_of_the_managed_memory_unless_it_is_fixed(
    tmp_path: Path, options: dict[str, object], reserved: int
) -> None:
    manager = process_memory().manager
    free = manager.available_bytes
    instances = [
        open_instance(
            "spillable", tmp_path, options=options, key_groups=KeyGroupRange(0, 1), max_parallelism=2
        )
        for _ in range(2)
    ]
    for instance in instances:
        instance.table(META).put(0, "a", 1, [1])
    assert manager.available_bytes == free - reserved
    for instance in instances:
        instance.close()
    assert manager.available_bytes == free


@pytest.mark.parametrize("columns", [False, True])
def test_tables_that_are_not_used_give_back_the_write_buffers_of_what_they_spilled(
    tmp_path: Path, columns: bool
) -> None:
    value = accumulators_of({"n": types.nullable(types.INT64)}) if columns else types.INT64
    meta = StateMeta("numbers", StateKind.AGGREGATING, types.INT64, types.VOID, value)
    instances = [
        open_instance(
            "spillable",
            tmp_path,
            options={"spillable.disk-memory": 9 * MIB},
            key_groups=KeyGroupRange(0, 1),
            max_parallelism=2,
        )
        for _ in range(4)
    ]
    tables: list[Any] = [instance.table(meta) for instance in instances]
    for table in tables:
        for key in range(12_000):
            table.put(0, key, types.VOID_NAMESPACE, (key,) if columns else key)
        assert table.spill(0, 12_000) == 12_000
    memory = instances[0].context.resources["ordered store"]._tuning.memory
    assert memory.buffers_are_short
    for table in tables:
        table.trim(0.0)
    assert not memory.buffers_are_short
    for table in tables:
        assert table.get(0, 11_999, types.VOID_NAMESPACE) == ((11_999,) if columns else 11_999)
    for instance in instances:
        instance.close()
