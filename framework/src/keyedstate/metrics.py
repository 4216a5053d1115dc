"""The metrics of one epoch of a keyed operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class StateMetrics:
    """The size of one state."""

    #: After the epoch.
    entries: int
    #: The compressed size of its entries in the files of the checkpoint, with those of a delta that a later
    #: one has changed again. None where it is unknown: the files are the backend's own, or were written by a
    #: version that did not record it.
    bytes: int | None


@dataclass(frozen=True)
class PhaseTimes:
    """How long one phase took, in milliseconds: the slowest task, and all tasks together."""

    max: float
    sum: float


@dataclass(frozen=True)
class LatencyMetrics:
    """How long one operation of a state took, over the newest samples of all tasks."""

    samples: int
    #: Percentiles and the maximum, in microseconds.
    p50_us: float
    p95_us: float
    p99_us: float
    max_us: float


@dataclass(frozen=True)
class EpochMetrics:
    """One epoch of one operator: one micro-batch whose checkpoint is complete."""

    #: The operator.
    uid: str
    #: Spark's ids.
    query_id: str
    run_id: str
    #: Spark's micro-batch id.
    epoch: int
    #: The operator's tasks.
    partitions: int
    #: When the checkpoint was complete, in milliseconds since 1970 UTC.
    time_ms: int
    rows_in: int
    rows_out: int
    #: In milliseconds since 1970 UTC; None without event time and while it is unknown.
    watermark: int | None
    #: The keyed states by name.
    states: Mapping[str, StateMetrics]
    #: Partitions whose state was in a host; was in a host that applied the deltas of later epochs; and was
    #: restored from files or began empty.
    host_hits: int
    host_catch_ups: int
    restores: int
    #: Of the checkpoint, shared ones included.
    files: int
    #: Their size.
    checkpoint_bytes: int
    #: What this epoch has written: deltas, operator state, and full snapshots completed in it.
    written_bytes: int
    #: The most deltas that a partition has after its full snapshot.
    longest_chain: int
    #: Partitions whose full snapshot was completed in this epoch.
    full_snapshots: int
    #: How long those were written; in the background where the backend supports it.
    full_snapshot_write_ms: PhaseTimes
    #: Full snapshots that have failed since the last completed one of their partitions.
    failed_full_snapshots: int
    #: The phases, in their order: ``restore``; ``process``, which includes waiting for rows; ``snapshot``,
    #: the synchronous part of a checkpoint; ``write``; and ``publish``, once and on the driver, absent where
    #: tasks of the next epoch have published the checkpoint.
    phases: Mapping[str, PhaseTimes]
    #: Of `rows_in` those of the connected inputs ``"1"`` and ``"2"``; empty for one input.
    rows_by_input: Mapping[str, int] = field(default_factory=dict)
    #: By state, or kind of state, and operation; empty where accesses are not sampled.
    latencies: Mapping[str, Mapping[str, LatencyMetrics]] = field(default_factory=dict)
    #: Metrics of the backend's own engine under its names, added up over the tasks; empty where none are
    #: collected.
    native: Mapping[str, int] = field(default_factory=dict)
    #: Rows that windows or an interval join dropped and put out to no side output, by reason: ``late``, where
    #: all of their windows were over, or before the watermark (Flink's ``numLateRecordsDropped``);
    #: ``timeless``, without event time; and in a join ``null key``.
    rows_dropped: Mapping[str, int] = field(default_factory=dict)
    #: The largest difference of a task's clock from the storage's over all tasks, negative where the task's
    #: machine was behind. Beyond `clock.max-skew` the tasks use the storage's clock.
    clock_skew_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the metrics as JSON values under the names of the attributes."""
        return asdict(self)
