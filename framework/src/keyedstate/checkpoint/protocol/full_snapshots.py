"""Bases: when a task writes its whole state again, and what became of it.

A chain of deltas must not grow for ever, so now and then the whole state, a base, takes its place.  Where the
backend can snapshot asynchronously, a base is written beside the work and the deltas go on meanwhile; so one
that fails loses nothing, and the chain as it was goes on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.format.snapshot_report import FullSnapshotReport
from keyedstate.checkpoint.protocol.failures import FailureManager
from keyedstate.options import (
    CHECKPOINT_BASE_MIN_PAUSE,
    CHECKPOINT_BASE_TIMEOUT,
    CHECKPOINT_DELTA_MIN_BYTES,
    CHECKPOINT_MAX_CONCURRENT_BASES,
    CHECKPOINT_MAX_DELTAS,
    CHECKPOINT_TOLERABLE_FAILURES,
    Configuration,
)

#: A chain of so many times the wanted length or weight gets a base whatever else would put it off.
_OVERDUE = 3


class SnapshotKind(enum.Enum):
    """What a task writes at the end of an epoch."""

    FULL = "a full snapshot"
    DELTA = "a delta"
    DELTA_AND_FULL = "a delta, and in the background a full snapshot of the state before it"


@dataclass(frozen=True)
class FullSnapshotRules:
    """The options that say when a base is due.

    Attributes
    ----------
    max_deltas, min_bytes, min_pause_ms, max_concurrent, timeout_ms, tolerable_failures : int
        The options ``checkpoint.max-deltas``, ``checkpoint.delta-min-bytes``, ``checkpoint.base-min-pause``,
        ``checkpoint.max-concurrent-bases``, ``checkpoint.base-timeout`` and
        ``checkpoint.tolerable-failures``.
    """

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
            min_pause_ms=config[CHECKPOINT_BASE_MIN_PAUSE],
            max_concurrent=config[CHECKPOINT_MAX_CONCURRENT_BASES],
            timeout_ms=config[CHECKPOINT_BASE_TIMEOUT],
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
        """Return what a task is to write at the end of its epoch.

        Parameters
        ----------
        restore_point : CheckpointMetadata or None
            What the epoch begins from.  All tasks see the same one, so they agree, without a word, on which
            of them write a base.
        identity : TaskIdentity
        asynchronous : bool
            Whether the backend can write a base beside the work.
        now_ms : int
            Milliseconds since 1970 UTC.
        """
        if restore_point is None or restore_point.parallelism != identity.parallelism:
            # A chain covers one range of key groups.
            return SnapshotKind.FULL
        parts = restore_point.parts
        part = parts[identity.partition]
        if self.max_deltas == 0 or _base_bytes(part) < self.min_bytes:
            return SnapshotKind.FULL
        if not self._is_due(part):
            return SnapshotKind.DELTA
        if not self._is_overdue(part):
            waiting = [other for other in parts if self._may_begin(other, now_ms)]
            waiting.sort(key=_heaviest_first)
            if part not in (waiting[: self.max_concurrent] if self.max_concurrent else waiting):
                return SnapshotKind.DELTA
        # Where so much changes, a base beside the work would write nearly everything twice.
        heavy = 4 * _delta_bytes(part) > len(part.deltas) * _base_bytes(part)
        return SnapshotKind.DELTA_AND_FULL if asynchronous and not heavy else SnapshotKind.FULL

    def _is_due(self, part: AttemptManifest) -> bool:
        return len(part.deltas) >= self.max_deltas or 2 * _delta_bytes(part) > _base_bytes(part)

    def _is_overdue(self, part: AttemptManifest) -> bool:
        long, heavy = _OVERDUE * self.max_deltas, _OVERDUE * _base_bytes(part)
        return len(part.deltas) >= long or 2 * _delta_bytes(part) > heavy

    def _may_begin(self, part: AttemptManifest, now_ms: int) -> bool:
        ended = [base.ended_ms for base in part.bases]
        rested = not ended or now_ms - max(ended) >= self.min_pause_ms
        return rested and _base_bytes(part) >= self.min_bytes and self._is_due(part)


def failures_so_far(reports: Iterable[FullSnapshotReport], tolerable: int) -> FailureManager:
    """Return the count of failures over all tasks: where the base of one failed, that of the epoch did."""
    manager = FailureManager(tolerable)
    # Completed ones first, so that a failure of the same epoch stays in the place of its success.
    outcomes = {report.epoch: report.failure for report in sorted(reports, key=lambda report: report.failed)}
    for epoch, failure in sorted(outcomes.items(), key=lambda outcome: outcome[0]):
        if failure is None:
            manager.on_success(epoch)
        else:
            manager.on_failure(epoch, failure)
    return manager


def _base_bytes(part: AttemptManifest) -> int:
    native = 0 if part.native is None else part.native.bytes
    return native + sum(segment.bytes for segment in part.segments)


def _delta_bytes(part: AttemptManifest) -> int:
    return sum(delta.bytes for delta in part.deltas)


def _heaviest_first(part: AttemptManifest) -> tuple[bool, int, float, int]:
    weight = _delta_bytes(part) / max(_base_bytes(part), 1)
    # One that is being written already keeps its turn.
    return part.unfinished is None, -len(part.deltas), -weight, part.identity.partition
