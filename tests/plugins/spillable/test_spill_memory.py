"""The memory of the databases of spilled entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyedstate.keygroups import KeyGroupRange
from keyedstate.memory import process_memory
from keyedstate.testing import open_instance
from keyedstate.testing.contract.base import META

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
