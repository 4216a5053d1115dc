"""Files that several checkpoints share: who may name one, and with which checkpoint it goes.

Flink keeps a registry with the last checkpoint that uses each file.  Here the manifests of the checkpoints
that can be seen are the registry, so that a crash can leave no wrong entry in it; `test_retention_machine`
holds it to a model, and these are the cases that Flink's tests name.
"""

from __future__ import annotations

import os
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.protocol import retention
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point
from keyedstate.errors import StorageError


@pytest.fixture
def coordinator(job: Any) -> CheckpointCoordinator:
    return CheckpointCoordinator(job.folder)


def delta(job: Any, run: str, epoch: int, partition: int, *, whole: bool = False) -> Acknowledgement:
    """Run a task that continues from the files of its restore point, as a chain of deltas does."""
    identity = job.identity(run, epoch, partition)
    claim(job.folder, identity)
    job.folder.write_started(identity)
    restore_point = find_restore_point(job.folder, identity)
    own = job.write_data(identity, {})
    word: Acknowledgement = job.write_manifest(identity, own)
    manifest = job.folder.read_manifest(word.manifest)
    if restore_point is not None and not whole:
        before = restore_point.parts[partition]
        manifest = replace(manifest, segments=before.segments, deltas=(*before.deltas, own))
        job.folder.write_manifest(manifest, before.kept_files)
    return word


def epoch(job: Any, coordinator: CheckpointCoordinator, number: int, *, whole: bool = False) -> set[str]:
    """Run an epoch and return the data files that its attempts have written."""
    words = [delta(job, "run-1", number, partition, whole=whole) for partition in range(job.parallelism)]
    for word in words:
        coordinator.acknowledge(word)
    coordinator.drain()
    return {job.folder.data_path(word.identity) for word in words}


def there(job: Any) -> set[str]:
    return set(job.folder.data_files())


def test_a_file_goes_with_the_last_checkpoint_that_uses_it(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """REG-01, REG-03, REG-05, REG-11: old checkpoints go in order, and the files that newer ones use stay."""
    written = [epoch(job, coordinator, number) for number in range(5)]
    assert job.folder.checkpoints() == [3, 4], "sharing keeps no checkpoint alive"
    assert there(job) == set().union(*written), "the full snapshot and every delta"
    written.append(epoch(job, coordinator, 5, whole=True))
    assert there(job) == set().union(*written), "checkpoint 4 is a chain still"
    written.append(epoch(job, coordinator, 6))
    assert there(job) == written[5] | written[6], "the full snapshot replaced all of it"


def test_each_checkpoint_names_its_files_under_its_own_attempts(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """REG-11."""
    written = [epoch(job, coordinator, number) for number in range(3)]
    for number in (1, 2):
        metadata = job.folder.read_metadata(number)
        assert set(metadata.data_files) == set().union(*written[: number + 1])
        assert {delta.path for part in metadata.parts for delta in part.deltas[-1:]} == written[number]


def test_a_folder_without_anything_is_cleaned_up_without_harm(job: Any) -> None:
    """REG-02."""
    identity = job.identity("run-1", 0, 0)
    retention.sweep(job.folder, identity)
    assert job.files("") == []
    claim(job.folder, identity)
    retention.sweep(job.folder, identity)
    assert set(job.files("")) <= {"_owner", "_lock"}


def test_what_killed_processes_left_of_small_files_goes_when_it_is_old(job: Any) -> None:
    """A process that is alive renames its temporary file within moments: a young one may be its."""
    identity = job.identity("run-1", 0, 0)
    claim(job.folder, identity)
    young, old = (f"._owner.{digit * 32}.tmp" for digit in "ab")
    also_old, foreign = f"holds/.0.5.x.{'c' * 32}.tmp", ".notes.tmp"
    for name in (young, old, also_old, foreign):
        job.folder.storage.write_atomic(name, b"half of it")
    for name in (old, also_old, foreign):
        os.utime(f"{job.folder.location}/{name}", (1_000_000_000, 1_000_000_000))
    retention.sweep(job.folder, identity)
    left = {name for name in (young, old, also_old, foreign) if job.folder.storage.exists(name)}
    assert left == {young, foreign}


def test_a_restored_checkpoint_is_replaced_like_any_other(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """REG-06: what a run was restored from is no more than the first of its own checkpoints."""
    first = epoch(job, coordinator, 0)
    restarted = CheckpointCoordinator(job.folder)
    for number in range(1, 4):
        for partition in range(2):
            restarted.acknowledge(delta(job, "run-2", number, partition, whole=number > 1))
    restarted.drain()
    assert job.folder.checkpoints() == [2, 3] and not first & there(job)


def test_a_manifest_may_not_name_files_of_checkpoints_that_it_did_not_begin_from(job: Any) -> None:
    """REG-08."""
    identity, other = job.identity("run-1", 0, 0), job.identity("run-1", 0, 1)
    foreign = job.write_data(other, {})
    with pytest.raises(ValueError, match="its own data files and shared ones, and not"):
        job.write_manifest(identity, foreign)
    assert job.folder.attempts(0) == []


def test_a_data_file_is_never_written_twice(job: Any) -> None:
    """REG-08: another file under a known name."""
    identity = job.identity("run-1", 0, 0)
    job.write_data(identity, {})
    before = job.folder.storage.read(job.folder.data_path(identity))
    with pytest.raises(StorageError, match="File exists"):
        job.write_data(identity, {3: [9]})
    assert job.folder.storage.read(job.folder.data_path(identity)) == before


def test_only_files_of_a_published_checkpoint_are_gone_on_from(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """INC-02: an epoch that failed is forgotten with its files, and Spark's repetition begins before it."""
    written = epoch(job, coordinator, 0)
    failed = delta(job, "run-1", 1, 0)
    coordinator.acknowledge(failed)
    restarted = CheckpointCoordinator(job.folder)
    words = [delta(job, "run-2", 1, partition) for partition in range(2)]
    for word in words:
        restarted.acknowledge(word)
    restarted.drain()
    again = {job.folder.data_path(word.identity) for word in words}
    assert set(job.folder.read_metadata(1).data_files) == written | again
    assert there(job) == written | again, "an aborted checkpoint leaves nothing behind"


def test_a_checkpoint_of_another_writer_in_between_does_not_end_a_chain(
    job: Any, coordinator: CheckpointCoordinator, jobs: ModuleType
) -> None:
    """INC-01: a savepoint, or another operator, has ids and files of its own."""
    epoch(job, coordinator, 0)
    job.folder.storage.write_atomic("savepoint-2/_metadata", b"made in between")
    epoch(job, coordinator, 1)
    parts = job.folder.read_metadata(1).parts
    assert [len(part.deltas) for part in parts] == [1, 1], "still incremental"


@pytest.mark.parametrize("crash_after", range(6))
def test_a_clean_up_that_dies_half_way_is_finished_by_the_next_run(
    job: Any, coordinator: CheckpointCoordinator, crash_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        epoch(job, coordinator, number, whole=True)
    zombie = job.identity("run-1", 4, 0)
    job.begin(zombie)
    job.write_data(zombie, {})
    left, plain = crash_after, type(job.folder.storage).delete_file

    def dying(storage: Any, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StorageError(path, "delete", "the process was killed")
        plain(storage, path)

    with monkeypatch.context() as patched:
        patched.setattr(type(job.folder.storage), "delete_file", dying)
        for partition in range(2):
            coordinator.acknowledge(delta(job, "run-1", 4, partition, whole=True))
        coordinator.drain()
    restarted = CheckpointCoordinator(job.folder)
    for partition in range(2):
        restarted.acknowledge(delta(job, "run-2", 5, partition, whole=True))
    restarted.drain()
    kept = [job.folder.read_metadata(number) for number in (4, 5)]
    assert job.folder.checkpoints() == [4, 5] and job.folder.attempt_epochs() == [5]
    assert there(job) == {path for metadata in kept for path in metadata.data_files}
