"""The start of an attempt at an epoch: its claim of the folder, its restore point, its kind of snapshot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keyedstate.backend import Capability
from keyedstate.checkpoint.format.manifest import CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind
from keyedstate.checkpoint.protocol.local_copies import with_local_copies
from keyedstate.checkpoint.protocol.operator_folder import AttemptFile, OperatorFolder
from keyedstate.checkpoint.protocol.publication import finished_at_start
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point
from keyedstate.checkpoint.savepoint.offset_log import OffsetLog
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.savepoint.restore import SavepointRestore
from keyedstate.epoch.configuration import backend_in_task, configuration_in_task, storage_in_task
from keyedstate.epoch.event_time import followed_watermarks, watermark_of_epoch
from keyedstate.epoch.local_folders import local_folder
from keyedstate.epoch.partition_plan import PartitionPlan, StateLocation
from keyedstate.errors import DuplicateUidError, KeyColumnsChangedError
from keyedstate.options import CLOCK_MAX_SKEW
from keyedstate.state.clock import system_clock
from keyedstate.time.epoch_clock import EpochClock


@dataclass(frozen=True)
class EpochStart:
    """The start of an attempt at an epoch."""

    identity: TaskIdentity
    folder: OperatorFolder
    #: The published checkpoint of this query that the epoch continues from.
    restore_point: CheckpointMetadata | None
    #: The same or, in a query's epoch 0, the savepoint that it begins from; None without state.
    stored: OperatorSnapshot | None
    #: The snapshot to write at the epoch's end.
    kind: SnapshotKind
    #: The time of `time.perf_counter`.
    began: float
    #: Whether the input of the run is over: all event-time timers fire.
    drained: bool
    clock: EpochClock
    #: The watermark before the rows, and after them; None where it is unknown.  They differ where the
    #: operator follows another one, whose watermark of this epoch is known when its rows have come.
    watermark: int | None = None
    watermark_after_rows: int | None = None
    #: The time of the micro-batch, where it counts and is known.
    batch_ms: int | None = None
    #: Finished attempts at the same partition, by nonce.
    finished_before: frozenset[str] = frozenset()

    @property
    def continues_run(self) -> bool:
        """Whether the run had an earlier epoch."""
        return self.restore_point is not None and self.restore_point.run_id == self.identity.run_id

    @classmethod
    def of(cls, plan: PartitionPlan, location: StateLocation, identity: TaskIdentity) -> EpochStart:
        """Register an attempt in the operator's folder and find the state that it begins from.

        Raises `DuplicateUidError`, `KeyColumnsChangedError`, and as `claim`, `find_restore_point`,
        `SavepointRestore.find_snapshot` and `FollowedOperator.watermark`.
        """
        directory = storage_in_task(location.directory, plan.settings)
        config = configuration_in_task(plan.settings)
        restore = SavepointRestore.of(config)
        folder = OperatorFolder(directory, location.uid)
        owner = claim(folder, identity, restore.origin)
        # Before anything can fail: where a foreachBatch function hides the failure, the batch must differ
        # from one that was never evaluated.
        before_ms = system_clock()
        storage_ms = folder.write_started(identity)
        after_ms = system_clock()
        attempts = folder.attempts(identity.epoch)
        _refuse_second_operator(attempts, identity)
        restore_point = find_restore_point(folder, identity, each_epoch=location.each_epoch, owner=owner)
        clock = EpochClock.at_stamp(before_ms, storage_ms, after_ms, config[CLOCK_MAX_SKEW])
        folder = with_local_copies(folder, identity.epoch, restore_point, config, local_folder())
        began = time.perf_counter()
        stored = restore.find_snapshot(folder, owner, identity, restore_point)
        metadata = None if stored is None else stored.metadata
        _refuse_reordered_key(location.uid, plan.key_columns, metadata)
        followed = followed_watermarks(plan.followed, identity)
        after_rows = watermark_of_epoch(plan.event_times, metadata, followed)
        watermark = after_rows
        if followed:
            watermark = None if metadata is None else metadata.watermark
        chosen = backend_in_task(plan.settings)
        kind = FullSnapshotRules.of(config).choose(
            restore_point,
            identity,
            asynchronous=chosen.backend.description.level(Capability.ASYNC_SNAPSHOT).usable,
            now_ms=clock.machine_ms + clock.correction_ms,
        )
        drained = owner.drained_run == identity.run_id
        batch_ms = None
        if location.offsets is not None:
            offsets = OffsetLog(storage_in_task(location.offsets, plan.settings))
            if location.time_of_query:
                batch_ms = offsets.time_of(identity.epoch)
            if location.fires_at_end:
                drained = drained or offsets.ends_input(identity.epoch)
        finished_before = finished_at_start(attempts, identity)
        if finished_before:
            # A speculative attempt that began too late is killed now; another one repeats a failed one.
            time.sleep(location.time_to_be_killed_s)
        return cls(
            identity,
            folder,
            restore_point,
            stored,
            kind,
            began,
            drained,
            clock,
            watermark,
            after_rows,
            batch_ms,
            finished_before,
        )

    def processing_time(self) -> int:
        """Return the processing time of the epoch, at least that of the epoch before."""
        before = None if self.stored is None else self.stored.metadata.processing_time
        if self.batch_ms is None:
            return self.clock.processing_time(before)
        return max(self.batch_ms, before or 0)


def _refuse_second_operator(attempts: Iterable[AttemptFile], identity: TaskIdentity) -> None:
    """Refuse two operators of one uid in one run: each would begin from the other's state.

    The attempts were listed after its own marker was written, so that of two operators at least one sees the
    other.
    """
    operator = _operator_of(identity.nonce)
    for attempt in attempts:
        if attempt.run_id == identity.run_id and _operator_of(attempt.nonce) != operator:
            raise DuplicateUidError(identity.uid)


def _operator_of(nonce: str) -> str:
    # `keyedstate.spark.hosts.task_identity.attempt_identity` puts it before the random part.
    return nonce.partition("-")[0]


def _refuse_reordered_key(
    uid: str, key_columns: Sequence[tuple[str, str]], restore_point: CheckpointMetadata | None
) -> None:
    """Raise `KeyColumnsChangedError` for another order: with the same types, no key would be found."""
    if restore_point is None:
        return
    before = [name for name, _ in restore_point.key_columns]
    now = [name for name, _ in key_columns]
    if before != now and sorted(before) == sorted(now):
        raise KeyColumnsChangedError(uid, before, now)
