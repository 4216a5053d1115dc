"""The metrics of an epoch, from the manifests of its attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, StateOrigin
from keyedstate.checkpoint.protocol.operator_folder import data_paths
from keyedstate.metrics import EpochMetrics, LatencyMetrics, PhaseTimes, StateMetrics


def metrics_of_checkpoint(
    metadata: CheckpointMetadata, time_ms: int, publish_ms: float | None
) -> EpochMetrics:
    """Return the metrics of the epoch of a checkpoint that was complete at `time_ms`, since 1970 UTC.

    The driver took `publish_ms` to publish it; None where tasks did.
    """
    parts = metadata.parts
    origins = Counter(part.state_origin for part in parts)
    entries: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    files: dict[str, int] = {}
    for part in parts:
        entries.update(part.entries)
        files.update((file.path, file.bytes) for file in part.all_files)
        for file in (*part.segments, *part.deltas):
            sizes.update(file.sizes)
    unknown = _states_of_unknown_size(parts)
    full_snapshots = [part for part in parts if _full_bytes(part) > 0]
    phases = {
        "restore": _times(part.restore_ms for part in parts),
        "process": _times(part.process_ms for part in parts),
        "snapshot": _times(part.sync_ms for part in parts),
        "write": _times(part.write_ms for part in parts),
    }
    if publish_ms is not None:
        phases["publish"] = _times([publish_ms])
    return EpochMetrics(
        uid=metadata.uid,
        query_id=metadata.query_id,
        run_id=metadata.run_id,
        epoch=metadata.epoch,
        partitions=metadata.parallelism,
        time_ms=time_ms,
        rows_in=sum(part.rows_in for part in parts),
        rows_out=sum(part.rows_out for part in parts),
        watermark=metadata.watermark,
        states={
            name: StateMetrics(entries[name], None if name in unknown else sizes[name])
            for name in sorted(entries)
        },
        host_hits=origins[StateOrigin.HOST],
        host_catch_ups=origins[StateOrigin.HOST_AND_DELTAS],
        restores=origins[StateOrigin.FILES],
        files=len(files),
        checkpoint_bytes=sum(files.values()),
        written_bytes=sum(part.bytes for part in parts),
        longest_chain=max(len(part.deltas) for part in parts),
        full_snapshots=len(full_snapshots),
        full_snapshot_write_ms=_times(
            full.async_ms for part in full_snapshots for full in part.full_snapshots if not full.failed
        ),
        failed_full_snapshots=sum(full.failed for part in parts for full in part.full_snapshots),
        phases=phases,
        rows_by_input=_added(part.rows_by_input for part in parts),
        latencies=_latencies(parts),
        native=_added(part.metrics for part in parts),
        rows_dropped=_added(part.rows_dropped for part in parts),
        clock_skew_ms=max((part.clock_skew_ms for part in parts), key=abs),
    )


def _added(metrics: Iterable[Mapping[str, int]]) -> dict[str, int]:
    added: Counter[str] = Counter()
    for each in metrics:
        added.update(each)
    return dict(sorted(added.items()))


def _latencies(parts: Iterable[AttemptManifest]) -> dict[str, dict[str, LatencyMetrics]]:
    samples: dict[str, dict[str, list[int]]] = {}
    for part in parts:
        for state, operations in part.latencies.items():
            for operation, nanoseconds in operations.items():
                samples.setdefault(state, {}).setdefault(operation, []).extend(nanoseconds)
    return {
        state: {name: _latency_metrics(sorted(found)) for name, found in sorted(operations.items()) if found}
        for state, operations in sorted(samples.items())
    }


def _latency_metrics(ascending: list[int]) -> LatencyMetrics:
    count = len(ascending)
    # The nearest rank, in whole numbers: a fraction of 0.95 is none.
    p50, p95, p99, largest = (
        ascending[-(-percent * count // 100) - 1] / 1000 for percent in (50, 95, 99, 100)
    )
    return LatencyMetrics(count, p50, p95, p99, largest)


def _states_of_unknown_size(parts: Sequence[AttemptManifest]) -> set[str]:
    files = [file for part in parts for file in (*part.segments, *part.deltas)]
    native = [part.native.entries for part in parts if part.native is not None]
    return set().union(*native, *(file.entries.keys() - file.sizes.keys() for file in files))


def _full_bytes(part: AttemptManifest) -> int:
    """Return the bytes of the full snapshot that an attempt has written; 0 for a delta."""
    own = data_paths(part.identity.nonce)[0]
    changes = [file for file in part.deltas if file.path == own]
    if part.operator_state is not None:
        changes.append(part.operator_state.segment)
    return part.bytes - sum(file.bytes for file in changes)


def _times(milliseconds: Iterable[float]) -> PhaseTimes:
    times = list(milliseconds)
    return PhaseTimes(round(max(times, default=0.0), 3), round(sum(times, 0.0), 3))
