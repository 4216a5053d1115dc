"""A process is killed with SIGKILL at each step of an epoch, and nothing is lost or counted twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.errors import IncompleteEpochError

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "killed_epoch.py"

#: Steps before the last manifest is there: only Spark's running the batch again can settle the epoch.
UNFINISHED = ["claiming", "started", "writing data", "data written", "writing a manifest"]
#: Steps at which every task has finished: the epoch counts if Spark has committed it, else it runs again.
FINISHED = ["manifests written", "publishing", "published", "deleting"]


def kill_during(job: Any, run: str, epoch: int, step: str) -> None:
    folder = str(Path(job.folder.location).parent)
    command = [sys.executable, str(SCRIPT), folder, run, str(epoch), step]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.fixture
def killed(job: Any, request: pytest.FixtureRequest) -> Any:
    """Epochs 0 to 2 by run-1; then run-2 was killed in epoch 3, at the step that the test names."""
    coordinator = CheckpointCoordinator(job.folder)
    for epoch in range(3):
        job.epoch("run-1", epoch, coordinator)
    kill_during(job, "run-2", 3, request.param)
    return job


@pytest.mark.parametrize("killed", [*UNFINISHED, *FINISHED], indirect=True)
@pytest.mark.slow
def test_the_batch_runs_again_and_counts_once(killed: Any) -> None:
    coordinator = CheckpointCoordinator(killed.folder)
    for epoch in (3, 4):
        killed.epoch("run-3", epoch, coordinator)
        assert killed.published(epoch) == killed.state_of(*range(epoch + 1))
    # And nothing of the killed process is left.
    assert killed.folder.checkpoints() == [3, 4]
    assert len(killed.files()) == 4 and killed.files("attempts") == ["epoch-4"]


@pytest.mark.parametrize("killed", FINISHED, indirect=True)
@pytest.mark.slow
def test_a_batch_that_spark_has_committed_is_published_by_the_next_one(killed: Any) -> None:
    killed.epoch("run-3", 4, CheckpointCoordinator(killed.folder))
    assert killed.published(3) == killed.state_of(0, 1, 2, 3)
    assert killed.published(4) == killed.state_of(0, 1, 2, 3, 4)


@pytest.mark.parametrize("killed", [step for step in UNFINISHED if step != "claiming"], indirect=True)
def test_a_batch_that_spark_has_committed_without_its_state_is_never_passed_over(killed: Any) -> None:
    """Spark commits no such batch by itself; a function that hides the failure of its batch does."""
    with pytest.raises(IncompleteEpochError) as caught:
        killed.begin(killed.identity("run-3", 4, 0))
    assert caught.value.epoch == 3 and "partition 1 has no finished attempt (1 began)" in caught.value.details


@pytest.mark.parametrize("killed", ["writing data"], indirect=True)
def test_the_half_written_data_was_really_on_the_disk(killed: Any) -> None:
    sizes = {path.name: path.stat().st_size for path in Path(killed.folder.location, "data").iterdir()}
    assert max(sizes.values()) > 1_000_000


def test_a_folder_of_a_process_killed_in_the_first_epoch_can_be_used(job: Any) -> None:
    steps = [
        step for step in (*UNFINISHED, *FINISHED) if step != "deleting"
    ]  # there is nothing to delete yet
    for number, step in enumerate(steps):
        kill_during(job, f"run-{number}", 0, step)
    job.epoch("run-99", 0, CheckpointCoordinator(job.folder))
    assert job.published(0) == job.state_of(0)


@pytest.mark.long
def test_a_process_killed_twice_in_a_row_leaves_what_the_third_run_needs(job: Any) -> None:
    coordinator = CheckpointCoordinator(job.folder)
    for epoch in range(2):
        job.epoch("run-1", epoch, coordinator)
    kill_during(job, "run-2", 2, "publishing")
    kill_during(job, "run-3", 3, "publishing")
    job.epoch("run-4", 4, CheckpointCoordinator(job.folder))
    assert job.published(4) == job.state_of(0, 1, 2, 3, 4)


def test_a_writer_that_is_aborted_after_a_kill_of_another_leaves_the_others_file(job: Any) -> None:
    job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    kill_during(job, "run-2", 1, "data written")
    before = set(job.files())
    identity = job.identity("run-3", 1, 0)
    writer = SegmentWriter(job.folder.storage, job.folder.data_path(identity), job.key_groups(identity))
    writer.abort()
    assert set(job.files()) == before
