"""What runs inside a task: restore, rows in, rows out, snapshot, acknowledgement (the embedded mode).

Whatever an attempt writes carries its own unique name, and nothing of it is read unless it finished and was
acknowledged; so an attempt may die anywhere, and may live on as a zombie.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle
import pyarrow as pa
from pyspark import Accumulator

from keyedstate.backend import Capability, RestoredOperatorState, StateHandle
from keyedstate.checkpoint import (
    Acknowledgement,
    AttemptManifest,
    ChainHandle,
    CheckpointMetadata,
    OperatorFolder,
    SegmentHandle,
    StoredState,
    TaskIdentity,
    Writing,
    claim,
    find_restore_point,
    handles_for,
    read_operator_state,
)
from keyedstate.checkpoint.local_copies import with_local_copies
from keyedstate.config import Configuration
from keyedstate.errors import KeyedStateError
from keyedstate.keygroups import KeyGroupRange, key_group_range_for, operator_index_for_key_group
from keyedstate.runtime import (
    KeyedOperator,
    KeyedProcessFunction,
    ProcessFunctionError,
    key_serializer_for,
)
from keyedstate.runtime.output import OutputSchema
from keyedstate.spark.acknowledge import Update, acknowledge
from keyedstate.spark.broadcast import BroadcastSide
from keyedstate.spark.configuration import backend_in_task, restore_in_task, storage_in_task
from keyedstate.spark.errors import (
    DuplicateUidError,
    FunctionTransportError,
    KeyColumnsReorderedError,
    MisroutedRowsError,
)
from keyedstate.spark.identity import attempt_identity, operator_of, task_context
from keyedstate.spark.routing import KEY_GROUP_COLUMN
from keyedstate.spark.saving import StateWriter
from keyedstate.spark.spool import BatchSpool
from keyedstate.state import KeyedStateBackend, OperatorStateBackend

#: Writes the state of one partition of a bounded input, and describes what it has written.
SaveBounded: TypeAlias = (
    "Callable[[int, KeyedStateBackend, OperatorStateBackend, KeyedOperator], AttemptManifest]"
)


@dataclass(frozen=True)
class Checkpointing:
    """Where the state of an operator in a streaming query lives.

    Attributes
    ----------
    uid : str
    operator_id : str
        Another one each time an operator is built: tells two operators of one uid apart.
    directory : str
        URI of the folder with the folders of all operators.
    folder : str
        The operator's own folder, by which the driver knows the coordinator.
    compression : str
        The option ``checkpoint.compression``.
    accumulator : Accumulator
    each_epoch : bool
        Whether Spark evaluates the operator in each epoch: it is part of a streaming plan, and not built
        inside ``foreachBatch``.
    """

    uid: str
    operator_id: str
    directory: str
    folder: str
    compression: str
    accumulator: Accumulator[Update]
    each_epoch: bool


@dataclass(frozen=True)
class EventTime:
    """Where an operator has its event time from.

    Attributes
    ----------
    column : str
    delay_ms : int
    """

    column: str
    delay_ms: int


@dataclass(frozen=True)
class OperatorPlan:
    """All that the tasks of one operator need to know; it travels inside their function.

    Attributes
    ----------
    function : bytes
        The process function, pickled; `function_name` is its class.
    columns : tuple of str
        The real names of the columns that come in, in their order.
    key_columns : tuple of (str, str)
        Names and Spark types.
    key_types : tuple of pyarrow.DataType
    output : OutputSchema
    parallelism, max_parallelism : int
    settings : tuple
        The configuration, as `keyedstate.spark.configuration.frozen` gives it.
    checkpointing : Checkpointing or None
        None for a batch DataFrame: the operator begins without state and keeps none.
    broadcast : BroadcastSide or None
        The rows that every task gets, where there are any.
    event_time : EventTime or None
    """

    function: bytes
    function_name: str
    columns: tuple[str, ...]
    key_columns: tuple[tuple[str, str], ...]
    key_types: tuple[pa.DataType, ...]
    output: OutputSchema
    parallelism: int
    max_parallelism: int
    settings: tuple[tuple[str, Any], ...]
    checkpointing: Checkpointing | None
    broadcast: BroadcastSide | None
    event_time: EventTime | None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one partition; what `mapInArrow` calls."""
        try:
            if self.checkpointing is None:
                yield from self._run_bounded(batches)
            else:
                yield from self._run_epoch(self.checkpointing, batches)
        except (ProcessFunctionError, FunctionTransportError) as error:
            _keep_cause(error)
            raise

    def _run_bounded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, batches = self._partition_of(batches)
        if partition is None:
            return
        with self._bounded(partition) as (_, _, operator), BatchSpool(_local_folder()) as spool:
            sides = self._sides(self._checked(self._key_groups(partition), batches), spool)
            yield from _evaluate(operator, *sides)

    def bootstrap(
        self, batches: Iterator[pa.RecordBatch], save: SaveBounded, partition: int | None = None
    ) -> AttemptManifest | None:
        """Run one partition of a bounded input for its state, and drop what the function yields.

        Parameters
        ----------
        batches : iterator of pyarrow.RecordBatch
        save : callable
            Writes the state and returns its manifest.
        partition : int, optional
            Of a partition without rows; by default the rows say which it is.

        Returns
        -------
        AttemptManifest or None
            None where there are no rows and nobody said which partition it is.
        """
        try:
            if partition is None:
                partition, batches = self._partition_of(batches)
            if partition is None:
                return None
            with self._bounded(partition) as (backend, states, operator):
                with BatchSpool(_local_folder()) as spool:
                    sides = self._sides(self._checked(self._key_groups(partition), batches), spool)
                    for _ in _evaluate(operator, *sides):
                        pass
                return save(partition, backend, states, operator)
        except (ProcessFunctionError, FunctionTransportError) as error:
            _keep_cause(error)
            raise

    def _partition_of(self, batches: Iterator[pa.RecordBatch]) -> tuple[int | None, Iterator[pa.RecordBatch]]:
        """Return which partition of a bounded input the rows are of, None without any, and all rows."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return None, filled
        # However Spark counts the partitions: the rows say which it is.
        key_group = first.column(KEY_GROUP_COLUMN)[0].as_py()
        partition = operator_index_for_key_group(key_group, self.parallelism, self.max_parallelism)
        return partition, chain((first,), filled)

    def _key_groups(self, partition: int) -> KeyGroupRange:
        return key_group_range_for(partition, self.parallelism, self.max_parallelism)

    @contextlib.contextmanager
    def _bounded(
        self, partition: int
    ) -> Iterator[tuple[KeyedStateBackend, OperatorStateBackend, KeyedOperator]]:
        with contextlib.closing(self._open_backend(self._key_groups(partition), [])) as backend:
            states = self._operator_states()
            yield backend, states, self._operator(backend, states, partition, None)

    def _run_epoch(self, where: Checkpointing, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        identity = attempt_identity(where.uid, where.operator_id, self.parallelism, self.max_parallelism)
        directory = storage_in_task(where.directory, self.settings)
        restore = restore_in_task(self.settings)
        folder = OperatorFolder(directory, where.uid)
        owner = claim(folder, identity, restore.origin)
        # Before anything can fail: a batch whose failure a foreachBatch function hides must not look like one
        # that was never evaluated.
        folder.write_started(identity)
        _refuse_second_operator(folder, identity)
        restore_point = find_restore_point(folder, identity, each_epoch=where.each_epoch)
        config = Configuration(dict(self.settings))
        folder = with_local_copies(folder, identity.epoch, restore_point, config, _local_folder())
        key_groups = key_group_range_for(identity.partition, self.parallelism, self.max_parallelism)
        clock = time.perf_counter
        began = clock()
        goes_on = restore_point is not None and restore_point.run_id == identity.run_id
        begins = restore.beginning(directory, folder, owner, identity, restore_point)
        self._refuse_reordered_key(where.uid, None if begins is None else begins.metadata)
        chosen = backend_in_task(self.settings)
        writing = chosen.base_rules.writing(
            restore_point,
            identity,
            asynchronous=chosen.backend.description.level(Capability.ASYNC_SNAPSHOT).usable,
            now_ms=time.time_ns() // 1_000_000,
        )
        track_changes = writing is not Writing.WHOLE
        with contextlib.ExitStack() as opened:
            backend = self._restored_backend(begins, key_groups, track_changes=track_changes)
            opened.callback(backend.close)
            operator_states = self._restored_operator_states(begins, identity)
            writer = StateWriter(backend, operator_states, folder, chosen.base_rules, where.compression)
            opened.callback(writer.close)
            writer.begin(identity, restore_point, writing)
            restored = clock()
            watermark = self._watermark(begins)
            if watermark is not None and self.event_time is not None:
                backend.advance_watermark(watermark)
            operator = self._operator(backend, operator_states, identity.partition, identity.epoch)
            with BatchSpool(_local_folder()) as spool:
                sides = self._sides(self._checked(key_groups, batches), spool, goes_on=goes_on)
                yield from _evaluate(operator, *sides)
            processed = clock()
            saved = writer.end()
            written = clock()
            manifest = AttemptManifest(
                identity=identity,
                key_groups=key_groups,
                backend=chosen.backend.name,
                backend_version=chosen.backend.description.version,
                states=tuple(meta.to_json() for meta in backend.metas()),
                segments=saved.segments,
                deltas=saved.deltas,
                entries=backend.entries_by_state(),
                rows_in=operator.rows_in,
                rows_out=operator.rows_out,
                largest_event_time=operator.largest_event_time,
                watermark=watermark,
                sync_ms=saved.synchronous_ms,
                write_ms=(written - processed) * 1000.0 - saved.synchronous_ms,
                restore_ms=(restored - began) * 1000.0,
                process_ms=(processed - restored) * 1000.0,
                bytes=saved.bytes,
                key_columns=self.key_columns,
                operator_state=saved.operator_state,
                ttl_ms={meta.name: meta.expiry.ttl_ms for meta in backend.metas() if meta.expiry is not None},
                bases=saved.bases,
            )
        shared: Collection[str] = ()
        if track_changes and restore_point is not None:
            shared = restore_point.parts[identity.partition].kept_files
        path = folder.write_manifest(manifest, shared)
        acknowledge(where.accumulator, where.folder, Acknowledgement(identity, path))

    def _watermark(self, begins: StoredState | None) -> int | None:
        """Return the watermark of the epoch: the same in all of its tasks, and in each repetition."""
        if begins is None:
            return None
        # Kept by a run without event time too, so that it does not go back in the next one that has it.
        return begins.metadata.watermark(None if self.event_time is None else self.event_time.delay_ms)

    def _open_backend(
        self, key_groups: KeyGroupRange, handles: Sequence[StateHandle], *, track_changes: bool = False
    ) -> KeyedStateBackend:
        chosen = backend_in_task(self.settings)
        return KeyedStateBackend.open(
            chosen.backend,
            key_serializer=key_serializer_for(self.key_types),
            key_groups=key_groups,
            max_parallelism=self.max_parallelism,
            options=chosen.options,
            handles=handles,
            local_base=_local_folder(),
            track_changes=track_changes,
            generic_types=chosen.generic_types,
            event_time=self.event_time is not None,
        )

    def _restored_backend(
        self, begins: StoredState | None, key_groups: KeyGroupRange, *, track_changes: bool
    ) -> KeyedStateBackend:
        with contextlib.ExitStack() as handles_in_use:
            handles: list[SegmentHandle | ChainHandle] = []
            if begins is not None:
                handles = handles_for(begins.metadata, begins.storage, key_groups)
            for handle in handles:
                handles_in_use.callback(handle.close)
            return self._open_backend(key_groups, handles, track_changes=track_changes)

    def _operator_states(self, restored: Iterable[RestoredOperatorState] = ()) -> OperatorStateBackend:
        generic_types = backend_in_task(self.settings).generic_types
        return OperatorStateBackend(restored, generic_types=generic_types)

    def _restored_operator_states(
        self, begins: StoredState | None, identity: TaskIdentity
    ) -> OperatorStateBackend:
        if begins is None:
            return self._operator_states()
        restored = read_operator_state(
            begins.storage,
            [part.operator_state for part in begins.metadata.parts],
            identity.partition,
            self.parallelism,
            restarted=begins.metadata.run_id != identity.run_id,
        )
        return self._operator_states(restored)

    def _sides(
        self, batches: Iterator[pa.RecordBatch], spool: BatchSpool, *, goes_on: bool = False
    ) -> tuple[Iterable[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the rows of the broadcast side and, to be read after them, those of keys.

        Parameters
        ----------
        batches : iterator of pyarrow.RecordBatch
            All that Spark gives the task.
        spool : BatchSpool
        goes_on : bool
            Whether the run has had an epoch before: it has processed the rows of a batch DataFrame already.
        """
        side, broadcast_rows = self.broadcast, iter(())
        if side is not None and side.rows is None:
            broadcast_rows, batches = side.separate(batches, spool)
        elif side is not None and side.rows is not None and (side.each_epoch or not goes_on):
            broadcast_rows = side.batches(side.rows)
        return broadcast_rows, (batch.rename_columns(self.columns) for batch in batches)

    def _operator(
        self,
        backend: KeyedStateBackend,
        operator_states: OperatorStateBackend,
        partition: int,
        epoch: int | None,
    ) -> KeyedOperator:
        try:
            function = cloudpickle.loads(self.function)
        except Exception as error:  # whatever importing the user's modules raises
            raise FunctionTransportError(self.function_name, "unpack", error) from error
        return KeyedOperator(
            function,
            backend,
            key_columns=[name for name, _ in self.key_columns],
            key_group_column=KEY_GROUP_COLUMN,
            output=self.output,
            epoch=epoch,
            operator_states=operator_states,
            task=partition,
            parallelism=self.parallelism,
            time_column=None if self.event_time is None else self.event_time.column,
        )

    def _checked(
        self, key_groups: KeyGroupRange, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Refuse rows of key groups that this task does not own; their state would be lost."""
        for batch in batches:
            column = batch.column(KEY_GROUP_COLUMN).to_numpy()
            outside = (column < key_groups.start) | (column > key_groups.end)
            if outside.any():
                stray = int(column[int(outside.argmax())])
                owner = operator_index_for_key_group(stray, self.parallelism, self.max_parallelism)
                uid = None if self.checkpointing is None else self.checkpointing.uid
                raise MisroutedRowsError(uid, task_context().partitionId(), self.parallelism, stray, owner)
            yield batch

    def _refuse_reordered_key(self, uid: str, restore_point: CheckpointMetadata | None) -> None:
        """Refuse the same key columns in another order: their types may agree, and no key would be found."""
        if restore_point is None:
            return
        before = [name for name, _ in restore_point.key_columns]
        now = [name for name, _ in self.key_columns]
        if before != now and sorted(before) == sorted(now):
            raise KeyColumnsReorderedError(uid, before, now)


def pack_function(function: KeyedProcessFunction) -> bytes:
    """Return the function in the form in which it travels to the tasks.

    Raises
    ------
    FunctionTransportError
    """
    try:
        packed: bytes = cloudpickle.dumps(function)
    except Exception as error:  # whatever an object's own way of being pickled raises
        raise FunctionTransportError(type(function).__name__, "pack", error) from error
    return packed


def _evaluate(
    operator: KeyedOperator, broadcast_rows: Iterable[pa.RecordBatch], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the operator over its rows; its function is closed also where it, or its reader, gives up."""
    try:
        operator.open()
        yield from operator.process_broadcast(broadcast_rows)
        yield from operator.process(batches)
    except BaseException:
        # The first error is the one to report.
        with contextlib.suppress(Exception):
            operator.close()
        raise
    operator.close()


def _keep_cause(error: KeyedStateError) -> None:
    """Put the traceback of the user's own error into the message.

    PySpark's simplified tracebacks, its default, show the driver no cause; and it is what the user looks for.
    """
    if error.__cause__ is not None and os.environ.get("SPARK_SIMPLIFIED_TRACEBACK"):
        cause = "".join(traceback.format_exception(error.__cause__))
        error.args = (f"the error below was caused by\n\n{cause}\n{error}",)


def _refuse_second_operator(folder: OperatorFolder, identity: TaskIdentity) -> None:
    """Refuse two operators of one uid in one run: each would begin from the other's state.

    Called after the attempt's own marker was written, so that of two operators at least one sees the other.
    """
    operator = operator_of(identity.nonce)
    for attempt in folder.attempts(identity.epoch):
        if attempt.run_id == identity.run_id and operator_of(attempt.nonce) != operator:
            raise DuplicateUidError(identity.uid)


def _local_folder() -> Path | None:
    """Return Spark's first local folder on this executor; None where it names none that is there."""
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and os.path.isdir(folder):
            return Path(folder)
    return None
