"""Leased data exists until the lease is released or expires, whatever clean-up does meanwhile."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.protocol import retention
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.protocol.leases import lease
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CheckpointGoneError, CorruptFileError, MissingCheckpointError

YEAR = 365 * 24 * 3600.0


@pytest.fixture
def coordinator(job: Any) -> CheckpointCoordinator:
    return CheckpointCoordinator(job.folder)


def run(job: Any, coordinator: CheckpointCoordinator, *epochs: int) -> None:
    for epoch in epochs:
        job.epoch("run-1", epoch, coordinator)


def clean(job: Any, epoch: int) -> None:
    retention.prune(job.folder, job.folder.read_metadata(epoch), 2)


def test_a_leased_checkpoint_is_deleted_after_its_release(
    jobs: ModuleType, storage: CheckpointStorage
) -> None:
    job = jobs.Job(storage)
    coordinator = CheckpointCoordinator(job.folder)
    run(job, coordinator, 0, 1)
    with lease(job.folder, 0, YEAR) as held:
        assert held.protects and held.metadata.epoch == 0
        run(job, coordinator, 2, 3, 4)
        clean(job, 4)
        assert job.folder.checkpoints() == [0, 3, 4] and len(job.files()) == 6
        assert job.read(held.metadata) == job.state_of(0)
    assert not held.protects and job.files("holds") == []
    clean(job, 4)
    assert job.folder.checkpoints() == [3, 4] and len(job.files()) == 4


def test_a_checkpoint_goes_when_the_last_of_its_readers_lets_go(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    run(job, coordinator, 0)
    first, second = lease(job.folder, 0, YEAR), lease(job.folder, 0, YEAR)
    run(job, coordinator, 1, 2)
    first.release()
    first.release()
    clean(job, 2)
    assert job.published(0) == job.state_of(0)
    second.release()
    clean(job, 2)
    assert job.folder.checkpoints() == [1, 2]


def test_a_reader_that_was_killed_costs_room_until_its_time_is_over(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    run(job, coordinator, 0)
    killed = lease(job.folder, 0, 60.0, clock=lambda: 1_000.0)
    assert killed.protects
    run(job, coordinator, 1, 2)
    clean(job, 2)
    assert job.folder.checkpoints() == [1, 2] and job.files("holds") == [] and len(job.files()) == 4


def test_a_renewed_lease_outlives_its_first_time(job: Any, coordinator: CheckpointCoordinator) -> None:
    run(job, coordinator, 0)
    held = lease(job.folder, 0, 60.0, clock=lambda: 1_000.0)
    held.renew(1e10)
    assert len(job.files("holds")) == 1
    run(job, coordinator, 1, 2, 3)
    assert job.read(held.metadata) == job.state_of(0)


def test_renewing_an_expired_lease_is_an_error(job: Any, coordinator: CheckpointCoordinator) -> None:
    run(job, coordinator, 0)
    held = lease(job.folder, 0, 60.0, clock=lambda: 1_000.0)
    run(job, coordinator, 1, 2)
    clean(job, 2)
    with pytest.raises(CheckpointGoneError, match="expired and was not renewed in time"):
        held.renew(1e10)
    assert job.files("holds") == []


@pytest.mark.parametrize("epoch", [0, 7])
def test_a_checkpoint_that_is_not_there_is_missed_and_the_others_are_named(
    job: Any, coordinator: CheckpointCoordinator, epoch: int
) -> None:
    run(job, coordinator, 0, 1, 2)
    clean(job, 2)
    with pytest.raises(MissingCheckpointError) as caught:
        lease(job.folder, epoch, YEAR)
    message = str(caught.value)
    assert f"no checkpoint of epoch {epoch}" in message and "there are chk-1, chk-2" in message
    assert "checkpoint.retained" in message and caught.value.epoch == epoch
    assert job.files("holds") == []


def test_an_operator_without_any_checkpoint_has_none_to_hold(job: Any) -> None:
    with pytest.raises(CheckpointGoneError, match="there is no checkpoint at all"):
        lease(job.folder, 0, YEAR)


def test_the_data_of_a_leased_checkpoint_survives_its_replacement(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    """After a restart Spark runs the newest batch again, while somebody reads what it was before."""
    run(job, coordinator, 0, 1)
    held = lease(job.folder, 1, YEAR)
    again = CheckpointCoordinator(job.folder)
    job.epoch("run-2", 1, again)
    job.epoch("run-2", 2, again)
    clean(job, 2)
    assert job.folder.read_metadata(1).run_id == "run-2" and held.metadata.run_id == "run-1"
    assert job.read(held.metadata) == job.state_of(0, 1)
    held.release()
    clean(job, 2)
    assert len(job.files()) == 4


def test_a_batch_that_fails_all_night_keeps_leased_data(job: Any, coordinator: CheckpointCoordinator) -> None:
    run(job, coordinator, 0)
    held = lease(job.folder, 0, YEAR)
    for number in range(2, 6):
        restarted = CheckpointCoordinator(job.folder)
        restarted.acknowledge(job.task(f"run-{number}", 0, 0))
        restarted.drain()
    assert job.read(held.metadata) == job.state_of(0)


# -- the races with clean-up -----------------------------------------------------------------------


class Intruding:
    """Runs something right before the first use of a path by one of the folder's operations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operation: str, path: str, act: Callable[[], None]):
        self.ran = False
        plain = getattr(CheckpointStorage, operation)

        def intruded(storage: CheckpointStorage, name: str = "", *rest: Any, **named: Any) -> Any:
            if name.startswith(path) and not self.ran:
                self.ran = True
                act()
            return plain(storage, name, *rest, **named)

        monkeypatch.setattr(CheckpointStorage, operation, intruded)


def test_a_lease_during_the_deletion_of_metadata_keeps_the_data_or_is_an_error(
    job: Any, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clean-up has looked for holds, found none and is about to delete the metadata."""
    run(job, coordinator, 0, 1)
    taken: list[Any] = []
    intruder = Intruding(
        monkeypatch, "delete_file", "chk-0/", lambda: taken.append(lease(job.folder, 0, YEAR))
    )
    run(job, coordinator, 2)
    clean(job, 2)
    assert intruder.ran and job.read(taken[0].metadata) == job.state_of(0)
    run(job, coordinator, 3, 4)
    assert job.read(taken[0].metadata) == job.state_of(0)


def test_a_checkpoint_deleted_before_its_lease_is_written_is_an_error(
    job: Any, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job, coordinator, 0, 1)
    intruder = Intruding(monkeypatch, "write_atomic", "holds/", lambda: run(job, coordinator, 2, 3))
    with pytest.raises(CheckpointGoneError):
        lease(job.folder, 0, YEAR)
    assert intruder.ran and job.files("holds") == []


def test_a_checkpoint_replaced_before_its_lease_is_written_is_leased_instead(
    job: Any, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job, coordinator, 0, 1)
    intruder = Intruding(
        monkeypatch,
        "write_atomic",
        "holds/",
        lambda: job.epoch("run-2", 1, CheckpointCoordinator(job.folder)) and None,
    )
    held = lease(job.folder, 1, YEAR)
    assert intruder.ran and held.metadata.run_id == "run-2" and len(job.files("holds")) == 1


def test_a_lease_renewed_while_clean_up_finds_it_expired_keeps_the_data(
    job: Any, coordinator: CheckpointCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job, coordinator, 0, 1)
    held = lease(job.folder, 0, 60.0, clock=lambda: 1_000.0)
    intruder = Intruding(monkeypatch, "delete_file", "holds/", lambda: held.renew(1e10))
    run(job, coordinator, 2, 3)
    clean(job, 3)
    assert intruder.ran and job.read(held.metadata) == job.state_of(0)


# -- bad storage -----------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_reader_without_write_permission_continues_without_a_lease(
    job: Any, coordinator: CheckpointCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    run(job, coordinator, 0)
    os.chmod(job.folder.location, 0o555)
    try:
        with caplog.at_level(logging.WARNING), lease(job.folder, 0, YEAR) as held:
            assert not held.protects and job.read(held.metadata) == job.state_of(0)
            held.renew(YEAR)
    finally:
        os.chmod(job.folder.location, 0o755)
    assert "unprotected" in caplog.text


def test_a_reader_of_read_only_storage_continues_without_a_lease(
    job: Any, coordinator: CheckpointCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    run(job, coordinator, 0)
    job.folder.storage.write_atomic("holds", b"a file where the folder should be")
    with caplog.at_level(logging.WARNING), lease(job.folder, 0, YEAR) as held:
        assert not held.protects and job.read(held.metadata) == job.state_of(0)
    assert "unprotected" in caplog.text and "holds/0." in caplog.text


def test_a_damaged_lease_keeps_all_data_until_it_expires(
    job: Any, coordinator: CheckpointCoordinator
) -> None:
    run(job, coordinator, 0)
    held = lease(job.folder, 0, YEAR)
    (name,) = job.files("holds")
    job.folder.storage.write_atomic(f"holds/{name}", b"{}")
    run(job, coordinator, 1, 2)
    with pytest.raises(CorruptFileError, match="holds/0"):
        clean(job, 2)
    assert job.read(held.metadata) == job.state_of(0)


def test_other_files_among_leases_are_left_alone(job: Any, coordinator: CheckpointCoordinator) -> None:
    names = ["holds/README", "holds/x.1.a", "holds/1.a", "holds/01.5.a"]
    for name in names:
        job.folder.storage.write_atomic(name, b"somebody's")
    run(job, coordinator, 0, 1, 2)
    assert all(job.folder.storage.exists(name) for name in names)
    assert job.folder.checkpoints() == [1, 2]


def test_a_folder_with_leases_alone_has_no_state(local: CheckpointStorage) -> None:
    folder = OperatorFolder(local, "views")
    folder.write_lease(0, 1, "a", ())
    assert not folder.has_state()
