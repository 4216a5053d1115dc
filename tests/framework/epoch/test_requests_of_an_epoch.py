"""How many requests to the storage an epoch waits for, from its trigger to its checkpoint."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support import distant

from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.epoch import epoch_start
from keyedstate.epoch.configuration import frozen, storage_in_task
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.function_transport import pack_function
from keyedstate.epoch.partition import Partition
from keyedstate.epoch.partition_plan import PartitionPlan, StateLocation
from keyedstate.errors import CheckpointError, DuplicateUidError, StorageError, SupersededRunError
from keyedstate.keygroups import KEY_GROUP_COLUMN, key_group_range_for
from keyedstate.options import Configuration
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.runtime.output import OutputSchema
from keyedstate.state import ValueState
from keyedstate.types import INT64

UID = "counts"
MAX_PARALLELISM = 8
SETTINGS = {"plugins.modules": "support.distant"}


class Counting(KeyedProcessFunction):
    count = ValueState("count", INT64, default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.count.update(self.count.value() + 1)
        yield row.key, self.count.value()


class Query:
    """A query with one operator, whose partitions stay in this process."""

    def __init__(self, folder: Path, parallelism: int, operator: str = "operator", **options: object) -> None:
        self.operator = operator
        settings = frozen(Configuration({**SETTINGS, **options}, environ={}))
        directory = f"{distant.SCHEME}{folder}"
        self.plan = PartitionPlan(
            function=pack_function(Counting()),
            function_name="Counting",
            key_columns=(("key", "string"),),
            key_types=(pa.string(),),
            output=OutputSchema(pa.schema([("key", pa.string()), ("count", pa.int64())])),
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            settings=settings,
            location=StateLocation(UID, directory, "zstd", True),
            event_times=(),
        )
        self.folder = OperatorFolder(storage_in_task(directory, settings), UID)
        self.partitions: dict[int, Partition] = {}
        self.nonces = itertools.count()
        self.restart("run-1")

    def restart(self, run_id: str) -> None:
        self.run_id = run_id
        self.coordinator = CheckpointCoordinator(self.folder)

    def task(self, epoch: int, partition: int) -> tuple[list[int], Acknowledgement]:
        """Run a partition over a row, in epoch 0 over many; return what it counts to."""
        plan = self.plan
        nonce = f"{self.operator}-{next(self.nonces)}"
        identity = TaskIdentity(
            UID, "query", self.run_id, epoch, partition, plan.parallelism, MAX_PARALLELISM, 0, nonce
        )
        assert plan.location is not None
        start = EpochStart.of(plan, plan.location, identity)
        kept = self.partitions.pop(partition, None)
        if kept is None or not kept.follow(start):
            kept = Partition(plan, start, stays=True)
        group = key_group_range_for(partition, plan.parallelism, MAX_PARALLELISM).start
        keys = ["a", *(f"key-{number}" for number in range(0 if epoch else 5_000))]
        rows = pa.record_batch(
            [pa.array(keys), pa.array([group] * len(keys), pa.int32())], names=["key", KEY_GROUP_COLUMN]
        )
        counts = [
            count for batch in kept.run(start, (), iter([rows])) for count in batch["count"].to_pylist()
        ]
        acknowledgement = kept.finish(start)
        self.partitions[partition] = kept
        return counts, acknowledgement

    def epoch(self, epoch: int) -> int:
        """Run all tasks at once; return the length of the critical path from the trigger to the commit."""
        requests = distant.REQUESTS
        words, depths = [], []
        for partition in range(self.plan.parallelism):
            requests.depth = 0
            counts, word = self.task(epoch, partition)
            assert counts[0] == epoch + 1
            words.append(word)
            depths.append(requests.depth)
        requests.depth = max(depths)
        for word in words:
            self.coordinator.acknowledge(word)
        path = requests.depth
        self.coordinator.drain()
        assert self.folder.read_metadata(epoch) is not None
        return path


@pytest.fixture(autouse=True)
def _without_delay() -> Iterator[None]:
    yield
    distant.REQUESTS.delay_s, distant.REQUESTS.fails = 0.0, lambda what, path: None


@pytest.mark.parametrize("parallelism", [1, 4])
def test_an_epoch_waits_for_five_requests_from_trigger_to_checkpoint(
    tmp_path: Path, parallelism: int
) -> None:
    """Its start, its data, its manifest; the driver's look at the owner file, and the checkpoint."""
    query = Query(tmp_path, parallelism)
    for epoch in range(2):
        query.epoch(epoch)
    with distant.critical_path() as requests:
        length = query.epoch(2)
    assert length == 5, sorted(requests.made)


def test_a_restored_partition_reads_the_files_of_its_state_at_once(tmp_path: Path) -> None:
    """As in the embedded mode: a full snapshot and five deltas wait as long as one file."""
    query = Query(tmp_path, 1, **{"checkpoint.delta-min-bytes": 0, "checkpoint.max-deltas": 99})
    for epoch in range(6):
        query.epoch(epoch)
    metadata = query.folder.read_metadata(5)
    assert metadata is not None
    assert len(metadata.parts[0].deltas) == 5
    query.partitions.clear()
    with distant.critical_path() as requests:
        length = query.epoch(6)
    assert length == 5 + 1, sorted(requests.made)


def test_an_epoch_at_50_ms_a_request_takes_the_time_of_its_critical_path(tmp_path: Path) -> None:
    query = Query(tmp_path, 1)
    query.epoch(0)
    distant.REQUESTS.delay_s = 0.05
    took_ms = []
    for epoch in range(1, 6):
        began = time.perf_counter()
        _, word = query.task(epoch, 0)
        query.coordinator.acknowledge(word)
        took_ms.append((time.perf_counter() - began) * 1000.0)
        query.coordinator.drain()
    sys.stdout.write(f"trigger to checkpoint: {min(took_ms):.0f} ms at 50 ms a request\n")
    assert min(took_ms) >= 5 * 50.0


def test_a_run_that_was_superseded_is_refused_and_leaves_no_marker(tmp_path: Path) -> None:
    query = Query(tmp_path, 1)
    for epoch in range(2):
        query.epoch(epoch)
    newer = Query(tmp_path, 1)
    newer.restart("run-2")
    newer.epoch(2)
    before = newer.folder.storage.files()
    with pytest.raises(SupersededRunError):
        query.task(2, 0)
    assert newer.folder.storage.files() == before


def test_a_run_that_was_superseded_says_so_beside_a_second_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine's clock was set, so it lists the attempts, and finds the other operator, at once."""
    query, second = Query(tmp_path, 1), Query(tmp_path, 1, operator="another")
    for epoch in range(2):
        query.epoch(epoch)
    second.task(2, 0)
    newer = Query(tmp_path, 1)
    newer.restart("run-2")
    with contextlib.suppress(DuplicateUidError):
        newer.task(2, 0)
    monkeypatch.setattr(epoch_start, "system_clock", lambda: time.time_ns() // 1_000_000 + 30_000)
    before = query.folder.storage.files()
    with pytest.raises(SupersededRunError):
        query.task(2, 0)
    assert query.folder.storage.files() == before


def test_a_run_whose_folder_was_deleted_meanwhile_is_refused(tmp_path: Path) -> None:
    query = Query(tmp_path, 1)
    for epoch in range(2):
        query.epoch(epoch)
    query.folder.storage.delete_dir("")
    with pytest.raises(CheckpointError, match="counts"):
        query.task(2, 0)
    assert query.folder.storage.files() == []


def test_an_epoch_that_another_run_has_published_is_restored_as_that_run_left_it(tmp_path: Path) -> None:
    query = Query(tmp_path, 1)
    for epoch in range(2):
        query.epoch(epoch)
    query.restart("run-2")
    assert query.epoch(1) > 0, "Spark repeats an epoch that it has not committed"
    assert query.epoch(2) > 0


def test_a_second_operator_of_the_same_uid_does_not_finish(tmp_path: Path) -> None:
    query = Query(tmp_path, 1)
    for epoch in range(2):
        query.epoch(epoch)
    second = Query(tmp_path, 1, operator="another")
    query.task(2, 0)
    with pytest.raises(DuplicateUidError):
        second.task(2, 0)
    finished = [file.nonce for file in query.folder.attempts(2) if file.finished]
    assert [nonce.partition("-")[0] for nonce in finished] == ["operator"]


@pytest.mark.parametrize("file", ["started", "_owner", "_metadata", "epoch-2"])
def test_an_attempt_of_which_one_request_fails_is_repeated(tmp_path: Path, file: str) -> None:
    query = Query(tmp_path, 1)
    for epoch in range(2):
        query.epoch(epoch)

    def fail(what: str, path: str) -> None:
        if path.endswith(file):
            raise PermissionError(13, "not today", path)

    distant.REQUESTS.fails = fail
    with pytest.raises(StorageError, match="not today"):
        query.task(2, 0)
    distant.REQUESTS.fails = lambda what, path: None
    assert query.epoch(2) > 0
