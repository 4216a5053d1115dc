"""The coordinator publishes each complete epoch, and deletes only what is obsolete."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.format.manifest import CheckpointMetadata, FailureReason
from keyedstate.checkpoint.protocol import retention
from keyedstate.checkpoint.protocol.coordinator import (
    Acknowledgement,
    CheckpointCoordinator,
    CheckpointListener,
)
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import (
    CorruptFileError,
    IncompleteEpochError,
    InvalidOptionError,
    StorageError,
    SupersededRunError,
)


class Recorder(CheckpointListener):
    """Notes the calls that it receives."""

    def __init__(self) -> None:
        self.checkpoints: list[CheckpointMetadata] = []
        self.all: list[tuple[Any, ...]] = []

    def completed(self, metadata: CheckpointMetadata) -> None:
        self.checkpoints.append(metadata)
        self.all.append(("completed", metadata.epoch))

    def aborted(self, epoch: int, reason: FailureReason) -> None:
        self.all.append(("aborted", epoch, reason))

    def subsumed(self, epoch: int) -> None:
        self.all.append(("subsumed", epoch))


@pytest.fixture
def recorded() -> Recorder:
    return Recorder()


@pytest.fixture
def completed(recorded: Recorder) -> list[CheckpointMetadata]:
    return recorded.checkpoints


@pytest.fixture
def coordinator(job: Any, recorded: Recorder) -> CheckpointCoordinator:
    return CheckpointCoordinator(job.folder, recorded)


def checkpoints(job: Any) -> list[int]:
    return [epoch for epoch in job.folder.checkpoints() if job.folder.read_metadata(epoch)]


def data_of(*words: Acknowledgement) -> set[str]:
    return {f"{word.identity.nonce}.seg" for word in words}


# -- publication -----------------------------------------------------------------------------------


def test_the_last_acknowledgement_publishes(
    jobs: ModuleType, storage: CheckpointStorage, recorded: Recorder
) -> None:
    job = jobs.Job(storage, parallelism=4)
    coordinator = CheckpointCoordinator(job.folder, recorded)
    completed = recorded.checkpoints
    words = job.epoch("run-1", 0)
    for word in (words[2], words[0], words[3]):
        coordinator.acknowledge(word)
        assert checkpoints(job) == [] and completed == []
    coordinator.acknowledge(words[1])
    assert checkpoints(job) == [0], "at once, before Spark continues"
    coordinator.drain()
    assert [metadata.epoch for metadata in completed] == [0]
    assert completed[0] == job.folder.read_metadata(0)
    assert [part.identity.partition for part in completed[0].parts] == [0, 1, 2, 3]
    assert job.published(0) == job.state_of(0)


def test_the_checkpoint_exists_when_its_completion_is_notified(job: Any) -> None:
    seen: list[object] = []

    class Looking(CheckpointListener):
        def completed(self, metadata: CheckpointMetadata) -> None:
            seen.append(job.published(metadata.epoch))

    coordinator = CheckpointCoordinator(job.folder, Looking())
    job.epoch("run-1", 0, coordinator)
    assert seen == [job.state_of(0)]


def test_acknowledgements_may_come_from_several_threads_at_once(
    jobs: ModuleType, local: CheckpointStorage, recorded: Recorder
) -> None:
    job = jobs.Job(local, parallelism=8)
    coordinator = CheckpointCoordinator(job.folder, recorded)
    words = job.epoch("run-1", 0)
    start = threading.Barrier(8)

    def acknowledge(word: Acknowledgement) -> None:
        start.wait()
        coordinator.acknowledge(word)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(acknowledge, words))
    coordinator.drain()
    assert len(recorded.checkpoints) == 1 and job.published(0) == job.state_of(0)


def test_the_last_acknowledgement_of_a_partition_counts_before_the_publication(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    first, again, other = job.task("run-1", 0, 0), job.task("run-1", 0, 0), job.task("run-1", 0, 1)
    for word in (first, again, other):
        coordinator.acknowledge(word)
    assert [part.identity for part in job.folder.read_metadata(0).parts] == [again.identity, other.identity]


def test_the_last_acknowledgement_of_a_partition_counts_after_the_publication(
    job: Any, coordinator: CheckpointCoordinator, completed: list[CheckpointMetadata]
) -> None:
    """A ``foreachBatch`` function that evaluates its result twice, or a stage that ran again in part."""
    words = job.epoch("run-1", 0, coordinator)
    again = job.task("run-1", 0, 1)
    coordinator.acknowledge(again)
    coordinator.drain()
    assert [part.identity for part in job.folder.read_metadata(0).parts] == [
        words[0].identity,
        again.identity,
    ]
    assert len(completed) == 2
    job.epoch("run-1", 1, coordinator)
    assert job.published(1) == job.state_of(0, 1)


def test_a_second_evaluation_begins_from_the_epoch_before_and_counts_once(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    for epoch in range(3):
        job.epoch("run-1", epoch, coordinator)
        job.epoch("run-1", epoch, coordinator)
    assert job.published(2) == job.state_of(0, 1, 2)


def test_a_late_acknowledgement_of_an_epoch_that_is_over_is_passed_over(
    job: Any, coordinator: CheckpointCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    job.epoch("run-1", 0, coordinator)
    late = job.task("run-1", 0, 1)
    first = job.task("run-1", 1, 0)
    coordinator.acknowledge(first)
    before = job.folder.storage.read("chk-0/_metadata")
    with caplog.at_level(logging.WARNING):
        coordinator.acknowledge(late)
    assert "late acknowledgement of partition 1, epoch 0" in caplog.text
    assert job.folder.storage.read("chk-0/_metadata") == before
    coordinator.acknowledge(job.task("run-1", 1, 1))
    assert job.published(1) == job.state_of(0, 1)


def test_an_epoch_that_stays_incomplete_is_not_published(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    coordinator.acknowledge(job.task("run-1", 1, 0))
    # Words of two epochs never make one checkpoint together.
    stray = job.identity("run-1", 2, 1)
    job.folder.write_started(stray)
    coordinator.acknowledge(job.write_manifest(stray, job.write_data(stray, {})))
    assert checkpoints(job) == [0]


def test_a_failed_publication_raises_and_the_next_epoch_makes_up_for_it(
    job: Any, coordinator: CheckpointCoordinator, completed: list[CheckpointMetadata]
) -> None:
    job.epoch("run-1", 0, coordinator)
    words = job.epoch("run-1", 1)
    job.folder.storage.write_atomic("chk-1", b"a file is in the way")
    coordinator.acknowledge(words[0])
    with pytest.raises(StorageError, match="chk-1/_metadata"):
        coordinator.acknowledge(words[1])
    assert [metadata.epoch for metadata in completed] == [0]
    job.folder.storage.delete_file("chk-1")
    job.epoch("run-1", 2, coordinator)
    assert job.published(1) == job.state_of(0, 1) and job.published(2) == job.state_of(0, 1, 2)


def test_manifests_that_do_not_fit_together_are_never_published(
    jobs: ModuleType, job: Any, local: CheckpointStorage, coordinator: CheckpointCoordinator
) -> None:
    coordinator.acknowledge(job.task("run-1", 0, 0))
    other = jobs.Job(local, max_parallelism=16, first_attempt=50)
    identity = other.identity("run-1", 0, 1)
    word = other.write_manifest(identity, other.write_data(identity, {}))
    with pytest.raises(IncompleteEpochError, match="max_parallelism 16"):
        coordinator.acknowledge(word)
    assert checkpoints(job) == []


def test_a_manifest_that_is_not_that_of_the_acknowledged_attempt_is_refused(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    words = job.epoch("run-1", 0)
    coordinator.acknowledge(words[0])
    with pytest.raises(CorruptFileError, match="another attempt"):
        coordinator.acknowledge(replace(words[1], manifest=job.task("run-1", 0, 1).manifest))
    with pytest.raises(ValueError, match="'views' got an acknowledgement of 'clicks'"):
        coordinator.acknowledge(Acknowledgement(replace(words[1].identity, uid="clicks"), words[1].manifest))


def test_a_driver_whose_query_runs_elsewhere_by_now_publishes_nothing(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    words = job.epoch("run-1", 1)
    coordinator.acknowledge(words[0])
    job.epoch("run-2", 1, CheckpointCoordinator(job.folder))
    published = job.folder.storage.read("chk-1/_metadata")
    with pytest.raises(SupersededRunError, match="run-2"):
        coordinator.acknowledge(words[1])
    assert job.folder.storage.read("chk-1/_metadata") == published


def test_a_driver_learns_at_the_last_moment_that_a_newer_run_has_begun(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    words = job.epoch("run-1", 0)
    coordinator.acknowledge(words[0])
    job.begin(job.identity("run-2", 0, 0))
    with pytest.raises(SupersededRunError, match="run-2"):
        coordinator.acknowledge(words[1])
    assert checkpoints(job) == []


def test_a_zombie_run_does_not_disturb_the_epoch_of_its_successor(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """A query is started again in the same session, and a task of the stopped one finishes after all."""
    job.epoch("run-1", 0, coordinator)
    zombie = job.task("run-1", 1, 0)
    coordinator.acknowledge(job.task("run-2", 1, 0))
    with pytest.raises(SupersededRunError):
        coordinator.acknowledge(zombie)
    coordinator.acknowledge(job.task("run-2", 1, 1))
    assert job.folder.read_metadata(1).run_id == "run-2"


def test_an_acknowledgement_is_small_and_travels_as_json_or_pickle(job: Any) -> None:
    word = job.task("run-1", 0, 0)
    assert from_json(Acknowledgement, json.loads(json.dumps(to_json(word)))) == word
    assert pickle.loads(pickle.dumps(word)) == word
    assert len(pickle.dumps(word)) < 1000


# -- what becomes of a checkpoint ------------------------------------------------------------------


def test_listeners_are_notified_in_order(
    job: Any, coordinator: CheckpointCoordinator, recorded: Recorder
) -> None:
    """CP-08: pending with the first acknowledgement, retained with the last, replaced in its turn."""
    for epoch in range(4):
        job.epoch("run-1", epoch, coordinator)
    assert recorded.all == [
        ("completed", 0), ("completed", 1),
        ("completed", 2), ("subsumed", 0), ("completed", 3), ("subsumed", 1),
    ]  # fmt: skip


def test_an_epoch_without_its_last_acknowledgement_times_out_and_is_reported(
    job: Any, recorded: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """CP-11."""
    expired = threading.Event()

    class Waking(Recorder):
        def aborted(self, epoch: int, reason: FailureReason) -> None:
            super().aborted(epoch, reason)
            expired.set()

    recorded = Waking()
    coordinator = CheckpointCoordinator(job.folder, recorded, timeout_ms=10)
    with caplog.at_level(logging.WARNING):
        coordinator.acknowledge(job.task("run-1", 0, 0))
        assert expired.wait(600.0)
    assert recorded.all == [("aborted", 0, FailureReason.EXPIRED)] and checkpoints(job) == []
    assert "the checkpoint of epoch 0 of 'views' is aborted" in caplog.text
    assert "the partitions 1 of 2 have not acknowledged" in caplog.text


def test_an_epoch_that_was_given_up_is_published_if_spark_finishes_it_after_all(job: Any) -> None:
    """CP-11: unlike Flink, Spark commits the epoch, and so its state must count."""
    expired = threading.Event()

    class Waking(Recorder):
        def aborted(self, epoch: int, reason: FailureReason) -> None:
            super().aborted(epoch, reason)
            expired.set()

    recorded = Waking()
    coordinator = CheckpointCoordinator(job.folder, recorded, timeout_ms=10)
    coordinator.acknowledge(job.task("run-1", 0, 0))
    assert expired.wait(600.0)
    coordinator.acknowledge(job.task("run-1", 0, 1))
    coordinator.drain()
    assert recorded.all == [("aborted", 0, FailureReason.EXPIRED), ("completed", 0)]
    assert job.published(0) == job.state_of(0)


def test_an_epoch_that_is_published_does_not_expire(
    job: Any, coordinator: CheckpointCoordinator, recorded: Recorder
) -> None:
    before = set(threading.enumerate())
    coordinator.acknowledge(job.task("run-1", 0, 0))
    (timer,) = (
        thread for thread in set(threading.enumerate()) - before if isinstance(thread, threading.Timer)
    )
    coordinator.acknowledge(job.task("run-1", 0, 1))
    timer.join(600.0)
    coordinator.drain()
    assert not timer.is_alive() and recorded.all == [("completed", 0)]


def test_an_overtaken_epoch_is_aborted_and_its_late_acknowledgements_are_ignored(
    job: Any, coordinator: CheckpointCoordinator, recorded: Recorder
) -> None:
    """CP-12, CP-13: the newer one subsumes it."""
    job.epoch("run-1", 0, coordinator)
    late = [job.task("run-1", 1, partition) for partition in range(2)]
    coordinator.acknowledge(late[0])
    # A user has deleted the attempts of epoch 1, to continue without what it did.
    job.folder.delete_attempts(1)
    job.epoch("run-1", 2, coordinator)
    coordinator.acknowledge(late[1])
    coordinator.drain()
    assert recorded.all == [("completed", 0), ("aborted", 1, FailureReason.SUBSUMED), ("completed", 2)]
    assert job.folder.checkpoints() == [0, 2] and len(job.files()) == 4


def test_an_epoch_published_by_tasks_is_notified_as_completed(
    job: Any, coordinator: CheckpointCoordinator, recorded: Recorder
) -> None:
    words = job.epoch("run-1", 0)
    coordinator.acknowledge(words[0])  # The other word got lost on its way.
    job.epoch("run-1", 1, coordinator)
    assert recorded.all == [("completed", 0), ("completed", 1)]


def test_a_failed_publication_and_its_completion_are_notified(
    job: Any, coordinator: CheckpointCoordinator, recorded: Recorder
) -> None:
    """CP-09: once, however often it is tried."""
    words = job.epoch("run-1", 0)
    job.folder.storage.write_atomic("chk-0", b"a file is in the way")
    coordinator.acknowledge(words[0])
    for _ in range(2):
        with pytest.raises(StorageError):
            coordinator.acknowledge(words[1])
    job.folder.storage.delete_file("chk-0")
    job.epoch("run-1", 1, coordinator)
    assert recorded.all == [("aborted", 0, FailureReason.IO), ("completed", 0), ("completed", 1)]


def test_the_epoch_of_a_superseded_run_is_aborted(
    job: Any, coordinator: CheckpointCoordinator, recorded: Recorder
) -> None:
    coordinator.acknowledge(job.task("run-1", 0, 0))
    job.epoch("run-2", 0, coordinator)
    assert recorded.all == [("aborted", 0, FailureReason.SUPERSEDED_RUN), ("completed", 0)]


def test_a_listener_that_raises_does_no_harm(job: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(CheckpointListener):
        def completed(self, metadata: CheckpointMetadata) -> None:
            raise RuntimeError("no room for it")

        def subsumed(self, epoch: int) -> None:
            raise RuntimeError("no room for it either")

    coordinator = CheckpointCoordinator(job.folder, Failing())
    with caplog.at_level(logging.ERROR):
        for epoch in range(5):
            job.epoch("run-1", epoch, coordinator)
    assert job.folder.checkpoints() == [3, 4] and len(job.files()) == 4
    assert caplog.text.count("no room for it\n") == 5


def test_nothing_that_a_listener_does_delays_the_publication(job: Any) -> None:
    go_on = threading.Event()

    class Slow(CheckpointListener):
        def completed(self, metadata: CheckpointMetadata) -> None:
            go_on.wait()

    coordinator = CheckpointCoordinator(job.folder, Slow())
    for epoch in range(3):
        for word in job.epoch("run-1", epoch):
            coordinator.acknowledge(word)
        assert checkpoints(job) == list(range(epoch + 1)), "published, and nothing cleaned up yet"
    go_on.set()
    coordinator.drain()
    assert checkpoints(job) == [1, 2] and len(job.files()) == 4


def test_publications_wait_for_a_clean_up_that_falls_far_behind(job: Any) -> None:
    """CP-03: files must not pile up without end; when one is cleaned up, the next continues."""
    go_on, waits, published = threading.Event(), threading.Event(), []

    class Noticing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            waits.set()

    class Slow(CheckpointListener):
        def completed(self, metadata: CheckpointMetadata) -> None:
            go_on.wait()

    coordinator = CheckpointCoordinator(job.folder, Slow())

    def run() -> None:
        for epoch in range(30):
            for word in job.epoch("run-1", epoch):
                coordinator.acknowledge(word)
            published.append(epoch)

    log, noticing = logging.getLogger("keyedstate.checkpoint.protocol.background"), Noticing()
    log.addHandler(noticing)
    driver = threading.Thread(target=run)
    driver.start()
    try:
        assert waits.wait(600.0)
        assert driver.is_alive() and len(published) < 15
    finally:
        log.removeHandler(noticing)
        go_on.set()
    driver.join(600.0)
    coordinator.drain()
    assert len(published) == 30 and checkpoints(job) == [28, 29] and len(job.files()) == 4


def test_settings_may_change_when_the_operator_is_built_again(
    job: Any, coordinator: CheckpointCoordinator, recorded: Recorder
) -> None:
    """Inside ``foreachBatch`` it is built for every epoch; no epoch is forgotten by that."""
    first = job.task("run-1", 0, 0)
    coordinator.acknowledge(first)
    other = Recorder()
    coordinator.configure(other, retained=3)
    coordinator.acknowledge(job.task("run-1", 0, 1))
    coordinator.drain()
    assert recorded.all == [] and other.all == [("completed", 0)]
    for epoch in range(1, 5):
        job.epoch("run-1", epoch, coordinator)
    assert job.folder.checkpoints() == [2, 3, 4]


@pytest.mark.parametrize("timeout_ms", [9, -1, "soon"])
def test_a_timeout_that_is_too_short_is_refused(job: Any, timeout_ms: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"checkpoint\.timeout"):
        CheckpointCoordinator(job.folder, timeout_ms=timeout_ms)


# -- retention -------------------------------------------------------------------------------------


@pytest.mark.parametrize("retained", [2, 3, 5])
@pytest.mark.slow
def test_the_newest_checkpoints_are_kept_with_their_data_and_nothing_else(
    jobs: ModuleType, storage: CheckpointStorage, retained: int
) -> None:
    """CP-17."""
    job = jobs.Job(storage)
    coordinator = CheckpointCoordinator(job.folder, retained=retained)
    words = [job.epoch("run-1", epoch, coordinator) for epoch in range(7)]
    kept = list(range(7 - retained, 7))
    assert job.folder.checkpoints() == kept
    assert set(job.files()) == data_of(*(word for epoch in kept for word in words[epoch]))
    assert job.files("attempts") == ["epoch-6"]
    for epoch in kept:
        assert job.published(epoch) == job.state_of(*range(epoch + 1))


def test_epochs_that_were_passed_over_do_not_cost_checkpoints(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    for epoch in (0, 10, 20):
        job.epoch("run-1", epoch, coordinator)
    assert job.folder.checkpoints() == [10, 20]


@pytest.mark.parametrize("retained", [1, 0, -1, "many"])
def test_less_than_two_retained_checkpoints_are_refused(job: Any, retained: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"checkpoint\.retained"):
        CheckpointCoordinator(job.folder, retained=retained)


def test_a_batch_that_runs_again_replaces_its_checkpoint_and_the_old_data_goes_away(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    for epoch in range(2):
        job.epoch("run-1", epoch, coordinator)
    old = data_of(*job.epoch("run-1", 2, coordinator))
    assert old <= set(job.files())
    new = data_of(*job.epoch("run-2", 2, CheckpointCoordinator(job.folder)))
    assert job.folder.read_metadata(2).run_id == "run-2"
    assert new <= set(job.files()) and not old & set(job.files())
    assert job.published(1) == job.state_of(0, 1) and job.published(2) == job.state_of(0, 1, 2)


def test_a_second_evaluation_replaces_the_data_of_the_first_with_the_next_epoch(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    first = data_of(*job.epoch("run-1", 0, coordinator))
    second = data_of(*job.epoch("run-1", 0, coordinator))
    job.epoch("run-1", 1, coordinator)
    assert second <= set(job.files()) and not first & set(job.files())


def test_restarts_in_the_same_epoch_do_not_pile_up_data(job: Any, coordinator: CheckpointCoordinator) -> None:
    """A poison record lets one partition of epoch 1 fail for ever; the other writes its state each time."""
    job.epoch("run-0", 0, coordinator)
    for number in range(1, 20):
        word = job.task(f"run-{number}", 1, 0)
        job.begin(job.identity(f"run-{number}", 1, 1))
        restarted = CheckpointCoordinator(job.folder)
        restarted.acknowledge(word)
        restarted.drain()
    assert len(job.files()) == 2 + 1
    job.epoch("run-20", 1, CheckpointCoordinator(job.folder))
    assert job.published(1) == job.state_of(0, 1)


def test_a_restart_keeps_the_checkpoint_of_its_epoch_until_it_is_replaced(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    for epoch in range(2):
        job.epoch("run-1", epoch, coordinator)
    restarted = CheckpointCoordinator(job.folder)
    restarted.acknowledge(job.task("run-2", 1, 0))
    restarted.drain()
    assert job.folder.read_metadata(1).run_id == "run-1"
    assert job.published(1) == job.state_of(0, 1)


def test_files_of_an_epoch_under_way_are_never_touched(job: Any, coordinator: CheckpointCoordinator) -> None:
    """Another evaluation of the epoch, and a task of the next one, are at work during the clean-up."""
    for epoch in range(3):
        job.epoch("run-1", epoch, coordinator)
    words = job.epoch("run-1", 3)
    working = [job.identity("run-1", 3, 0), job.identity("run-1", 4, 1)]
    for identity in working:
        job.folder.write_started(identity)
        job.folder.storage.write_atomic(job.folder.data_path(identity), b"being written")
    for word in words:
        coordinator.acknowledge(word)
    coordinator.drain()
    assert job.folder.checkpoints() == [2, 3]
    assert {f"{identity.nonce}.seg" for identity in working} <= set(job.files())
    assert len(job.folder.attempts(4)) == 1


def test_a_task_may_begin_at_any_moment_of_a_clean_up(
    job: Any, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch in range(3):
        job.epoch("run-1", epoch, coordinator)
    words = job.epoch("run-1", 3)
    coordinator.acknowledge(words[0])
    begun = []
    plain = CheckpointStorage.list

    def look_after_a_task_began(storage: CheckpointStorage, path: str = "") -> Any:
        for epoch in (3, 4):
            identity = job.identity("run-1", epoch, 0)
            job.folder.write_started(identity)
            job.folder.storage.write_atomic(job.folder.data_path(identity), b"being written")
            begun.append(f"{identity.nonce}.seg")
        return plain(storage, path)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStorage, "list", look_after_a_task_began)
        coordinator.acknowledge(words[1])
        coordinator.drain()
    assert len(begun) > 8 and set(begun) <= set(job.files())
    assert job.folder.checkpoints() == [2, 3] and len(job.files()) == 4 + len(begun)


def test_what_a_killed_task_left_goes_away_with_the_next_epoch(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    killed = job.identity("run-1", 1, 0)
    job.begin(killed)
    job.folder.storage.write_atomic(job.folder.data_path(killed), b"half a file")
    job.epoch("run-1", 1, coordinator)
    job.epoch("run-1", 2, coordinator)
    assert not data_of(Acknowledgement(killed, "")) & set(job.files())


def test_what_a_zombie_writes_after_its_epoch_goes_away_with_the_next_one(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    job.epoch("run-1", 0, coordinator)
    zombie = job.identity("run-1", 1, 0)
    state = job.begin(zombie)
    for epoch in (1, 2, 3):
        job.epoch("run-1", epoch, coordinator)
    job.write_manifest(zombie, job.write_data(zombie, state))
    job.epoch("run-1", 4, coordinator)
    assert job.published(4) == job.state_of(0, 1, 2, 3, 4)
    assert len(job.files()) == 4 and job.files("attempts") == ["epoch-4"]


def test_names_that_are_not_ours_are_left_alone(job: Any, coordinator: CheckpointCoordinator) -> None:
    foreign = [
        "README", "chk-0/notes.txt", "chk-x/_metadata", "chk-01/_metadata", "data/table.parquet",
        "data/sub/one.seg", "attempts/epoch-0/notes.txt", "attempts/old", "savepoint-1/_metadata",
    ]  # fmt: skip
    job.epoch("run-1", 0)
    for path in foreign:
        job.folder.storage.write_atomic(path, b"somebody's")
    for epoch in range(4):
        job.epoch("run-1", epoch, coordinator)
    assert [path for path in foreign if not job.folder.storage.exists(path)] == []
    assert checkpoints(job) == [2, 3]
    assert job.files("chk-0") == ["notes.txt"] and job.files("attempts/epoch-0") == ["notes.txt"]


def test_checkpoints_above_the_published_epoch_keep_their_data(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """Without locks an older run may publish while its clean-up still waits."""
    for epoch in range(4):
        job.epoch("run-1", epoch, coordinator)
    older = job.folder.read_metadata(2)
    retention.prune(job.folder, older, retained=2)
    assert checkpoints(job) == [2, 3]
    assert job.published(3) == job.state_of(0, 1, 2, 3)


def test_a_failed_deletion_is_logged_and_made_up_for(
    job: Any, coordinator: CheckpointCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in range(2):
        job.epoch("run-1", epoch, coordinator)
    job.folder.storage.write_atomic("data/obstacle.seg/file", b"a folder where a file is expected")
    with caplog.at_level(logging.WARNING):
        job.epoch("run-1", 2, coordinator)
    assert "cannot clean up the state folder" in caplog.text and "obstacle.seg" in caplog.text
    assert job.published(2) == job.state_of(0, 1, 2)
    job.folder.storage.delete_dir("data/obstacle.seg")
    job.epoch("run-1", 3, coordinator)
    assert len(job.files()) == 4


def test_no_data_is_deleted_while_it_is_unknown_what_a_kept_checkpoint_uses(
    job: Any, coordinator: CheckpointCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in range(2):
        job.epoch("run-1", epoch, coordinator)
    words = job.epoch("run-1", 2)
    intact = job.folder.storage.read("chk-1/_metadata")
    job.folder.storage.write_atomic("chk-1/_metadata", intact[1:])
    with caplog.at_level(logging.WARNING):
        for word in words:
            coordinator.acknowledge(word)
        coordinator.drain()
    assert "chk-1/_metadata is damaged" in caplog.text
    job.folder.storage.write_atomic("chk-1/_metadata", intact)
    assert job.published(1) == job.state_of(0, 1)
    # The damaged one would have been dropped in its turn, and the clean-up would have continued.
    job.folder.storage.write_atomic("chk-1/_metadata", intact[1:])
    job.epoch("run-1", 3, coordinator)
    assert job.folder.checkpoints() == [2, 3] and len(job.files()) == 4
