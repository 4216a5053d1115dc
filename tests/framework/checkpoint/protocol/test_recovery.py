"""The rules by which an epoch finds the checkpoint that it begins from, one test for each."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point, handles_for
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import (
    CorruptFileError,
    IncompleteEpochError,
    MaxParallelismChangedError,
    MissedEpochsError,
    MissingCheckpointError,
    MissingFileError,
    MissingStateFolderError,
    OvertakenRunError,
    StateFolderOwnedError,
    StorageError,
    SupersededRunError,
    UnsafeNameError,
)
from keyedstate.keygroups import KeyGroupRange


@pytest.fixture
def coordinator(job: Any) -> CheckpointCoordinator:
    return CheckpointCoordinator(job.folder)


def restore_point(job: Any, run: str, epoch: int) -> CheckpointMetadata | None:
    identity = job.identity(run, epoch, 0)
    claim(job.folder, identity)
    return find_restore_point(job.folder, identity)


# -- which checkpoint ------------------------------------------------------------------------------


def test_every_epoch_begins_from_the_one_before_on_any_file_system(
    storage: CheckpointStorage, jobs: ModuleType
) -> None:
    job = jobs.Job(storage)
    coordinator = CheckpointCoordinator(job.folder)
    assert restore_point(job, "run-1", 0) is None
    for epoch in range(4):
        job.epoch("run-1", epoch, coordinator)
    assert job.published(3) == job.state_of(0, 1, 2, 3)
    assert job.published(2) == job.state_of(0, 1, 2)
    restart = restore_point(job, "run-2", 4)
    assert restart is not None and (restart.epoch, restart.run_id) == (3, "run-1")
    assert restart.key_columns == (("app_id", "string"),)


def test_a_batch_that_runs_again_begins_from_the_checkpoint_before_its_own(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    for epoch in range(3):
        job.epoch("run-1", epoch, coordinator)
    # Spark did not commit epoch 2 and runs it again.
    again = restore_point(job, "run-2", 2)
    assert again is not None and again.epoch == 1
    job.epoch("run-2", 2, CheckpointCoordinator(job.folder))
    assert job.published(2) == job.state_of(0, 1, 2)


def test_the_first_batch_runs_again_without_state(job: Any, coordinator: CheckpointCoordinator) -> None:
    job.epoch("run-1", 0, coordinator)
    assert restore_point(job, "run-2", 0) is None


def test_a_checkpoint_folder_without_metadata_is_no_checkpoint(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    for epoch in range(2):
        job.epoch("run-1", epoch, coordinator)
    job.folder.storage.write_atomic("chk-2/notes.txt", b"made by somebody")
    found = restore_point(job, "run-1", 3)
    assert found is not None and found.epoch == 1


def test_epochs_that_nothing_evaluated_are_passed_over(job: Any, coordinator: CheckpointCoordinator) -> None:
    """A ``foreachBatch`` function may leave a batch alone: no attempt, no change of the state."""
    job.epoch("run-1", 0, coordinator)
    job.epoch("run-1", 5, coordinator)
    assert job.published(5) == job.state_of(0, 5)


def test_epochs_between_runs_are_not_passed_over_where_spark_evaluates_each(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """Meanwhile the query ran without the operator, which differs from a batch that was not evaluated."""
    for epoch in range(2):
        job.epoch("run-1", epoch, coordinator)
    returning = job.identity("run-3", 4, 0)
    claim(job.folder, returning)
    with pytest.raises(MissedEpochsError, match="the epochs 2 to 3 ran without this operator") as caught:
        find_restore_point(job.folder, returning, each_epoch=True)
    assert (caught.value.epoch, caught.value.newest) == (4, 1)
    assert f"{job.folder.location}/_continue-at-4" in str(caught.value)
    assert "The state is complete." in str(caught.value) and "another uid" not in str(caught.value)
    assert find_restore_point(job.folder, returning).epoch == 1, "inside foreachBatch it is the user's affair"
    job.folder.storage.write_atomic("_continue-at-4", b"")
    assert find_restore_point(job.folder, returning, each_epoch=True).epoch == 1
    job.folder.storage.write_atomic("_continue-at-9", b"")
    later = job.identity("run-3", 5, 0)
    with pytest.raises(MissedEpochsError):
        find_restore_point(job.folder, later, each_epoch=True)


@pytest.mark.parametrize(("run", "epoch"), [("run-1", 5), ("run-1", 2), ("run-2", 2), ("run-2", 1)])
def test_epochs_that_nothing_evaluated_within_a_run_are_passed_over_everywhere(
    job: Any, coordinator: CheckpointCoordinator, run: str, epoch: int
) -> None:
    for number in range(2):
        job.epoch("run-1", number, coordinator)
    identity = job.identity(run, epoch, 0)
    claim(job.folder, identity)
    found = find_restore_point(job.folder, identity, each_epoch=True)
    assert found is not None and found.epoch == min(1, epoch - 1)


def test_damaged_metadata_is_an_error_and_never_passed_over_for_an_older_checkpoint(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    for epoch in range(2):
        job.epoch("run-1", epoch, coordinator)
    data = job.folder.storage.read("chk-1/_metadata")
    job.folder.storage.write_atomic("chk-1/_metadata", data[:-10])
    with pytest.raises(CorruptFileError, match=r"chk-1/_metadata"):
        restore_point(job, "run-2", 2)


def test_metadata_in_the_folder_of_another_epoch_is_refused(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    job.folder.storage.write_atomic("chk-1/_metadata", job.folder.storage.read("chk-0/_metadata"))
    with pytest.raises(CorruptFileError, match="checkpoint of epoch 0"):
        restore_point(job, "run-1", 2)


@pytest.mark.parametrize("left", ["a checkpoint", "an attempt"])
def test_a_run_whose_epoch_another_run_left_behind_is_refused(job: Any, left: str) -> None:
    """P2: a driver that planned epoch 0 gets its executor when another one has ended."""
    first = CheckpointCoordinator(job.folder)
    job.epoch("run-1", 0, first)
    if left == "a checkpoint":
        job.epoch("run-1", 1, first)
    else:
        job.folder.write_started(job.identity("run-1", 1, 0))
    before = {path: job.folder.storage.read(path) for path in job.folder.storage.files()}
    with pytest.raises(OvertakenRunError, match="Run run-2 begins epoch 0 of the operator 'views'") as caught:
        claim(job.folder, job.identity("run-2", 0, 0))
    assert (caught.value.epoch, caught.value.later) == (0, 1)
    assert {path: job.folder.storage.read(path) for path in job.folder.storage.files()} == before
    job.epoch("run-1", 2 if left == "a checkpoint" else 1, first)
    assert job.folder.read_owner().runs == ("run-1",)


def test_a_query_set_back_by_its_user_begins_from_the_checkpoint_before(job: Any) -> None:
    first = CheckpointCoordinator(job.folder, retained=3)
    for epoch in range(4):
        job.epoch("run-1", epoch, first)
    job.epoch("run-1", 4)  # attempts that nothing published
    with pytest.raises(OvertakenRunError, match=r"_set-back-to-2:") as caught:
        restore_point(job, "run-2", 2)
    assert caught.value.later == 4
    job.folder.storage.write_atomic("_set-back-to-2", b"")
    job.epoch("run-2", 2, CheckpointCoordinator(job.folder, retained=3))
    assert (job.folder.checkpoints(), job.folder.attempt_epochs()) == ([1, 2], [2])
    assert job.published(2) == job.state_of(0, 1, 2)
    # The consent counts once.
    job.epoch("run-2", 3, CheckpointCoordinator(job.folder, retained=3))
    with pytest.raises(OvertakenRunError):
        restore_point(job, "run-3", 2)


def test_consent_to_a_set_back_does_not_outlast_its_epoch(job: Any) -> None:
    """As where the newest epoch alone was set back, or the deletion of later ones was interrupted."""
    coordinator = CheckpointCoordinator(job.folder)
    for epoch in range(3):
        job.epoch("run-1", epoch, coordinator)
    assert coordinator.drain(600.0)
    job.folder.storage.write_atomic("_set-back-to-2", b"")
    job.epoch("run-2", 2, second := CheckpointCoordinator(job.folder))
    assert not job.folder.storage.exists("_set-back-to-2")
    for epoch in range(3, 5):
        job.epoch("run-2", epoch, second)
    # A driver that planned the epoch at that time, and comes late.
    with pytest.raises(OvertakenRunError):
        restore_point(job, "run-3", 2)
    assert job.published(4) == job.state_of(0, 1, 2, 3, 4)


def test_a_set_back_beyond_the_retained_checkpoints_deletes_nothing(job: Any) -> None:
    coordinator = CheckpointCoordinator(job.folder)
    for epoch in range(5):
        job.epoch("run-1", epoch, coordinator)
    job.folder.storage.write_atomic("_set-back-to-2", b"")
    with pytest.raises(MissingCheckpointError, match="there are only chk-3, chk-4"):
        restore_point(job, "run-2", 2)
    assert job.published(4) == job.state_of(0, 1, 2, 3, 4)
    assert restore_point(job, "run-3", 5).epoch == 4


# -- epochs that ran and were not published --------------------------------------------------------


def test_an_unpublished_epoch_is_published_by_the_next_one_byte_by_byte(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    words = job.epoch("run-1", 1)
    assert job.published(1) is None
    found = restore_point(job, "run-1", 2)
    assert found is not None and found.epoch == 1
    by_task = job.folder.storage.read("chk-1/_metadata")
    job.folder.delete_checkpoint(1)
    for word in reversed(words):
        coordinator.acknowledge(word)
    assert job.folder.storage.read("chk-1/_metadata") == by_task
    assert job.published(1) == job.state_of(0, 1)


def test_the_first_epoch_can_be_published_by_the_second(job: Any) -> None:
    job.epoch("run-1", 0)
    job.epoch("run-1", 1)
    job.epoch("run-2", 2)
    assert job.published(1) == job.state_of(0, 1)
    assert restore_point(job, "run-2", 3) is not None
    assert job.published(2) == job.state_of(0, 1, 2)


def test_several_tasks_publish_the_same_epoch_at_once(jobs: ModuleType, local: CheckpointStorage) -> None:
    job = jobs.Job(local, parallelism=8)
    job.epoch("run-1", 0)
    start = threading.Barrier(8)

    def task(partition: int) -> CheckpointMetadata | None:
        identity = job.identity("run-1", 1, partition)
        start.wait()
        claim(job.folder, identity)
        return find_restore_point(job.folder, identity)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(task, range(8)))
    assert found[0] is not None and all(metadata == found[0] for metadata in found)
    assert job.files("chk-0") == ["_metadata"]
    assert job.published(0) == job.state_of(0)


def test_a_retried_task_counts_with_its_finished_attempt(job: Any) -> None:
    failed = job.identity("run-1", 0, 1)
    job.begin(failed)
    job.epoch("run-1", 0)
    assert restore_point(job, "run-1", 1) is not None
    assert job.published(0) == job.state_of(0)


def test_an_epoch_evaluated_only_in_part_is_an_error_that_names_the_partitions(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """What ``limit`` does: one partition ran to its end, the other was never asked."""
    job.epoch("run-1", 0, coordinator)
    coordinator.acknowledge(job.task("run-1", 1, 0))
    with pytest.raises(IncompleteEpochError) as caught:
        restore_point(job, "run-1", 2)
    assert (caught.value.uid, caught.value.epoch) == ("views", 1)
    assert "of 2 partitions, partition 1 has no finished attempt (none began)" in caught.value.details
    message = str(caught.value)
    assert message.startswith("what epoch 1 of the operator 'views' did to the state is lost")
    assert "limit" in message and f"'{job.folder.location}/attempts/epoch-1'" in message
    # The way out that the message names.
    job.folder.delete_attempts(1)
    job.epoch("run-1", 2, coordinator)
    assert job.published(2) == job.state_of(0, 2)


def test_attempts_of_which_none_finished_are_an_error(job: Any, coordinator: CheckpointCoordinator) -> None:
    """What ``take(1)`` may do: a task was stopped in the middle."""
    job.epoch("run-1", 0, coordinator)
    job.begin(job.identity("run-1", 1, 0))
    with pytest.raises(IncompleteEpochError, match="attempts of the partitions 0 began and none finished"):
        restore_point(job, "run-1", 2)


def test_two_finished_attempts_of_a_partition_are_an_error(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    job.epoch("run-1", 1)
    job.task("run-1", 1, 1)
    with pytest.raises(
        IncompleteEpochError, match=r"partition 1 has several finished attempts \(task attempts"
    ):
        restore_point(job, "run-1", 2)


def test_a_task_that_saw_more_than_the_publisher_finds_the_published_epoch(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie finishes between the look of one task, which publishes, and the look of another."""
    words = job.epoch("run-1", 0)
    listed = OperatorFolder.attempts

    def look_late(folder: OperatorFolder, epoch: int) -> Any:
        manifests = [folder.read_manifest(word.manifest) for word in words]
        folder.write_metadata(CheckpointMetadata.of(manifests))
        zombie = job.identity("run-1", 0, 1)
        folder.write_started(zombie)
        job.write_manifest(zombie, job.write_data(zombie, {}))
        return listed(folder, epoch)

    monkeypatch.setattr(OperatorFolder, "attempts", look_late)
    found = restore_point(job, "run-1", 1)
    assert found is not None
    assert [part.identity for part in found.parts] == [word.identity for word in words]


def test_an_epoch_that_ran_with_two_parallelisms_is_an_error(
    jobs: ModuleType, local: CheckpointStorage
) -> None:
    two, four = jobs.Job(local), jobs.Job(local, parallelism=4, first_attempt=100)
    two.task("run-1", 0, 0)
    four.task("run-1", 0, 3)
    with pytest.raises(IncompleteEpochError, match="different parallelisms"):
        restore_point(two, "run-1", 1)


def test_of_two_runs_of_an_epoch_the_newer_one_is_published(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """Spark ran the epoch again because it had not committed the older run's."""
    job.epoch("run-1", 0, coordinator)
    job.epoch("run-1", 1)
    job.epoch("run-2", 1)
    found = restore_point(job, "run-3", 2)
    assert found is not None and (found.epoch, found.run_id) == (1, "run-2")
    assert job.published(1) == job.state_of(0, 1)


def test_a_complete_older_run_does_not_replace_an_incomplete_newer_one(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    job.epoch("run-1", 1)
    job.task("run-2", 1, 0)
    with pytest.raises(IncompleteEpochError, match="partition 1 has no finished attempt"):
        restore_point(job, "run-2", 2)


def test_a_checkpoint_that_an_older_run_has_overwritten_is_not_used(job: Any) -> None:
    """The older run was asleep between its last look at the owner file and its write."""
    job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    asleep = [job.folder.read_manifest(word.manifest) for word in job.epoch("run-1", 1)]
    job.epoch("run-2", 1, CheckpointCoordinator(job.folder))
    job.folder.write_metadata(CheckpointMetadata.of(asleep))
    restored = restore_point(job, "run-2", 2)
    assert restored is not None and (restored.run_id, job.read(restored)) == ("run-2", job.state_of(0, 1))


def test_an_epoch_that_ran_again_counts_with_its_newer_unpublished_run(job: Any) -> None:
    """Output and state belong together, and Spark has the output of the newer run."""
    coordinator = CheckpointCoordinator(job.folder)
    job.epoch("run-1", 0, coordinator)
    job.epoch("run-1", 1, coordinator)
    job.epoch("run-2", 1)
    restored = restore_point(job, "run-2", 2)
    assert restored is not None and (restored.epoch, restored.run_id) == (1, "run-2")


def test_a_finished_run_replaces_one_that_never_entered(job: Any, coordinator: CheckpointCoordinator) -> None:
    """Without locks the entry of one of two runs may be overwritten by the other's."""
    job.epoch("run-1", 0, coordinator)
    job.epoch("run-1", 1)
    job.folder.write_started(job.identity("run-x", 1, 0))
    found = restore_point(job, "run-2", 2)
    assert found is not None and (found.epoch, found.run_id) == (1, "run-1")


def test_a_run_that_ended_in_the_midst_of_a_repeated_epoch_leaves_its_checkpoint(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """P5: Spark had committed epoch 1 before run-2, which was late, began to repeat it."""
    for epoch in range(2):
        job.epoch("run-1", epoch, coordinator)
    job.task("run-2", 1, 0)
    found = restore_point(job, "run-3", 2)
    assert found is not None and (found.epoch, found.run_id) == (1, "run-1")


def test_the_run_that_continued_counts_even_if_a_newer_one_finished(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """P4: only the run whose output of epoch 1 Spark committed can have begun epoch 2."""
    job.epoch("run-1", 0, coordinator)
    job.epoch("run-1", 1)
    late = job.identity("run-2", 1, 0), job.identity("run-2", 1, 1)
    states = [job.begin(identity) for identity in late]
    for identity, state in zip(late, states, strict=True):
        job.write_manifest(identity, job.write_data(identity, state))
    job.folder.write_started(job.identity("run-1", 2, 0))
    with pytest.raises(IncompleteEpochError, match="none finished"):
        restore_point(job, "run-3", 3)
    assert job.folder.read_metadata(1).run_id == "run-1"


def test_a_task_of_a_superseded_run_finishes_no_attempt(job: Any) -> None:
    """P3: what a run has finished when another one enters is all that it will ever have finished."""
    late = job.identity("run-1", 0, 0)
    segment = job.write_data(late, job.begin(late))
    claim(job.folder, job.identity("run-2", 0, 0))
    with pytest.raises(SupersededRunError, match="run-2"):
        job.write_manifest(late, segment)
    assert not any(attempt.finished for attempt in job.folder.attempts(0))


def test_a_zombie_of_an_epoch_that_was_published_changes_nothing(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    zombie = job.identity("run-1", 1, 0)
    state = job.begin(zombie)
    job.epoch("run-2", 1, CheckpointCoordinator(job.folder))
    published = job.folder.storage.read("chk-1/_metadata")
    # Only now the zombie writes its files.
    segment = job.write_data(zombie, state)
    with pytest.raises(SupersededRunError):
        job.write_manifest(zombie, segment)
    job.epoch("run-2", 2, CheckpointCoordinator(job.folder))
    assert job.folder.storage.read("chk-1/_metadata") == published
    assert job.published(2) == job.state_of(0, 1, 2)


def test_a_damaged_manifest_stops_the_completion_and_is_named(job: Any) -> None:
    words = job.epoch("run-1", 0)
    path = words[1].manifest
    job.folder.storage.write_atomic(
        path, job.folder.storage.read(path).replace(b'"rows_in":10', b'"rows_in":11')
    )
    with pytest.raises(CorruptFileError) as caught:
        restore_point(job, "run-1", 1)
    assert caught.value.path.endswith(path)
    assert job.published(0) is None


# -- whose folder ----------------------------------------------------------------------------------


def test_the_folder_of_another_query_is_refused_by_name(
    jobs: ModuleType, job: Any, local: CheckpointStorage, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    before = sorted(job.files("")), job.folder.storage.read("_owner")
    other = jobs.Job(local, query="query-2")
    with pytest.raises(StateFolderOwnedError) as caught:
        restore_point(other, "run-9", 0)
    assert (caught.value.owner, caught.value.query_id) == ("query query-1", "query-2")
    assert job.folder.location in str(caught.value) and "another uid" in str(caught.value)
    assert (sorted(job.files("")), job.folder.storage.read("_owner")) == before


def test_a_checkpoint_of_another_query_in_an_own_folder_is_refused_by_name(
    jobs: ModuleType, job: Any, tmp_path: Any, coordinator: CheckpointCoordinator
) -> None:
    other = jobs.Job(CheckpointStorage.open(tmp_path / "other"), query="query-2")
    other.epoch("run-9", 0, CheckpointCoordinator(other.folder))
    job.epoch("run-1", 0, coordinator)
    job.folder.storage.write_atomic("chk-0/_metadata", other.folder.storage.read("chk-0/_metadata"))
    with pytest.raises(StateFolderOwnedError, match="query query-2"):
        restore_point(job, "run-1", 1)


def test_a_folder_shared_by_two_operators_on_a_file_system_without_case_is_refused(
    jobs: ModuleType, job: Any, local: CheckpointStorage
) -> None:
    restore_point(job, "run-1", 0)
    upper = jobs.Job(local, uid="Views")
    upper.folder.storage = job.folder.storage
    with pytest.raises(StateFolderOwnedError, match="operator 'views'"):
        restore_point(upper, "run-1", 0)


@pytest.mark.parametrize("uid", ["", ".", "..", "a/b", "a b", "ü", "x" * 201, "a\n"])
def test_a_uid_that_is_no_folder_name_is_refused(local: CheckpointStorage, uid: str) -> None:
    with pytest.raises(UnsafeNameError, match="uid of an operator"):
        OperatorFolder(local, uid)


@pytest.mark.skipif(not os.path.isdir("/sys/kernel"), reason="needs a file system that no user may write to")
def test_storage_that_cannot_be_written_is_refused_by_name(jobs: ModuleType) -> None:
    job = jobs.Job(CheckpointStorage.open("/sys/keyedstate"))
    with pytest.raises(StorageError, match="cannot lock /sys/keyedstate/views/_lock"):
        claim(job.folder, job.identity("run-1", 0, 0))


def test_another_max_parallelism_is_refused_with_the_stored_one(
    jobs: ModuleType, job: Any, local: CheckpointStorage, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    with pytest.raises(MaxParallelismChangedError, match="'max-parallelism' to 8") as caught:
        restore_point(jobs.Job(local, max_parallelism=16), "run-2", 1)
    assert (caught.value.stored, caught.value.given) == (8, 16)


def test_an_older_run_is_stopped_once_a_newer_one_has_begun(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    restore_point(job, "run-2", 1)
    with pytest.raises(SupersededRunError) as caught:
        restore_point(job, "run-1", 1)
    assert (caught.value.run_id, caught.value.newer_run_id) == ("run-1", "run-2")
    restore_point(job, "run-2", 1)


def test_the_owner_file_does_not_grow_with_every_restart(job: Any) -> None:
    for number in range(130):
        claim(job.folder, job.identity(f"run-{number}", 0, 0))
    owner = job.folder.read_owner()
    assert owner.runs == tuple(f"run-{number}" for number in range(30, 130))


def test_all_tasks_of_a_first_epoch_may_claim_at_once(jobs: ModuleType, local: CheckpointStorage) -> None:
    for attempt in range(10):
        job = jobs.Job(local, uid=f"views-{attempt}", parallelism=8)
        start = threading.Barrier(8)

        def task(partition: int, job: Any = job, start: threading.Barrier = start) -> object:
            identity = job.identity("run-1", 0, partition)
            start.wait()
            return job.begin(identity)

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(task, range(8))) == [{}] * 8
        assert job.folder.read_owner().runs == ("run-1",)


# -- what is missing -------------------------------------------------------------------------------


def test_a_missing_folder_is_refused_after_the_first_epoch(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    for epoch in range(2):
        job.epoch("run-1", epoch, coordinator)
    job.folder.storage.delete_dir("chk-1")  # so that the folder itself is left for the next line
    for name in job.files(""):
        delete = job.folder.storage.delete_file if name.startswith("_") else job.folder.storage.delete_dir
        delete(name)
    with pytest.raises(MissingStateFolderError, match="_start-empty") as caught:
        restore_point(job, "run-2", 2)
    assert (caught.value.uid, caught.value.epoch, caught.value.siblings) == ("views", 2, ())
    assert job.files("") == [], "a refusal must not leave a folder that the next attempt would take for one"


def test_a_missing_folder_is_refused_with_the_uids_that_it_may_have_had(
    jobs: ModuleType, storage: CheckpointStorage
) -> None:
    former = jobs.Job(storage, uid="op")
    former.epoch("run-1", 0, CheckpointCoordinator(former.folder))
    jobs.Job(storage, uid="foreign", query="query-2").task("run-9", 0, 0)
    renamed = jobs.Job(storage, uid="views")
    with pytest.raises(MissingStateFolderError) as caught:
        restore_point(renamed, "run-2", 1)
    assert caught.value.siblings == ("op",)
    message = str(caught.value)
    assert message.index("was the uid renamed from 'op'?") < message.index("_start-empty")


def test_a_user_may_let_an_operator_begin_without_state_in_a_running_query(
    jobs: ModuleType, local: CheckpointStorage
) -> None:
    job = jobs.Job(local, parallelism=4)
    job.folder.storage.write_atomic("_start-empty", b"")
    coordinator = CheckpointCoordinator(job.folder)
    job.epoch("run-5", 7, coordinator)
    # The first epoch may fail and run again; it began without state the first time too.
    assert restore_point(job, "run-6", 7) is None
    for epoch in (7, 8):
        job.epoch("run-6", epoch, coordinator)
    assert job.published(8) == job.state_of(7, 8)


def test_a_task_that_fails_before_its_first_write_may_begin_again(job: Any) -> None:
    """Claimed, then killed before the started marker: the next run finds an owner and nothing else."""
    job.folder.storage.write_atomic("_start-empty", b"")
    claim(job.folder, job.identity("run-1", 5, 0))
    assert restore_point(job, "run-2", 5) is None


def test_deleted_checkpoints_are_missed(job: Any, coordinator: CheckpointCoordinator) -> None:
    for epoch in range(3):
        job.epoch("run-1", epoch, coordinator)
    for name in ("chk-1", "chk-2", "attempts"):
        job.folder.storage.delete_dir(name)
    with pytest.raises(MissingCheckpointError, match="neither a checkpoint nor an attempt") as caught:
        restore_point(job, "run-2", 3)
    assert caught.value.epoch == 3


def test_a_deleted_owner_file_is_missed(job: Any, coordinator: CheckpointCoordinator) -> None:
    job.epoch("run-1", 0, coordinator)
    job.folder.storage.delete_file("_owner")
    for epoch in (0, 1):
        with pytest.raises(MissingCheckpointError, match="_owner is gone"):
            restore_point(job, "run-2", epoch)


def test_a_deleted_data_file_is_named(job: Any, coordinator: CheckpointCoordinator) -> None:
    job.epoch("run-1", 0, coordinator)
    data = job.files()[0]
    job.folder.storage.delete_file(f"data/{data}")
    with pytest.raises(MissingFileError, match=data):
        job.begin(job.identity("run-1", 1, 0))


# -- rescaling -------------------------------------------------------------------------------------


def test_another_parallelism_after_a_restart_moves_key_groups(
    jobs: ModuleType, local: CheckpointStorage
) -> None:
    """KG-ranges of 2, then 3, then 1, then 8 partitions over the same eight key groups."""
    for epoch, parallelism in enumerate([2, 3, 1, 8]):
        job = jobs.Job(local, parallelism=parallelism, first_attempt=epoch * 100)
        job.epoch(f"run-{epoch}", epoch, CheckpointCoordinator(job.folder))
    assert job.published(3) == job.state_of(0, 1, 2, 3)


def test_a_task_reads_only_the_parts_with_its_key_groups(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    metadata = job.folder.read_metadata(0)
    upper = metadata.parts[1].segments[0]
    assert upper.key_groups == KeyGroupRange(4, 7)
    job.folder.storage.write_atomic(upper.path, b"destroyed")
    assert sorted(job.read(metadata, KeyGroupRange(1, 3))) == [1, 2, 3]
    with pytest.raises(CorruptFileError, match=upper.path):
        handles_for(metadata, job.folder.storage, KeyGroupRange(3, 4))
