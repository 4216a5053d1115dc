"""Every byte of a checkpoint, flipped in turn: it is found by the file's name, and others still restore.

The operator has keyed and operator state; its newest checkpoint is a full snapshot and a delta.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.format.operator_state import read_operator_state
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point, handles_for
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CheckpointError
from keyedstate.keygroups import KeyGroupRange

ALL = KeyGroupRange(0, 1)


@pytest.fixture
def operator(counting: ModuleType, tmp_path: Path) -> Any:
    """Three checkpoints of one task: two full snapshots, and a delta over the second of them."""
    operator = counting.CountingOperator(CheckpointStorage.open(tmp_path), "nested-map", 2)
    operator.restart(1)
    operator.coordinator = CheckpointCoordinator(operator.folder, retained=3)
    for epoch, deltas in enumerate([0, 0, 9]):
        operator.rules = type(operator.rules)(
            max_deltas=deltas, min_bytes=0, max_concurrent=0, tolerable_failures=99
        )
        # An epoch that changes most of the state writes it whole.
        operator.epoch(epoch, ["a"] if deltas else list("abcdefghijkl"))
    return operator


def read(operator: Any, epoch: int) -> list[Any]:
    """Read all that a checkpoint holds, keyed and operator state."""
    metadata = operator.folder.read_metadata(epoch)
    assert metadata is not None
    found: list[Any] = []
    for handle in handles_for(metadata, operator.folder.storage, ALL):
        try:
            for group in ALL:
                for batch in handle.entries("count", group):
                    found += zip(batch.keys, batch.values, strict=True)
        finally:
            handle.close()
    parts = [part.operator_state for part in metadata.parts]
    for meta, batches in read_operator_state(operator.folder.storage, parts, 0, 1, restarted=False):
        found += [(meta.name, value) for batch in batches for value in batch.values]
    return sorted(found, key=str)


def restart(operator: Any) -> list[Any]:
    """Do what a task does when the query begins again: whose folder, which checkpoint, and its state."""
    identity = TaskIdentity("counts", "query", operator.run, 3, 0, 1, 2, 99, "n99")
    claim(operator.folder, identity)
    restore_point = find_restore_point(operator.folder, identity)
    assert restore_point is not None
    return read(operator, restore_point.epoch)


@pytest.mark.slow
def test_every_byte_of_a_published_checkpoint_is_covered(operator: Any) -> None:
    newest = operator.folder.read_metadata(2)
    files = ["_owner", "chk-2/_metadata", *sorted(newest.data_files)]
    assert len(files) == 5 and [len(part.deltas) for part in newest.parts] == [1]
    intact = {epoch: read(operator, epoch) for epoch in (0, 1, 2)}
    assert restart(operator) == intact[2] and ("a", 3) in intact[2]
    for name in files:
        path = Path(operator.folder.location, name)
        data = path.read_bytes()
        untouched = [epoch for epoch in (0, 1) if name not in operator.folder.read_metadata(epoch).data_files]
        assert untouched, "an earlier checkpoint does without this file"
        # What a restart reads of data files is the checkpoint alone.
        use = (lambda: read(operator, 2)) if name.startswith("data") else (lambda: restart(operator))
        for position in range(len(data)):
            damaged = bytearray(data)
            damaged[position] ^= 1 << (position % 8)
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError) as caught:
                use()
            assert str(path) in str(caught.value), position
            if position % 100 == 0:
                assert [read(operator, epoch) for epoch in untouched] == [
                    intact[epoch] for epoch in untouched
                ]
        path.write_bytes(data)
    assert restart(operator) == intact[2]


def test_every_file_of_a_published_checkpoint_is_missed_by_its_name(operator: Any) -> None:
    for name in sorted(operator.folder.read_metadata(2).data_files):
        path = Path(operator.folder.location, name)
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(CheckpointError, match="the file does not exist") as caught:
            restart(operator)
        assert str(path) in str(caught.value)
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(CheckpointError) as caught:
            restart(operator)
        assert str(path) in str(caught.value)
        path.write_bytes(data)
