"""A task of an operator in a run: one partition of its state, and the epochs of this partition."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keyedstate.checkpoint.format.manifest import CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.partition import Partition
from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.local.run.partitions import BoundedPartition


@dataclass(frozen=True)
class RunIdentity:
    """The identity of a run of a program; all runs over one checkpoint folder have the same `query_id`."""

    query_id: str
    run_id: str


def new_operator_id() -> str:
    """Return an id for an operator that begins, by which two of one uid are told apart."""
    return uuid.uuid4().hex[:16]


class OperatorTask:
    """The partition `number` of an operator, open for a run; raises as `EpochStart.of` and `Partition`.

    All tasks of an operator have the same `operator_id`, which `new_operator_id` returns. `epoch` is the
    first one of the run, and `restored` the checkpoint from which the state was restored. `partition` is
    another one after an epoch whose state the next one does not continue.
    """

    def __init__(
        self, plan: PartitionPlan, number: int, identity: RunIdentity, operator_id: str, epoch: int
    ) -> None:
        self._plan = plan
        self._number = number
        self._identity = identity
        self._operator_id = operator_id
        self.restored: CheckpointMetadata | None = None
        self._start: EpochStart | None = None
        self.partition: Partition | BoundedPartition
        if plan.location is None:
            self.partition = BoundedPartition(plan, number)
            return
        self._start = self._epoch_start(epoch)
        if self._start.stored is not None:
            self.restored = self._start.stored.metadata
        self.partition = self._opened(self._start)

    def close_function(self) -> None:
        """Close the function behind its last row, before `finish`; raises as `Partition.close_function`."""
        assert isinstance(self.partition, Partition), "only kept state has epochs"
        self.partition.close_function()

    def finish(
        self, positions: Mapping[str, Any], in_flight: Sequence[pa.RecordBatch] = ()
    ) -> Acknowledgement:
        """Write the state after the epoch, with the positions of the sources, and rows before these."""
        assert isinstance(self.partition, Partition), "only kept state has epochs"
        assert self._start is not None, "an epoch has begun"
        return self.partition.finish(self._start, positions=positions, in_flight=in_flight)

    def begin_epoch(self, epoch: int) -> None:
        """Continue with the next epoch, when the checkpoint of the one before is published."""
        assert isinstance(self.partition, Partition), "only kept state has epochs"
        self._start = self._epoch_start(epoch)
        if self.partition.follow(self._start):
            self.partition.begin(self._start)
        else:
            self.partition.close()
            self.partition = self._opened(self._start)

    def _opened(self, start: EpochStart) -> Partition:
        partition = Partition(self._plan, start, stays=True)
        partition.begin(start)
        return partition

    def _epoch_start(self, epoch: int) -> EpochStart:
        assert self._plan.location is not None, "only kept state has epochs"
        identity = TaskIdentity(
            uid=self._plan.location.uid,
            query_id=self._identity.query_id,
            run_id=self._identity.run_id,
            epoch=epoch,
            partition=self._number,
            parallelism=self._plan.parallelism,
            max_parallelism=self._plan.max_parallelism,
            attempt=0,
            nonce=f"{self._operator_id}-{uuid.uuid4().hex}",
        )
        return EpochStart.of(self._plan, self._plan.location, identity)
