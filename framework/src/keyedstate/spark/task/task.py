"""What runs inside a task: who it is, its two sides of rows, the acknowledgement; and bounded inputs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

import cloudpickle
import pyarrow as pa
from pyspark import Accumulator

from keyedstate.checkpoint import Acknowledgement, AttemptManifest, TaskIdentity
from keyedstate.epoch.configuration import configuration_in_task
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.local_folders import local_folder
from keyedstate.epoch.partition import Partition, evaluate
from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.errors import KeyedStateError, MisroutedRowsError
from keyedstate.keygroups import KEY_GROUP_COLUMN, KeyGroupRange, operator_index_for_key_group
from keyedstate.options import HOSTS_EPOCH_TIMEOUT
from keyedstate.runtime.runners import KeyedOperator
from keyedstate.runtime.timers import AtEnd
from keyedstate.spark.hosts.launch import Hosts, HostSettings
from keyedstate.spark.hosts.network.client import HostedEpoch, Sides
from keyedstate.spark.hosts.owners import RemoteAccess, kept_elsewhere, run_where_kept
from keyedstate.spark.hosts.processes import worker_parents
from keyedstate.spark.hosts.task_identity import attempt_identity, task_context
from keyedstate.spark.task.acknowledgements import Update, acknowledge
from keyedstate.spark.task.broadcast import BroadcastSide
from keyedstate.spark.task.failures import told_to_driver
from keyedstate.spark.task.spool import BatchSpool
from keyedstate.spark.task.worker_process import read_at_once, spare_the_collector
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

#: Writes the state of one partition of a bounded input, and describes what it has written.
SaveBounded: TypeAlias = (
    "Callable[[int, KeyedStateBackend, OperatorStateBackend, KeyedOperator], AttemptManifest]"
)


@dataclass(frozen=True)
class Acknowledging:
    """How the driver hears of the attempts of an operator in a streaming query.

    Attributes
    ----------
    operator_id : str
        Another one each time an operator is built: tells two operators of one uid apart.
    folder : str
        The operator's own folder, by which the driver knows the coordinator.
    accumulator : Accumulator
    """

    operator_id: str
    folder: str
    accumulator: Accumulator[Update]


@dataclass(frozen=True)
class OperatorPlan:
    """All that the tasks of one operator need to know; it travels inside their function.

    Attributes
    ----------
    packed : bytes
        `partitions`, pickled: a host gets these very bytes.
    columns : tuple of str
        The real names of the columns that come in, in their order.
    acknowledging : Acknowledging or None
        None for a batch DataFrame.
    broadcast : BroadcastSide or None
        The rows that every task gets, where there are any.
    host_processes : int or None
        How many hosts an executor has, 0 for one per processor of its machine; None where epochs run in the
        tasks themselves.
    variables : tuple of pyspark.Broadcast
        The broadcast variables that the function uses: Spark sends those that it sees when it pickles what
        runs in a task, and the function is pickled by then.
    access : RemoteAccess or None
        What lets tasks use hosts of other executors; None where they shall not.
    """

    packed: bytes
    columns: tuple[str, ...]
    acknowledging: Acknowledging | None
    broadcast: BroadcastSide | None
    host_processes: int | None
    variables: tuple[Any, ...]
    access: RemoteAccess | None

    @classmethod
    def of(
        cls,
        partitions: PartitionPlan,
        columns: tuple[str, ...],
        acknowledging: Acknowledging | None,
        broadcast: BroadcastSide | None,
        host_processes: int | None,
        variables: tuple[Any, ...],
        access: RemoteAccess | None,
    ) -> OperatorPlan:
        """Return the plan of the tasks that run these partitions."""
        packed = cloudpickle.dumps(partitions)
        return cls(packed, columns, acknowledging, broadcast, host_processes, variables, access)

    @property
    def partitions(self) -> PartitionPlan:
        """What runs any partition."""
        return _unpacked(self.packed)

    @property
    def _uid(self) -> str | None:
        place = self.partitions.location
        return None if place is None else place.uid

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one partition; what `mapInArrow` calls."""
        batches = read_at_once(batches)
        try:
            if self.acknowledging is None:
                yield from self._run_bounded(batches)
            else:
                yield from self._run_epoch(self.acknowledging, batches)
        except KeyedStateError as error:
            raise told_to_driver(error, self._uid) from None
        spare_the_collector()

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
                with BatchSpool(local_folder()) as spool:
                    sides = self._sides(self._checked(backend.key_groups, batches), spool)
                    for _ in evaluate(operator, *sides, at_end=AtEnd.NOTHING):
                        pass
                return save(partition, backend, states, operator)
        except KeyedStateError as error:
            raise told_to_driver(error, self._uid) from None

    def _partition_of(self, batches: Iterator[pa.RecordBatch]) -> tuple[int | None, Iterator[pa.RecordBatch]]:
        """Return which partition of a bounded input the rows are of, None without any, and all rows."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return None, filled
        # However Spark counts the partitions: the rows say which it is.
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
        place = plan.location
        assert place is not None, "what is acknowledged has a place"
        identity = attempt_identity(
            place.uid, acknowledging.operator_id, plan.parallelism, plan.max_parallelism
        )
        with BatchSpool(local_folder()) as spool:

            def sides(goes_on: bool) -> tuple[Iterable[pa.RecordBatch], Iterator[pa.RecordBatch]]:
                rows = self._checked(plan.key_groups(identity.partition), batches)
                return self._sides(rows, spool, goes_on=goes_on)

            if self.host_processes is None:
                path = yield from run_in_task(plan, identity, sides)
            else:
                introduction = None if self.access is None else self.access.introduction()
                kept = None
                if introduction is not None:
                    kept = kept_elsewhere(introduction, plan.settings, place, identity)
                epoch = HostedEpoch(
                    identity,
                    self.packed,
                    sides,
                    configuration_in_task(plan.settings)[HOSTS_EPOCH_TIMEOUT],
                    introduction=introduction,
                )
                number = identity.partition % (self.host_processes or os.cpu_count() or 1)
                identity, path = yield from run_where_kept(
                    epoch,
                    kept,
                    lambda: _hosts(plan.settings).connect(number),
                    lambda identity: run_in_task(plan, identity, sides),
                )
        acknowledge(acknowledging.accumulator, acknowledging.folder, Acknowledgement(identity, path))

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

    def _checked(
        self, key_groups: KeyGroupRange, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Refuse rows of key groups that this task does not own; their state would be lost."""
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
) -> Generator[pa.RecordBatch, None, str]:
    """Run an epoch in this process, with a partition of its own; returns the path of its manifest."""
    assert plan.location is not None, "what is acknowledged has a place"
    beginning = EpochStart.of(plan, plan.location, identity)
    with contextlib.closing(Partition(plan, beginning)) as partition:
        yield from partition.run(beginning, *sides(beginning.continues_run))
        return partition.finish(beginning)


@lru_cache(maxsize=8)
def _hosts(settings: tuple[tuple[str, Any], ...]) -> Hosts:
    config = configuration_in_task(settings)
    return Hosts(worker_parents(), HostSettings.of(config))


@lru_cache(maxsize=8)
def _unpacked(packed: bytes) -> PartitionPlan:
    plan: PartitionPlan = cloudpickle.loads(packed)
    return plan
