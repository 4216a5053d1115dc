"""Full snapshots: when a task writes one, and how many of them may fail.

A chain of deltas must not grow without bound, so from time to time a full snapshot replaces it.  Where the
backend snapshots asynchronously, a full snapshot is written in the background and the chain grows meanwhile.
So a full snapshot that fails loses nothing: the chain continues.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from keyedstate.checkpoint.format.manifest import (
    AttemptManifest,
    CheckpointMetadata,
    FullSnapshotReport,
    TaskIdentity,
)
from keyedstate.options import (
    CHECKPOINT_DELTA_MIN_BYTES,
    CHECKPOINT_FULL_SNAPSHOT_MIN_PAUSE,
    CHECKPOINT_FULL_SNAPSHOT_TIMEOUT,
    CHECKPOINT_MAX_CONCURRENT_FULL_SNAPSHOTS,
    CHECKPOINT_MAX_DELTAS,
    CHECKPOINT_TOLERABLE_FAILURES,
    Configuration,
)

#: A chain of so many times the wanted length or weight gets a full snapshot whatever else would put it off.
_OVERDUE = 3


class SnapshotKind(enum.Enum):
    """The file that a task writes at the end of an epoch."""

    FULL = "a full snapshot"
    DELTA = "a delta"
    DELTA_AND_FULL = "a delta, and in the background a full snapshot of the state before it"


@dataclass(frozen=True)
class FullSnapshotRules:
    """The options that decide when a full snapshot is due."""

    #: The options ``checkpoint.max-deltas``, ``checkpoint.delta-min-bytes``,
    #: ``checkpoint.full-snapshot-min-pause``, ``checkpoint.max-concurrent-full-snapshots``,
    #: ``checkpoint.full-snapshot-timeout`` and ``checkpoint.tolerable-failures``.
    max_deltas: int
    min_bytes: int
    min_pause_ms: int = 0
    max_concurrent: int = 0
    timeout_ms: int = 600_000
    tolerable_failures: int = 0

    @classmethod
    def of(cls, config: Configuration) -> FullSnapshotRules:
        """Read the options; raises `InvalidOptionError`."""
        return cls(
            max_deltas=config[CHECKPOINT_MAX_DELTAS],
            min_bytes=config[CHECKPOINT_DELTA_MIN_BYTES],
            min_pause_ms=config[CHECKPOINT_FULL_SNAPSHOT_MIN_PAUSE],
            max_concurrent=config[CHECKPOINT_MAX_CONCURRENT_FULL_SNAPSHOTS],
            timeout_ms=config[CHECKPOINT_FULL_SNAPSHOT_TIMEOUT],
            tolerable_failures=config[CHECKPOINT_TOLERABLE_FAILURES],
        )

    def choose(
        self,
        restore_point: CheckpointMetadata | None,
        identity: TaskIdentity,
        *,
        asynchronous: bool,
        now_ms: int,
    ) -> SnapshotKind:
        """Return what a task writes at the end of its epoch; `asynchronous` where the backend can.

        All tasks see the same checkpoint that the epoch begins from, so they agree on which of them write a
        full snapshot.
        """
        if restore_point is None or restore_point.parallelism != identity.parallelism:
            # A chain covers one range of key groups.
            return SnapshotKind.FULL
        parts = restore_point.parts
        part = parts[identity.partition]
        if self.max_deltas == 0 or _full_bytes(part) < self.min_bytes:
            return SnapshotKind.FULL
        if not self._is_due(part):
            return SnapshotKind.DELTA
        if not self._is_due(part, _OVERDUE):
            waiting = [other for other in parts if self._may_begin(other, now_ms)]
            waiting.sort(key=_heaviest_first)
            if part not in (waiting[: self.max_concurrent] if self.max_concurrent else waiting):
                return SnapshotKind.DELTA
        # Where so much changes, a full snapshot in the background would write nearly everything twice.
        heavy = 4 * _delta_bytes(part) > len(part.deltas) * _full_bytes(part)
        return SnapshotKind.DELTA_AND_FULL if asynchronous and not heavy else SnapshotKind.FULL

    def _is_due(self, part: AttemptManifest, times: int = 1) -> bool:
        long, heavy = times * self.max_deltas, times * _full_bytes(part)
        return len(part.deltas) >= long or 2 * _delta_bytes(part) > heavy

    def _may_begin(self, part: AttemptManifest, now_ms: int) -> bool:
        ended = [full.ended_ms for full in part.full_snapshots]
        rested = not ended or now_ms - max(ended) >= self.min_pause_ms
        return rested and _full_bytes(part) >= self.min_bytes and self._is_due(part)


def failed_epochs(reports: Iterable[FullSnapshotReport]) -> set[int]:
    """Return the epochs that failed in a row, by the rules of Flink's ``CheckpointFailureManager``.

    An epoch failed where a full snapshot of it did, in any task.  Those before the newest success do not
    count.
    """
    known = list(reports)
    failed = {report.epoch for report in known if report.failed}
    newest_success = max((report.epoch for report in known if report.epoch not in failed), default=-1)
    counting = {report.epoch for report in known if report.failure is not None and report.failure.counts}
    return {epoch for epoch in counting if epoch > newest_success}


def _full_bytes(part: AttemptManifest) -> int:
    native = 0 if part.native is None else part.native.bytes
    return native + sum(segment.bytes for segment in part.segments)


def _delta_bytes(part: AttemptManifest) -> int:
    return sum(delta.bytes for delta in part.deltas)


def _heaviest_first(part: AttemptManifest) -> tuple[bool, int, float, int]:
    weight = _delta_bytes(part) / max(_full_bytes(part), 1)
    # One that is being written already keeps its turn.
    return part.unfinished is None, -len(part.deltas), -weight, part.identity.partition
