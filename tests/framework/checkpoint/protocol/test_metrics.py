"""The metrics of an epoch come from its manifests, and are available before Spark continues."""

from __future__ import annotations

import json
from dataclasses import replace
from types import ModuleType
from typing import Any

from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.format.manifest import (
    AttemptManifest,
    CheckpointMetadata,
    FailureReason,
    FullSnapshotReport,
    NativeFullSnapshot,
    StateOrigin,
    StoredNativeFile,
    TaskIdentity,
)
from keyedstate.checkpoint.format.operator_state import OperatorStateFile
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator, CheckpointListener
from keyedstate.checkpoint.protocol.metrics import metrics_of_checkpoint
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.metrics import LatencyMetrics, PhaseTimes, StateMetrics

GROUPS = [KeyGroupRange(0, 1), KeyGroupRange(2, 3), KeyGroupRange(4, 7)]


def file(path: str, size: int, partition: int, **sizes: int) -> SegmentFile:
    return SegmentFile(path, size, "", GROUPS[partition], dict.fromkeys(sizes, 1), sizes)


def full(epoch: int, async_ms: float, failure: FailureReason | None = None) -> FullSnapshotReport:
    return FullSnapshotReport(epoch, failure is None, failure, "", 1.0, async_ms, 100, 1, 0)


def part(partition: int, **facts: Any) -> AttemptManifest:
    identity = TaskIdentity("views", "query", "run", 7, partition, 3, 8, 40, f"n{partition}")
    usual: dict[str, Any] = {
        "identity": identity,
        "key_groups": GROUPS[partition],
        "backend": "none",
        "backend_version": "1",
        "states": (),
        "segments": (),
        "entries": {},
        "rows_in": 0,
        "rows_out": 0,
        "largest_event_time": None,
        "sync_ms": 0.0,
        "write_ms": 0.0,
        "restore_ms": 0.0,
        "process_ms": 0.0,
        "bytes": 0,
    }
    return AttemptManifest(**(usual | facts))


#: Of three partitions: a host wrote a delta and completed a full snapshot; a host that caught up changed
#: nothing, and its full snapshots fail; the third one wrote a full snapshot, and has operator state.
CHECKPOINT = CheckpointMetadata.of(
    [
        part(
            0,
            segments=(file("data/older.base.seg", 1000, 0, total=900),),
            deltas=(file("data/old.seg", 50, 0, total=30), file("data/n0.seg", 60, 0, total=20, last=20)),
            entries={"total": 10, "last": 2},
            bytes=1060,
            full_snapshots=(full(5, 40.0),),
            rows_in=5,
            rows_dropped={"late": 2},
            rows_out=3,
            restore_ms=0.5,
            process_ms=20.0,
            watermark=990,
            state_origin=StateOrigin.HOST,
        ),
        part(
            1,
            segments=(file("data/other.seg", 400, 1, total=300),),
            entries={"total": 4},
            full_snapshots=(
                full(2, 9.0),
                full(6, 1.0, FailureReason.IO),
                full(7, 1.0, FailureReason.EXPIRED),
            ),
            restore_ms=2.5,
            watermark=1000,
            state_origin=StateOrigin.HOST_AND_DELTAS,
        ),
        part(
            2,
            segments=(file("data/n2.seg", 500, 2, total=450),),
            operator_state=OperatorStateFile(file("data/n2.operator.seg", 70, 2), ()),
            entries={"total": 6},
            bytes=570,
            full_snapshots=(full(7, 30.0),),
            rows_in=7,
            rows_dropped={"late": 1, "timeless": 4},
            rows_out=1,
            process_ms=10.0,
            write_ms=30.25,
            sync_ms=1.5,
            watermark=1000,
        ),
    ]
)


def test_the_metrics_are_sums_and_largest_values_over_the_partitions() -> None:
    metrics = metrics_of_checkpoint(CHECKPOINT, 1_700_000_000_000, 12.5)
    assert (metrics.uid, metrics.query_id, metrics.run_id, metrics.epoch) == ("views", "query", "run", 7)
    assert (metrics.partitions, metrics.time_ms) == (3, 1_700_000_000_000)
    assert (metrics.rows_in, metrics.rows_out, metrics.watermark) == (12, 4, 990)
    assert metrics.rows_dropped == {"late": 3, "timeless": 4}
    assert metrics.states == {"last": StateMetrics(2, 20), "total": StateMetrics(20, 1700)}
    assert (metrics.host_hits, metrics.host_catch_ups, metrics.restores) == (1, 1, 1)
    assert (metrics.files, metrics.checkpoint_bytes, metrics.written_bytes) == (6, 2080, 1630)
    assert (metrics.longest_chain, metrics.full_snapshots, metrics.failed_full_snapshots) == (2, 2, 2)
    assert metrics.full_snapshot_write_ms == PhaseTimes(40.0, 70.0)
    assert list(metrics.phases) == ["restore", "process", "snapshot", "write", "publish"]
    assert metrics.phases["restore"] == PhaseTimes(2.5, 3.0)
    assert metrics.phases["process"] == PhaseTimes(20.0, 30.0)
    assert metrics.phases["publish"] == PhaseTimes(12.5, 12.5)


def test_what_tasks_have_published_has_no_time_of_the_driver() -> None:
    assert "publish" not in metrics_of_checkpoint(CHECKPOINT, 0, None).phases


def test_the_metrics_survive_json() -> None:
    document = json.loads(json.dumps(metrics_of_checkpoint(CHECKPOINT, 0, 1.0).to_json()))
    assert document["states"]["total"] == {"entries": 20, "bytes": 1700}
    assert document["phases"]["publish"] == {"max": 1.0, "sum": 1.0}
    assert document["watermark"] == 990


def test_manifests_carry_the_sizes_of_states_and_those_of_earlier_versions_have_none() -> None:
    document = json.loads(json.dumps(to_json(CHECKPOINT)))
    assert from_json(CheckpointMetadata, document) == CHECKPOINT
    for part_document in document["parts"]:
        for segment in (*part_document["segments"], *part_document["deltas"]):
            del segment["sizes"]
    metrics = metrics_of_checkpoint(from_json(CheckpointMetadata, document), 0, None)
    assert metrics.states["total"] == StateMetrics(20, None)


def test_files_of_the_backends_own_count_and_hide_how_large_each_state_is() -> None:
    files = (
        StoredNativeFile("1.sst", "data/x.0.native", 300, ""),
        StoredNativeFile("2.sst", "data/y", 5, ""),
    )
    native = NativeFullSnapshot("rocksdb", GROUPS[2], 8, files, {"total": 6}, {})
    parts = [*CHECKPOINT.parts[:2], replace(CHECKPOINT.parts[2], segments=(), native=native, bytes=370)]
    metrics = metrics_of_checkpoint(CheckpointMetadata.of(parts), 0, None)
    assert metrics.states == {"last": StateMetrics(2, 20), "total": StateMetrics(20, None)}
    assert (metrics.files, metrics.checkpoint_bytes, metrics.full_snapshots) == (7, 1885, 2)


def test_latencies_are_those_of_the_samples_of_all_partitions() -> None:
    first, second, third = CHECKPOINT.parts
    parts = [
        replace(first, latencies={"total": {"value": list(range(1000, 81_000, 1000)), "update": [7000]}}),
        replace(second, latencies={"total": {"value": list(range(81_000, 101_000, 1000)), "clear": []}}),
        third,
    ]
    written = json.loads(json.dumps(to_json(CheckpointMetadata.of(parts))))
    metrics = metrics_of_checkpoint(from_json(CheckpointMetadata, written), 0, None)
    assert metrics.latencies == {
        "total": {
            "update": LatencyMetrics(1, 7.0, 7.0, 7.0, 7.0),
            "value": LatencyMetrics(100, 50.0, 95.0, 99.0, 100.0),
        }
    }
    assert metrics_of_checkpoint(CHECKPOINT, 0, None).latencies == {}


def test_a_listener_is_notified_of_a_publication_before_the_last_task_continues(
    jobs: ModuleType, storage: CheckpointStorage
) -> None:
    class Recorder(CheckpointListener):
        def __init__(self) -> None:
            self.publications: list[tuple[int, bool]] = []

        def published(self, metadata: CheckpointMetadata, publish_ms: float) -> None:
            self.publications.append((metadata.epoch, publish_ms > 0.0))
            raise RuntimeError("a listener's own mistake")

    job, recorded = jobs.Job(storage), Recorder()
    coordinator = CheckpointCoordinator(job.folder, recorded)
    first, second = job.epoch("run-1", 0)
    coordinator.acknowledge(first)
    assert recorded.publications == []
    coordinator.acknowledge(second)
    assert recorded.publications == [(0, True)]
    assert coordinator.drain(600.0)
    metadata = job.folder.read_metadata(0)
    sizes = [segment.sizes["epochs"] for part in metadata.parts for segment in part.segments]
    assert [size > 0 for size in sizes] == [True, True]
    assert sum(sizes) < sum(segment.bytes for part in metadata.parts for segment in part.segments)
