"""Any snapshot becomes a savepoint: full, in the canonical form, with the chosen compression."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.savepoint.canonical import (
    convert_savepoint,
    savepoint_of_checkpoint,
    write_canonical,
)
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder, SavepointWriter, SparkPosition
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CorruptFileError, NotASavepointError, TargetExistsError


@pytest.fixture
def done(job: Any) -> Any:
    """An operator with checkpoints of the epochs 2 and 3."""
    coordinator = CheckpointCoordinator(job.folder)
    for epoch in range(4):
        job.epoch("run-1", epoch, coordinator)
    return job


def state_of(savepoint: SavepointFolder, job: Any) -> Any:
    job.folder.storage = savepoint.storage("views")
    return job.read(savepoint.metadata("views"))


def test_a_checkpoint_becomes_a_savepoint_of_one_operator(
    done: Any, local: CheckpointStorage, tmp_path: Path
) -> None:
    for number, (place, epoch) in enumerate(
        [(local, None), (local.child("views"), 2), (local.child("views", "chk-2"), None)]
    ):
        stored = OperatorSnapshot.open(place.root, epoch=epoch)
        savepoint = savepoint_of_checkpoint(stored, tmp_path / f"savepoint-{number}")
        assert savepoint.metadata("views").epoch == (2 if number else 3)
        assert savepoint.spark is None
    with pytest.raises(TargetExistsError):
        savepoint_of_checkpoint(stored, tmp_path / "savepoint-0")
    savepoint.verify()
    assert state_of(savepoint, done) == done.state_of(0, 1, 2)


def test_a_savepoint_is_converted_with_all_that_it_says(
    jobs: ModuleType, local: CheckpointStorage, tmp_path: Path
) -> None:
    # Large enough to be compressed.
    job = jobs.Job(local, before=range(1000))
    job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    metadata = job.folder.read_metadata(0)
    with SavepointWriter(tmp_path / "first") as writer:
        writer.add_operator(write_canonical(metadata, job.folder.storage, writer.storage("views")))
        writer.add_spark_file("offsets/3", b"v1")
        writer.finish(spark=SparkPosition("query-1", 3), drained=True, watermark=8)
    recorded: list[tuple[int, int]] = []
    savepoint = convert_savepoint(
        tmp_path / "first",
        tmp_path / "second",
        compression="none",
        progress=lambda *now: recorded.append(now),
    )
    assert savepoint.spark == SparkPosition("query-1", 3)
    assert (savepoint.drained, savepoint.watermark) == (True, 8)
    assert savepoint.read_spark_file("offsets/3") == b"v1"
    assert recorded[-1][0] == recorded[-1][1] == SavepointFolder.open(tmp_path / "first").data_bytes()
    assert savepoint.data_bytes() > 2 * recorded[-1][1], "it was compressed"
    assert state_of(savepoint, job) == job.state_of(0)


def test_damage_is_found_while_it_is_copied_and_the_original_is_named(
    done: Any, local: CheckpointStorage, tmp_path: Path
) -> None:
    (damaged, *_) = sorted(Path(local.root, "views", "data").iterdir())
    data = bytearray(damaged.read_bytes())
    data[30] ^= 1
    damaged.write_bytes(data)
    epoch = 2 if "x2x" in damaged.name else 3
    for compression in (None, "lz4"):
        stored = OperatorSnapshot.open(local.root, epoch=epoch)
        with pytest.raises(CorruptFileError, match=str(damaged)):
            savepoint_of_checkpoint(stored, tmp_path / "savepoint", compression=compression)
        assert not (tmp_path / "savepoint").exists()


def test_an_unfinished_savepoint_is_not_converted(done: Any, tmp_path: Path) -> None:
    writer = SavepointWriter(tmp_path / "savepoint")
    metadata = done.folder.read_metadata(3)
    writer.add_operator(write_canonical(metadata, done.folder.storage, writer.storage("views")))
    with pytest.raises(NotASavepointError, match="did not finish"):
        convert_savepoint(tmp_path / "savepoint", tmp_path / "second")
