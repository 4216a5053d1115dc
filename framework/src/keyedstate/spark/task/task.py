"""A task of a keyed operator: one epoch of one partition of a stream, or one partition of a batch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

import cloudpickle
import pyarrow as pa
from pyspark.accumulators import Accumulator

from keyedstate.checkpoint.format.manifest import AttemptManifest, TaskIdentity
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.epoch.configuration import configuration_in_task, storage_in_task
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.local_folders import local_folder
from keyedstate.epoch.partition import Partition, evaluate
from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.errors import KeyedStateError, MisroutedRowsError, TaskContextError
from keyedstate.keygroups import KEY_GROUP_COLUMN, KeyGroupRange, operator_index_for_key_group
from keyedstate.options import HOSTS_EPOCH_TIMEOUT
from keyedstate.runtime.runners import KeyedOperator
from keyedstate.runtime.timers import AtEnd
from keyedstate.spark.checkpoint_location import (
    offsets_in_task,
    operator_number_in_task,
    state_directory_in_task,
)
from keyedstate.spark.hosts.launch import Hosts, HostSettings
from keyedstate.spark.hosts.network.client import HostedEpoch, Sides
from keyedstate.spark.hosts.owners import RemoteAccess, remote_partition, run_on_owner
from keyedstate.spark.hosts.processes import worker_parents
from keyedstate.spark.hosts.task_identity import attempt_identity, task_context
from keyedstate.spark.task.acknowledgements import Update, acknowledge
from keyedstate.spark.task.arrow_batches import MeasuredBatches
from keyedstate.spark.task.broadcast import BroadcastSide, unpacked
from keyedstate.spark.task.failures import with_report
from keyedstate.spark.task.first_rows import FirstRows
from keyedstate.spark.task.publication import publish_after_task
from keyedstate.spark.task.spool import BatchSpool
from keyedstate.spark.task.worker_process import read_at_once, spare_the_collector
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

#: Writes the state of one partition of a bounded input; returns its manifest.
SaveBounded: TypeAlias = (
    "Callable[[int, KeyedStateBackend, OperatorStateBackend, KeyedOperator], AttemptManifest]"
)


@dataclass(frozen=True)
class Acknowledging:
    """How tasks of a streaming query acknowledge attempts to the driver."""

    #: Differs each time an operator is built: distinguishes two operators of one uid.
    operator_id: str
    #: URI of the operator's folder, which identifies its coordinator; empty where only the tasks know it.
    folder: str
    #: None on Spark Connect, where tasks publish checkpoints.
    accumulator: Accumulator[Update] | None


@dataclass(frozen=True)
class OperatorPlan:
    """The plan of one operator, pickled into the function of its tasks."""

    #: `partitions`, pickled; hosts receive these bytes.
    packed: bytes
    #: The real names of the incoming columns.
    columns: tuple[str, ...]
    #: None for a batch DataFrame.
    acknowledging: Acknowledging | None
    broadcast: BroadcastSide | None
    #: Hosts per executor, 0 for one per processor of its machine; None if epochs run in the tasks.
    host_processes: int | None
    #: The broadcast variables of the function.  Spark sends those that it finds while it pickles a task, and
    #: the function is pickled before.
    variables: tuple[Any, ...]
    #: For the hosts of other executors; None if tasks do not use them.
    access: RemoteAccess | None
    #: What the tasks of the query's first epoch get before the rows of its sources.
    first_rows: FirstRows | None = None

    @property
    def partitions(self) -> PartitionPlan:
        """The plan of the partitions, unpickled once in a process."""
        return _unpacked(self.packed)

    @property
    def _uid(self) -> str | None:
        location = self.partitions.location
        return None if location is None else location.uid

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one partition; `mapInArrow` calls this."""
        batches = read_at_once(batches)
        try:
            if self.acknowledging is None:
                yield from self._run_bounded(batches)
            else:
                plan = self._in_query(self.acknowledging)
                assert plan.acknowledging is not None, "as before"
                yield from plan._run_epoch(plan.acknowledging, batches)
        except KeyedStateError as error:
            raise with_report(error, self._uid).with_traceback(None) from None
        spare_the_collector()

    def _in_query(self, acknowledging: Acknowledging) -> OperatorPlan:
        """Return the plan with the locations that are known in the tasks of the query only."""
        if not acknowledging.folder:
            config = configuration_in_task(self.partitions.settings)
            number = operator_number_in_task(acknowledging.operator_id)
            packed, folder = _located(self.packed, state_directory_in_task(config), offsets_in_task(), number)
            return replace(self, packed=packed, acknowledging=replace(acknowledging, folder=folder))
        location = self.partitions.location
        if location is None or location.offsets is None:
            return self
        offsets = offsets_in_task()
        if offsets is None:
            raise TaskContextError(
                "the operator fires its timers at the end of the input, and the checkpoint location of the "
                "query is unknown, because it was started in another session than that of its DataFrames",
                "Start it in that session.",
            )
        return replace(self, packed=_with_offsets(self.packed, offsets))

    def _run_bounded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, batches = self._partition_of(batches)
        if partition is None:
            return
        with self._bounded(partition) as (backend, _, operator), BatchSpool(local_folder()) as spool:
            sides = self._sides(self._checked(backend.key_groups, batches), spool)
            yield from evaluate(operator, *sides, at_end=AtEnd.INPUT)

    def bootstrap(
        self, batches: Iterator[pa.RecordBatch], save: SaveBounded, partition: int | None = None
    ) -> AttemptManifest | None:
        """Run one partition of a bounded input for its state; return the manifest, or None without rows.

        By default the rows identify the partition; without rows it is given.
        """
        try:
            if partition is None:
                partition, batches = self._partition_of(batches)
            if partition is None:
                return None
            with self._bounded(partition) as (backend, states, operator):
                with BatchSpool(local_folder()) as spool:
                    sides = self._sides(self._checked(backend.key_groups, batches), spool)
                    for _ in evaluate(operator, *sides, at_end=AtEnd.NOTHING):
                        pass
                return save(partition, backend, states, operator)
        except KeyedStateError as error:
            raise with_report(error, self._uid).with_traceback(None) from None

    def _partition_of(self, batches: Iterator[pa.RecordBatch]) -> tuple[int | None, Iterator[pa.RecordBatch]]:
        """Return the partition that rows of a bounded input belong to, None without rows, and all rows."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return None, filled
        # Spark may number the partitions differently.
        key_group = first.column(KEY_GROUP_COLUMN)[0].as_py()
        plan = self.partitions
        partition = operator_index_for_key_group(key_group, plan.parallelism, plan.max_parallelism)
        return partition, chain((first,), filled)

    @contextlib.contextmanager
    def _bounded(
        self, partition: int
    ) -> Iterator[tuple[KeyedStateBackend, OperatorStateBackend, KeyedOperator]]:
        plan = self.partitions
        with contextlib.closing(plan.open_backend(plan.key_groups(partition))) as backend:
            states = plan.operator_states()
            yield backend, states, plan.operator(backend, states, partition, None)

    def _run_epoch(
        self, acknowledging: Acknowledging, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        plan = self.partitions
        location = plan.location
        assert location is not None, "an acknowledged attempt has a location"
        identity = attempt_identity(
            location.uid, acknowledging.operator_id, plan.parallelism, plan.max_parallelism
        )
        received = MeasuredBatches(batches)
        with BatchSpool(local_folder()) as spool:

            def sides(continues_run: bool) -> tuple[Iterable[pa.RecordBatch], Iterator[pa.RecordBatch]]:
                key_groups = plan.key_groups(identity.partition)
                rows = self._checked(key_groups, received)
                if self.first_rows is not None and identity.epoch == 0:
                    rows = chain(self.first_rows.of(key_groups), rows)
                return self._sides(rows, spool, continues_run=continues_run)

            if self.host_processes is None:
                acknowledgement = yield from run_in_task(plan, identity, sides)
            else:
                introduction, remote = None, None
                if self.access is not None:
                    introduction = self.access.introduction()
                    remote = remote_partition(introduction, plan.settings, location, identity)
                epoch = HostedEpoch(
                    identity,
                    self.packed,
                    sides,
                    configuration_in_task(plan.settings)[HOSTS_EPOCH_TIMEOUT],
                    introduction=introduction,
                )
                number = identity.partition % (self.host_processes or os.cpu_count() or 1)
                acknowledgement = yield from run_on_owner(
                    epoch,
                    remote,
                    lambda: _hosts(plan.settings).connect(number),
                    lambda identity: run_in_task(plan, identity, sides),
                )
        if acknowledging.accumulator is None:
            publish_after_task(location.directory, plan.settings, acknowledgement.identity)
        else:
            acknowledge(acknowledging.accumulator, acknowledging.folder, acknowledgement, received.row_bytes)

    def _sides(
        self, batches: Iterator[pa.RecordBatch], spool: BatchSpool, *, continues_run: bool = False
    ) -> tuple[Iterable[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the rows of the broadcast side and, to be read after them, the keyed rows.

        If the epoch continues a run, an earlier one has processed the broadcast rows of a batch DataFrame.
        """
        side, broadcast_rows = self.broadcast, iter(())
        if side is not None and side.rows is None:
            broadcast_rows, batches = side.separate(batches, spool)
        elif side is not None and side.rows is not None and (side.each_epoch or not continues_run):
            broadcast_rows = unpacked(side.rows, side.columns)
        return broadcast_rows, (batch.rename_columns(self.columns) for batch in batches)

    def _checked(
        self, key_groups: KeyGroupRange, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches; raise `MisroutedRowsError` for a key group that the task does not own."""
        for batch in batches:
            column = batch.column(KEY_GROUP_COLUMN).to_numpy()
            outside = (column < key_groups.start) | (column > key_groups.end)
            if outside.any():
                plan = self.partitions
                stray = int(column[int(outside.argmax())])
                owner = operator_index_for_key_group(stray, plan.parallelism, plan.max_parallelism)
                raise MisroutedRowsError(
                    self._uid, task_context().partitionId(), plan.parallelism, stray, owner
                )
            yield batch


def run_in_task(
    plan: PartitionPlan, identity: TaskIdentity, sides: Sides
) -> Generator[pa.RecordBatch, None, Acknowledgement]:
    """Run an epoch in this process; yields its output and returns its acknowledgement."""
    assert plan.location is not None, "an acknowledged attempt has a location"
    start = EpochStart.of(plan, plan.location, identity)
    with contextlib.closing(Partition(plan, start)) as partition:
        yield from partition.run(start, *sides(start.continues_run))
        return partition.finish(start)


@lru_cache(maxsize=8)
def _hosts(settings: tuple[tuple[str, Any], ...]) -> Hosts:
    return Hosts(worker_parents(), HostSettings.of(configuration_in_task(settings)))


@lru_cache(maxsize=8)
def _located(packed: bytes, directory: str, offsets: str | None, number: int | None) -> tuple[bytes, str]:
    """Return a plan whose state is in a directory, and the URI of the operator's folder there.

    `offsets` is the folder from which it has the time of a micro-batch, if it needs that, and `number` that
    of the operator in the query, which completes its uid.
    """
    plan = _unpacked(packed)
    assert plan.location is not None, "an acknowledged attempt has a location"
    storage = storage_in_task(directory, plan.settings)
    uid = plan.location.uid if number is None else f"{plan.location.uid}-{number}"
    folder = OperatorFolder(storage, uid)
    offsets = None if plan.location.offsets is None else offsets
    location = replace(plan.location, uid=uid, directory=storage.uri, offsets=offsets)
    return cloudpickle.dumps(replace(plan, location=location)), folder.storage.uri


@lru_cache(maxsize=8)
def _with_offsets(packed: bytes, offsets: str) -> bytes:
    """Return a plan that has the folder of Spark's log of offsets."""
    plan = _unpacked(packed)
    assert plan.location is not None, "an acknowledged attempt has a location"
    located: bytes = cloudpickle.dumps(replace(plan, location=replace(plan.location, offsets=offsets)))
    return located


@lru_cache(maxsize=8)
def _unpacked(packed: bytes) -> PartitionPlan:
    plan: PartitionPlan = cloudpickle.loads(packed)
    return plan
