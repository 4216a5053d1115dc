"""The start of an attempt at an epoch: its claim of the folder, its restore point, its kind of snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from keyedstate.backend import Capability
from keyedstate.checkpoint.format.manifest import CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind
from keyedstate.checkpoint.protocol.local_copies import with_local_copies
from keyedstate.checkpoint.protocol.operator_folder import AttemptFile, OperatorFolder
from keyedstate.checkpoint.protocol.publication import finished_at_start
from keyedstate.checkpoint.protocol.recovery import begin_attempt
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
from keyedstate.time.epoch_clock import ClockComparison, EpochClock

#: URIs of folders, each with a run that this process has seen to enter it.
_entered: set[tuple[str, str]] = set()
#: By the URI of the folder, the last comparison with the clock of its storage.
_compared: dict[str, ClockComparison] = {}


class _Registration:
    """The started marker of an attempt, with what the storage tells of it: its time, and its neighbours.

    An epoch does not wait for these where this process knows the storage's clock.  They are requested once
    the marker is written, and used at the end of the epoch.
    """

    def __init__(self, folder: OperatorFolder, identity: TaskIdentity, max_skew_ms: int) -> None:
        self._folder = folder
        self._identity = identity
        self._max_skew_ms = max_skew_ms
        self._listing: Callable[[], Sequence[AttemptFile]] | None = None

    def write(self, *, list_at_once: bool) -> None:
        """Write the marker; wait for the list of attempts if asked to, or if the clock is unknown."""
        folder, identity = self._folder, self._identity
        known = _compared.get(folder.storage.uri)
        self._before_ms = system_clock()
        folder.write_started(identity)
        self._after_ms, self._monotonic_ms = system_clock(), time.monotonic_ns() // 1_000_000
        clock = None
        if known is not None and not folder.storage.is_local:
            clock = known.clock_at(self._after_ms, self._monotonic_ms)
        self._listing = folder.storage.begin(self._look)
        if clock is None:
            self.check()
            clock = _compared[folder.storage.uri].clock
        elif list_at_once:
            self.attempts()
        self.clock = replace(clock, max_skew_ms=self._max_skew_ms)

    def attempts(self) -> Sequence[AttemptFile]:
        """Return the attempts of the epoch, listed after the marker was written."""
        assert self._listing is not None, "the marker was written"
        return self._listing()

    def _look(self) -> Sequence[AttemptFile]:
        folder, identity = self._folder, self._identity
        if not folder.storage.is_local:
            return folder.stamped_attempts(identity.epoch)
        # Each time is a request there, and only one of them is needed.
        stamp = folder.started_ms(identity)
        return [
            replace(file, modified_ms=stamp) if file.nonce == identity.nonce else file
            for file in folder.attempts(identity.epoch)
        ]

    def check(self) -> None:
        """Compare the clocks for the next epoch, and refuse a second operator."""
        attempts = self.attempts()
        stamps = [file.modified_ms for file in attempts if file.nonce == self._identity.nonce]
        _compared[self._folder.storage.uri] = ClockComparison.at_stamp(
            self._before_ms,
            stamps[0] if stamps else None,
            self._after_ms,
            self._monotonic_ms,
            self._max_skew_ms,
        )
        _refuse_second_operator(attempts, self._identity)


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
    registration: _Registration
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

        Raises `DuplicateUidError`, `KeyColumnsChangedError`, and as `begin_attempt`,
        `SavepointRestore.find_snapshot` and `FollowedOperator.watermark`.
        """
        directory = storage_in_task(location.directory, plan.settings)
        config = configuration_in_task(plan.settings)
        restore = SavepointRestore.of(config)
        folder = OperatorFolder(directory, location.uid)
        registration = _Registration(folder, identity, config[CLOCK_MAX_SKEW])
        # The marker is written before anything can fail: where a foreachBatch function hides the failure, the
        # batch must differ from one that was never evaluated.
        owner, _, restore_point = begin_attempt(
            folder,
            identity,
            partial(registration.write, list_at_once=location.published_by_tasks),
            _entered,
            restore.origin,
            each_epoch=location.each_epoch,
        )
        clock = registration.clock
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
        finished_before: frozenset[str] = frozenset()
        if location.published_by_tasks:
            finished_before = finished_at_start(registration.attempts(), identity)
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
            registration,
            watermark,
            after_rows,
            batch_ms,
            finished_before,
        )

    def check(self) -> None:
        """Check what was looked up during the rows; to be called before the attempt finishes.

        Raises `DuplicateUidError`, and `StorageError` where it could not be looked up.
        """
        self.registration.check()

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
