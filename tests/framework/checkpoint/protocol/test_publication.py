"""The publication of checkpoints by tasks: which attempt counts if Spark runs a partition several times."""

from __future__ import annotations

from typing import Any

import pytest

from keyedstate.checkpoint.format.manifest import CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.protocol import retention
from keyedstate.checkpoint.protocol.publication import (
    finish_attempt,
    finished_at_start,
    publish_if_complete,
)
from keyedstate.errors import OvertakenAttemptError, SupersededRunError


class Attempt:
    """An attempt that began."""

    def __init__(self, job: Any, run: str, epoch: int, partition: int) -> None:
        self.job = job
        self.identity: TaskIdentity = job.identity(run, epoch, partition)
        state = job.begin(self.identity)
        self.finished_before = finished_at_start(job.folder.attempts(epoch), self.identity)
        self.segment = job.write_data(self.identity, state)

    def finish(self) -> Attempt:
        manifest = self.job.manifest(self.identity, self.segment)
        finish_attempt(self.job.folder, manifest, (), self.finished_before)
        return self

    def publish(self) -> CheckpointMetadata | None:
        return publish_if_complete(self.job.folder, self.identity)


def run(job: Any, run: str, epoch: int) -> CheckpointMetadata:
    """Run an epoch whose tasks publish; return what the last one published."""
    published = [Attempt(job, run, epoch, number).finish().publish() for number in range(job.parallelism)]
    *others, last = published
    assert others == [None] * (job.parallelism - 1) and last is not None
    return last


def nonces(job: Any, epoch: int) -> list[str]:
    return [part.identity.nonce for part in job.folder.read_metadata(epoch).parts]


def test_the_last_task_publishes_and_the_next_epoch_continues(job: Any) -> None:
    run(job, "r1", 0)
    last = run(job, "r1", 1)
    assert job.published(1) == job.state_of(0, 1)
    retention.prune(job.folder, last, 2)
    run(job, "r2", 2)
    assert job.published(2) == job.state_of(0, 1, 2)


def test_tasks_that_end_together_publish_once(job: Any) -> None:
    attempts = [Attempt(job, "r1", 0, number).finish() for number in range(job.parallelism)]
    assert [attempt.publish() is not None for attempt in attempts] == [True, False]


def test_a_task_that_fails_after_it_finished_is_replaced(job: Any) -> None:
    """Its output was not taken: that of the attempt after it was."""
    failed = Attempt(job, "r1", 0, 0).finish()
    other = Attempt(job, "r1", 0, 1).finish()
    assert other.publish() is not None
    again = Attempt(job, "r1", 0, 0).finish()
    assert again.publish() is not None
    assert nonces(job, 0) == [again.identity.nonce, other.identity.nonce]
    assert failed.publish() is None, "the last word is that of the newer attempt"
    assert job.published(0) == job.state_of(0)


def test_of_two_attempts_at_once_the_first_to_finish_counts(job: Any) -> None:
    """As with speculation: Spark takes the output of the first, and kills or ignores the other one."""
    slow, fast = Attempt(job, "r1", 0, 0), Attempt(job, "r1", 0, 0)
    fast.finish()
    with pytest.raises(OvertakenAttemptError, match="ended after another attempt"):
        slow.finish()
    assert Attempt(job, "r1", 0, 1).finish().publish() is not None
    assert nonces(job, 0)[0] == fast.identity.nonce


def test_an_attempt_with_a_lower_number_does_not_replace_a_finished_one(job: Any) -> None:
    """It was launched first and began last."""
    late: TaskIdentity = job.identity("r1", 0, 0)
    first = Attempt(job, "r1", 0, 0).finish()
    job.begin(late)
    seen = finished_at_start(job.folder.attempts(0), late)
    assert seen == {first.identity.nonce}
    with pytest.raises(OvertakenAttemptError):
        finish_attempt(job.folder, job.manifest(late, job.write_data(late, {})), (), seen)


def test_a_zombie_of_an_earlier_epoch_changes_nothing(job: Any) -> None:
    zombie, tired = Attempt(job, "r1", 0, 0), Attempt(job, "r1", 0, 1)
    run(job, "r1", 0)
    before = nonces(job, 0)
    retention.prune(job.folder, run(job, "r1", 1), 2)
    for attempt in (zombie, tired):
        with pytest.raises(OvertakenAttemptError):
            attempt.finish()
    assert zombie.publish() is None
    assert nonces(job, 0) == before


def test_a_task_of_a_superseded_run_neither_finishes_nor_publishes(job: Any) -> None:
    finished = [Attempt(job, "r1", 0, 0).finish(), Attempt(job, "r1", 0, 1)]
    Attempt(job, "r2", 0, 0)
    with pytest.raises(SupersededRunError):
        finished[1].finish()
    assert finished[0].publish() is None


def test_a_run_that_repeats_a_published_epoch_replaces_its_checkpoint(job: Any) -> None:
    """As after a server that died before Spark's commit."""
    run(job, "r1", 0)
    run(job, "r1", 1)
    repeated = run(job, "r2", 1)
    assert repeated.run_id == "r2"
    assert job.published(1) == job.state_of(0, 1)
