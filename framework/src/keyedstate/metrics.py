"""The metrics of one epoch of a keyed operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class StateMetrics:
    """The size of one state.

    Attributes
    ----------
    entries : int
        After the epoch.
    bytes : int or None
        The compressed size of its entries in the files of the checkpoint, with those of a delta that a later
        one has changed again. None where it is unknown: the files are the backend's own, or were written by
        a version that did not record it.
    """

    entries: int
    bytes: int | None


@dataclass(frozen=True)
class PhaseTimes:
    """How long one phase took, in milliseconds: the slowest task, and all tasks together."""

    max: float
    sum: float


@dataclass(frozen=True)
class LatencyMetrics:
    """How long one operation of a state took, over the newest samples of all tasks.

    Attributes
    ----------
    samples : int
    p50_us, p95_us, p99_us, max_us : float
        Percentiles and the maximum, in microseconds.
    """

    samples: int
    p50_us: float
    p95_us: float
    p99_us: float
    max_us: float


@dataclass(frozen=True)
class EpochMetrics:
    """One epoch of one operator: one micro-batch whose checkpoint is complete.

    Attributes
    ----------
    uid : str
        The operator.
    query_id, run_id : str
        Spark's ids.
    epoch : int
        Spark's micro-batch id.
    partitions : int
        The operator's tasks.
    time_ms : int
        When the checkpoint was complete, in milliseconds since 1970 UTC.
    rows_in, rows_out : int
    rows_by_input : mapping of str to int
        Of `rows_in` those of the connected inputs ``"1"`` and ``"2"``; empty for one input.
    watermark : int or None
        In milliseconds since 1970 UTC; None without event time and while it is unknown.
    states : mapping of str to StateMetrics
        The keyed states by name.
    host_hits, host_catch_ups, restores : int
        Partitions whose state was in a host; was in a host that applied the deltas of later epochs; and was
        restored from files or began empty.
    files : int
        Of the checkpoint, shared ones included.
    checkpoint_bytes : int
        Their size.
    written_bytes : int
        What this epoch has written: deltas, operator state, and full snapshots completed in it.
    longest_chain : int
        The most deltas that a partition has after its full snapshot.
    full_snapshots : int
        Partitions whose full snapshot was completed in this epoch.
    full_snapshot_write_ms : PhaseTimes
        How long those were written; in the background where the backend supports it.
    failed_full_snapshots : int
        Full snapshots that have failed since the last completed one of their partitions.
    phases : mapping of str to PhaseTimes
        The phases, in their order: ``restore``; ``process``, which includes waiting for rows; ``snapshot``,
        the synchronous part of a checkpoint; ``write``; and ``publish``, once and on the driver, absent
        where tasks of the next epoch have published the checkpoint.
    latencies : mapping of str to (mapping of str to LatencyMetrics)
        By state, or kind of state, and operation; empty where accesses are not sampled.
    native : mapping of str to int
        Metrics of the backend's own engine under its names, added up over the tasks; empty where none are
        collected.
    rows_dropped : mapping of str to int
        Rows that windows or an interval join dropped and put out to no side output, by reason: ``late``,
        where all of their windows were over, or before the watermark (Flink's ``numLateRecordsDropped``);
        ``timeless``, without event time; and in a join ``null key``.
    clock_skew_ms : int
        The largest difference of a task's clock from the storage's over all tasks, negative where the task's
        machine was behind. Beyond `clock.max-skew` the tasks use the storage's clock.
    """

    uid: str
    query_id: str
    run_id: str
    epoch: int
    partitions: int
    time_ms: int
    rows_in: int
    rows_out: int
    watermark: int | None
    states: Mapping[str, StateMetrics]
    host_hits: int
    host_catch_ups: int
    restores: int
    files: int
    checkpoint_bytes: int
    written_bytes: int
    longest_chain: int
    full_snapshots: int
    full_snapshot_write_ms: PhaseTimes
    failed_full_snapshots: int
    phases: Mapping[str, PhaseTimes]
    rows_by_input: Mapping[str, int] = field(default_factory=dict)
    latencies: Mapping[str, Mapping[str, LatencyMetrics]] = field(default_factory=dict)
    native: Mapping[str, int] = field(default_factory=dict)
    rows_dropped: Mapping[str, int] = field(default_factory=dict)
    clock_skew_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the metrics as JSON values under the names of the attributes."""
        return asdict(self)
