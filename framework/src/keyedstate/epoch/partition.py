"""What an epoch does to one partition: find the restore point, restore, rows in, rows out, write.

Whatever an attempt writes carries its own unique name, and nothing of it is read unless it finished and was
acknowledged; so an attempt may die anywhere, and may live on as a zombie.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any

import pyarrow as pa

from keyedstate.backend import Capability, StateHandle, StateMeta
from keyedstate.checkpoint import (
    AttemptManifest,
    ChainHandle,
    CheckpointMetadata,
    HostAddress,
    OperatorFolder,
    SegmentFile,
    SegmentHandle,
    StateOrigin,
    StoredNativeHandle,
    StoredState,
    TaskIdentity,
    Writing,
    claim,
    find_restore_point,
    handles_for,
    latest_inputs,
    read_changes,
    read_operator_state,
    write_attempt,
)
from keyedstate.checkpoint.protocol.local_copies import with_local_copies
from keyedstate.epoch.configuration import (
    backend_in_task,
    configuration_in_task,
    full_snapshot_rules_in_task,
    restore_in_task,
    storage_in_task,
)
from keyedstate.epoch.epoch_writer import SavedState, StateWriter
from keyedstate.epoch.event_time import EventTimes, inputs_at_start, watermark_after
from keyedstate.epoch.function_transport import unpack_function
from keyedstate.epoch.key_columns import naming_key_columns, refuse_reordered_key
from keyedstate.epoch.local_folders import local_folder, sweep_once
from keyedstate.errors import DuplicateUidError
from keyedstate.keygroups import KEY_GROUP_COLUMN, KeyGroupRange, key_group_range_for
from keyedstate.operator_state import RestoredOperatorState
from keyedstate.options import CLOCK_MAX_SKEW
from keyedstate.runtime import AtEnd, ConnectedInputs, key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import KeyedOperator, keyed_operator
from keyedstate.state import (
    BEFORE_TIME,
    KeyedStateBackend,
    KeySpace,
    OperatorStateBackend,
    system_clock,
)
from keyedstate.state.clock import Clock, CorrectedClock
from keyedstate.time.epoch_clock import EpochClock

#: How much of a processor's time a base takes that goes on over epochs: so little that work keeps its speed.
_SHARE_OF_BASE = 0.1
#: Changes of another process that are applied together.
_CHANGES_AT_ONCE = 16_384


@dataclass(frozen=True)
class StatePlace:
    """Where the state of an operator in a streaming query lives.

    Attributes
    ----------
    uid : str
    directory : str
        URI of the folder with the folders of all operators.
    compression : str
        The option ``checkpoint.compression``.
    each_epoch : bool
        Whether Spark evaluates the operator in each epoch: it is part of a streaming plan, and not built
        inside ``foreachBatch``.
    """

    uid: str
    directory: str
    compression: str
    each_epoch: bool


@dataclass(frozen=True)
class PartitionPlan:
    """All that is needed to run any partition of an operator.

    Attributes
    ----------
    function : bytes
        The process function, pickled; `function_name` is its class.
    key_columns : tuple of (str, str)
        Names and Spark types.
    key_types : tuple of pyarrow.DataType
    output : OutputSchema
    parallelism, max_parallelism : int
    settings : tuple
        The configuration, as `keyedstate.epoch.configuration.frozen` gives it.
    place : StatePlace or None
        None for a batch DataFrame: the operator begins without state and keeps none.
    event_times : tuple of EventTime
        That of the rows, or of each of two connected inputs; empty where rows have none.
    connected : ConnectedInputs or None
        The inputs of a function that has two; their columns are then those of their union.
    side_outputs : mapping of str to OutputSchema
    """

    function: bytes
    function_name: str
    key_columns: tuple[tuple[str, str], ...]
    key_types: tuple[pa.DataType, ...]
    output: OutputSchema
    parallelism: int
    max_parallelism: int
    settings: tuple[tuple[str, Any], ...]
    place: StatePlace | None
    event_times: EventTimes
    connected: ConnectedInputs | None = None
    side_outputs: Mapping[str, OutputSchema] = field(default_factory=dict)

    def key_groups(self, partition: int) -> KeyGroupRange:
        """Return the key groups of a partition."""
        return key_group_range_for(partition, self.parallelism, self.max_parallelism)

    def open_backend(
        self,
        key_groups: KeyGroupRange,
        handles: Sequence[StateHandle] = (),
        *,
        track_changes: bool = False,
        clock: Clock = system_clock,
    ) -> KeyedStateBackend:
        """Open the keyed state of some key groups, empty or restored; raises as `KeyedStateBackend.open`."""
        sweep_once()
        return KeyedStateBackend.open(
            backend_in_task(self.settings),
            KeySpace(key_serializer_for(self.key_types), key_groups, self.max_parallelism),
            handles,
            local_base=local_folder(),
            track_changes=track_changes,
            clock=clock,
            event_time=bool(self.event_times),
        )

    def operator_states(self, restored: Iterable[RestoredOperatorState] = ()) -> OperatorStateBackend:
        """Return the operator state of one task."""
        generic_types = backend_in_task(self.settings).generic_types
        return OperatorStateBackend(restored, generic_types=generic_types)

    def operator(
        self,
        backend: KeyedStateBackend,
        operator_states: OperatorStateBackend,
        partition: int,
        epoch: int | None,
    ) -> KeyedOperator:
        """Return the operator of one partition, with an instance of the function of its own.

        Raises
        ------
        FunctionTransportError
        """
        function, row_classes = unpack_function(self.function, self.function_name)
        return keyed_operator(
            function,
            backend,
            key_columns=[name for name, _ in self.key_columns],
            key_group_column=KEY_GROUP_COLUMN,
            output=self.output,
            side_outputs=self.side_outputs,
            row_classes=row_classes,
            epoch=epoch,
            operator_states=operator_states,
            task=partition,
            parallelism=self.parallelism,
            event_time=self.event_times[0] if len(self.event_times) == 1 else None,
            connected=self.connected,
        )

    def manifest(
        self, identity: TaskIdentity, keyed: KeyedStateBackend, operator: KeyedOperator, saved: SavedState
    ) -> AttemptManifest:
        """Return what an attempt has written; times, watermark and hosts are for the caller to add."""
        chosen = backend_in_task(self.settings)
        metas = keyed.metas()
        return AttemptManifest(
            identity=identity,
            key_groups=keyed.key_groups,
            backend=chosen.backend.name,
            backend_version=chosen.backend.description.version,
            states=tuple(meta.to_json() for meta in metas),
            segments=saved.segments,
            deltas=saved.deltas,
            entries=keyed.entries_by_state(),
            rows_in=operator.rows_in,
            rows_out=operator.rows_out,
            inputs={name: (time, 0) for name, time in operator.largest_event_times.items()},
            rows_by_input=operator.rows_by_input,
            rows_dropped=dict(operator.rows_dropped),
            largest_event_time=operator.largest_event_time,
            sync_ms=saved.synchronous_ms,
            write_ms=0.0,
            restore_ms=0.0,
            process_ms=0.0,
            bytes=saved.bytes,
            key_columns=self.key_columns,
            operator_state=saved.operator_state,
            ttl_ms={meta.name: meta.expiry.ttl_ms for meta in metas if meta.expiry is not None},
            bases=saved.bases,
            unfinished=saved.unfinished,
            native=saved.native,
        )


@dataclass(frozen=True)
class Beginning:
    """What an attempt at an epoch begins with.

    Attributes
    ----------
    identity : TaskIdentity
    folder : OperatorFolder
    restore_point : CheckpointMetadata or None
        The published checkpoint of this query that the epoch goes on from.
    stored : StoredState or None
        The same or, in a query's epoch 0, the savepoint that it begins from; None without state.
    writing : Writing
        What is to be written at the epoch's end.
    began : float
        When, by `time.perf_counter`.
    drained : bool
        Whether the input of the run is over.
    clock : EpochClock
    """

    identity: TaskIdentity
    folder: OperatorFolder
    restore_point: CheckpointMetadata | None
    stored: StoredState | None
    writing: Writing
    began: float
    drained: bool
    clock: EpochClock

    @property
    def goes_on(self) -> bool:
        """Whether the run has had an epoch before."""
        return self.restore_point is not None and self.restore_point.run_id == self.identity.run_id

    @classmethod
    def of(cls, plan: PartitionPlan, place: StatePlace, identity: TaskIdentity) -> Beginning:
        """Enter an attempt in the operator's folder and find what it begins from.

        Raises
        ------
        CheckpointError
            As `claim`, `find_restore_point` and `SavepointRestore.beginning`.
        DuplicateUidError, KeyColumnsReorderedError
        """
        directory = storage_in_task(place.directory, plan.settings)
        restore = restore_in_task(plan.settings)
        folder = OperatorFolder(directory, place.uid)
        owner = claim(folder, identity, restore.origin)
        # Before anything can fail: a batch whose failure a foreachBatch function hides must not look like one
        # that was never evaluated.
        storage_ms = folder.write_started(identity)
        machine_ms = system_clock()
        _refuse_second_operator(folder, identity)
        restore_point = find_restore_point(folder, identity, each_epoch=place.each_epoch, owner=owner)
        config = configuration_in_task(plan.settings)
        clock = EpochClock(machine_ms, storage_ms, config[CLOCK_MAX_SKEW])
        folder = with_local_copies(folder, identity.epoch, restore_point, config, local_folder())
        began = time.perf_counter()
        stored = restore.beginning(directory, folder, owner, identity, restore_point)
        refuse_reordered_key(place.uid, plan.key_columns, None if stored is None else stored.metadata)
        chosen = backend_in_task(plan.settings)
        writing = full_snapshot_rules_in_task(plan.settings).writing(
            restore_point,
            identity,
            asynchronous=chosen.backend.description.level(Capability.ASYNC_SNAPSHOT).usable,
            now_ms=machine_ms + clock.correction_ms,
        )
        drained = owner.drained_run == identity.run_id
        return cls(identity, folder, restore_point, stored, writing, began, drained, clock)


class Partition:
    """The state and the function of one partition, for one epoch or for one after the other.

    An epoch is `run` and then `finish`.  After an error the partition is good for nothing but `close`.

    Parameters
    ----------
    plan : PartitionPlan
        With a place.
    beginning : Beginning
        Of the first epoch, whose state is restored from files.
    stays : bool, default False
        Whether further epochs may follow.  The function then stays open from one to the next, and a base that
        is written beside the work goes on.

    Raises
    ------
    CheckpointError
        Where a file, which is named, cannot be read.
    StateError
        Where what it holds does not fit.
    FunctionTransportError
    """

    def __init__(self, plan: PartitionPlan, beginning: Beginning, *, stays: bool = False) -> None:
        assert plan.place is not None, "an operator that keeps no state has no epochs"
        self._plan = plan
        self._place = plan.place
        self._stays = stays
        self._origin = StateOrigin.FILES
        #: What the last epoch wrote: the version that the state has.  None from the beginning of an epoch
        #: until its end is written.
        self._written: AttemptManifest | None = None
        with contextlib.ExitStack() as opened:
            track_changes = stays or beginning.writing is not Writing.WHOLE
            self._clock = CorrectedClock(beginning.clock.correction_ms)
            self._keyed = _restored_keyed(plan, beginning, self._clock, track_changes=track_changes)
            opened.callback(self._keyed.close)
            self._operator_states = _restored_operator_states(plan, beginning)
            opened.callback(self._operator_states.close)
            opened.callback(lambda: self._writer.close())
            self._begin_writer(beginning)
            self._begin_operator(beginning)
            self._closing = opened.pop_all()

    @property
    def version(self) -> str | None:
        """The nonce of the attempt whose end the state is; None where it is no such state."""
        return None if self._written is None else self._written.identity.nonce

    def _begin_writer(self, beginning: Beginning) -> None:
        self._writer = StateWriter(
            self._keyed,
            self._operator_states,
            beginning.folder,
            full_snapshot_rules_in_task(self._plan.settings),
            self._place.compression,
            share=_SHARE_OF_BASE if self._stays else 1.0,
        )

    def _begin_operator(self, beginning: Beginning) -> None:
        identity = beginning.identity
        self._operator = self._plan.operator(
            self._keyed, self._operator_states, identity.partition, identity.epoch
        )

    def follow(self, beginning: Beginning) -> bool:
        """Return whether the state is what an epoch begins from, or could be brought there.

        The epoch must go on from exactly the checkpoint that names what was written here last; or from one
        whose chain goes on from it, and then what the deltas between the two have changed is applied.  Else,
        and in the first epoch of a run, in which operator state is dealt out anew, the partition is of no
        use any more.

        Parameters
        ----------
        beginning : Beginning

        Raises
        ------
        CheckpointError
            Where a delta, which is named, cannot be read.
        """
        point, written = beginning.restore_point, self._written
        if written is None or point is None or not beginning.goes_on:
            return False
        if point.parallelism != self._plan.parallelism or written.identity.epoch > point.epoch:
            return False
        part = point.parts[beginning.identity.partition]
        if part.identity == written.identity:
            self._origin = StateOrigin.HOST
        elif self._catch_up(beginning.folder, written, part):
            self._origin = StateOrigin.HOST_AND_DELTAS
            # Its own base would hold what others have written since as if that had been there before; and
            # what the function knows of the state may be out of date.
            self._writer.close()
            self._begin_writer(beginning)
            self._operator.close()
            self._begin_operator(beginning)
        else:
            return False
        self._writer.folder = beginning.folder
        self._operator.begin_epoch(beginning.identity.epoch)
        return True

    def _catch_up(self, folder: OperatorFolder, written: AttemptManifest, part: AttemptManifest) -> bool:
        """Apply the deltas that the chain of a later checkpoint has beyond what was written here."""
        missing = _deltas_since(written, part)
        if missing is None or written.operator_state is not None or part.operator_state is not None:
            return False
        states = [StateMeta.from_json(dict(state)) for state in part.states]
        if not self._keyed.can_apply_changes(states):
            return False
        self._written = None
        changes = read_changes(folder.storage, missing, states)
        for state, of_state in groupby(changes, key=attrgetter("state")):
            while some := list(islice(of_state, _CHANGES_AT_ONCE)):
                self._keyed.apply_changes(state, some)
        return True

    def run(
        self,
        beginning: Beginning,
        broadcast_rows: Iterable[pa.RecordBatch],
        batches: Iterator[pa.RecordBatch],
    ) -> Generator[pa.RecordBatch, None, None]:
        """Run the function over the rows of an epoch and yield its output.

        Parameters
        ----------
        beginning : Beginning
        broadcast_rows, batches : iterable of pyarrow.RecordBatch
            The rows of the broadcast side, which are read first, and those of keys.

        Raises
        ------
        UserFunctionError, OutputTypeError
        """
        self._written = None
        self._writer.begin(beginning.identity, beginning.restore_point, beginning.writing)
        self._restored = time.perf_counter()
        if self._keyed.latency is not None:
            # They were reported with the epoch before.
            self._keyed.latency.forget()
        self._watermark = self._watermark_of(beginning)
        if self._watermark is not None and self._plan.event_times:
            self._keyed.advance_watermark(self._watermark)
        self._clock.correction_ms = beginning.clock.correction_ms
        stored = None if beginning.stored is None else beginning.stored.metadata.processing_time
        self._processing_time = beginning.clock.processing_time(stored)
        self._operator.set_processing_time(self._processing_time)
        at_end = AtEnd.DRAINED if beginning.drained else AtEnd.EPOCH
        yield from evaluate(self._operator, broadcast_rows, batches, stays=self._stays, at_end=at_end)

    def finish(
        self, beginning: Beginning, host: HostAddress | None = None, task_executor: str | None = None
    ) -> str:
        """Write the state after the epoch and say so; returns the path of the attempt's manifest.

        Parameters
        ----------
        beginning : Beginning
        host, task_executor
            As in `AttemptManifest`.

        Raises
        ------
        CheckpointError, StateMigrationError, TooManyFailedBasesError
            As `StateWriter.end`.
        """
        processed = time.perf_counter()
        saved = self._writer.end(finish_base=not self._stays)
        written = time.perf_counter()
        manifest = replace(
            self._plan.manifest(beginning.identity, self._keyed, self._operator, saved),
            watermark=self._watermark,
            processing_time=self._processing_time,
            clock_skew_ms=beginning.clock.skew_ms,
            inputs=self._inputs_after(beginning),
            write_ms=(written - processed) * 1000.0 - saved.synchronous_ms,
            restore_ms=(self._restored - beginning.began) * 1000.0,
            process_ms=(processed - self._restored) * 1000.0,
            state_origin=self._origin,
            latencies={} if self._keyed.latency is None else self._keyed.latency.samples(),
            figures=self._keyed.figures(),
            host=host,
            task_executor=task_executor,
        )
        shared: Collection[str] = ()
        if beginning.restore_point is not None:
            # Those of all parts: a native base may share files that came from another one.
            shared = {path for part in beginning.restore_point.parts for path in part.kept_files}
        path = write_attempt(beginning.folder, manifest, shared)
        self._written = manifest
        return path

    def close(self) -> None:
        """Close the function and free everything; calling it again does nothing.

        Raises
        ------
        UserFunctionError
            Where the function's own `close` raises; everything is freed all the same.
        """
        with self._closing:
            self._operator.close()

    def _watermark_of(self, beginning: Beginning) -> int | None:
        """Return the watermark of the epoch: the same in all of its tasks, and in each repetition."""
        if beginning.stored is None:
            return None
        metadata = beginning.stored.metadata
        # Kept by a run without event time too, so that it does not go back in the next one that has it.
        before = metadata.watermark
        if not self._plan.event_times:
            return before
        known = BEFORE_TIME if before is None else before
        mark = watermark_after(self._plan.event_times, metadata, known)
        return None if before is None and mark == BEFORE_TIME else mark

    def _inputs_after(self, beginning: Beginning) -> dict[str, tuple[int, int]]:
        """Return what is known of each input at the end of the epoch."""
        found = inputs_at_start(self._plan.event_times, self._processing_time)
        if beginning.stored is not None:
            found |= beginning.stored.metadata.inputs
        if not beginning.goes_on:
            # The time in which the query stood still is none in which an input was idle.
            found = {name: (event_time, self._processing_time) for name, (event_time, _) in found.items()}
        now, seen = self._processing_time, self._operator.largest_event_times.items()
        known = chain(found.items(), ((name, (event_time, now)) for name, event_time in seen))
        # Those seen later than now were seen by a clock that was wrong.
        return latest_inputs((name, (event_time, min(last, now))) for name, (event_time, last) in known)


def evaluate(
    operator: KeyedOperator,
    broadcast_rows: Iterable[pa.RecordBatch],
    batches: Iterator[pa.RecordBatch],
    *,
    stays: bool = False,
    at_end: AtEnd = AtEnd.EPOCH,
) -> Iterator[pa.RecordBatch]:
    """Run an operator over all its rows; its function is closed also where it, or its reader, gives up.

    Parameters
    ----------
    operator : KeyedOperator
    broadcast_rows, batches : iterable of pyarrow.RecordBatch
        As in `Partition.run`.
    stays : bool, default False
        Whether the function stays open after its last row.
    at_end : AtEnd, optional
        Which timers fire behind the last row.
    """
    try:
        operator.open()
        yield from operator.process_broadcast(broadcast_rows)
        yield from operator.process(batches, at_end)
    except BaseException:
        # The first error is the one to report.
        with contextlib.suppress(Exception):
            operator.close()
        raise
    if not stays:
        operator.close()


def _deltas_since(written: AttemptManifest, part: AttemptManifest) -> tuple[SegmentFile, ...] | None:
    """Return the deltas by which a later state differs from an earlier one; None where that is unknown."""
    if not written.deltas:
        same_base = (written.segments, written.native) == (part.segments, part.native)
        return part.deltas if same_base else None
    # Whatever base it lies over now: the state behind a delta is the state behind it.
    last = written.deltas[-1]
    return part.deltas[part.deltas.index(last) + 1 :] if last in part.deltas else None


def _restored_keyed(
    plan: PartitionPlan, beginning: Beginning, clock: Clock, *, track_changes: bool
) -> KeyedStateBackend:
    key_groups = plan.key_groups(beginning.identity.partition)
    with contextlib.ExitStack() as handles_in_use:
        handles: list[SegmentHandle | ChainHandle | StoredNativeHandle] = []
        if beginning.stored is not None:
            handles = handles_for(beginning.stored.metadata, beginning.stored.storage, key_groups)
        for handle in handles:
            handles_in_use.callback(handle.close)
        before = None if beginning.stored is None else beginning.stored.metadata
        with naming_key_columns(beginning.identity.uid, plan.key_columns, before):
            return plan.open_backend(key_groups, handles, track_changes=track_changes, clock=clock)


def _restored_operator_states(plan: PartitionPlan, beginning: Beginning) -> OperatorStateBackend:
    stored, identity = beginning.stored, beginning.identity
    if stored is None:
        return plan.operator_states()
    restored = read_operator_state(
        stored.storage,
        [part.operator_state for part in stored.metadata.parts],
        identity.partition,
        plan.parallelism,
        restarted=stored.metadata.run_id != identity.run_id,
    )
    return plan.operator_states(restored)


def _refuse_second_operator(folder: OperatorFolder, identity: TaskIdentity) -> None:
    """Refuse two operators of one uid in one run: each would begin from the other's state.

    Called after the attempt's own marker was written, so that of two operators at least one sees the other.
    """
    operator = _operator_of(identity.nonce)
    for attempt in folder.attempts(identity.epoch):
        if attempt.run_id == identity.run_id and _operator_of(attempt.nonce) != operator:
            raise DuplicateUidError(identity.uid)


def _operator_of(nonce: str) -> str:
    # `keyedstate.spark.task.identity.attempt_identity` puts it before the random part.
    return nonce.partition("-")[0]
