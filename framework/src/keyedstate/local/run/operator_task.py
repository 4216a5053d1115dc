"""A task of an operator in a run: one partition of its state, and the epochs of this partition."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keyedstate.checkpoint import Acknowledgement, CheckpointMetadata, TaskIdentity
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.partition import Partition
from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.local.run.partitions import BoundedPartition
from keyedstate.runtime.timers import AtEnd


@dataclass(frozen=True)
class RunIdentity:
    """The identity of a run of a program.

    Attributes
    ----------
    query_id : str
        The same in all runs over one checkpoint folder.
    """

    query_id: str
    run_id: str


def new_operator_id() -> str:
    """Return an id for an operator that begins, by which two of one uid are told apart."""
    return uuid.uuid4().hex[:16]


class OperatorTask:
    """One partition of an operator, open for a run.

    Parameters
    ----------
    number : int
        Of the partition.
    operator_id : str
        As `new_operator_id` returns it; all tasks of an operator have the same one.
    epoch : int
        The first one of the run.

    Attributes
    ----------
    restored : CheckpointMetadata or None
        The checkpoint from which the state was restored.

    Raises
    ------
    CheckpointError, StateError, FunctionTransportError
        As `EpochStart.of` and `Partition`.
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
        self._partition: Partition | BoundedPartition
        if plan.location is None:
            self._partition = BoundedPartition(plan, number)
            return
        self._start = self._epoch_start(epoch)
        if self._start.stored is not None:
            self.restored = self._start.stored.metadata
        self._partition = self._opened(self._start)

    @property
    def watermark(self) -> int | None:
        """The watermark of kept state; None before the first one."""
        return self._partition.watermark if isinstance(self._partition, Partition) else None

    def process_broadcast(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process rows of the broadcast side."""
        yield from self._partition.process_broadcast([batch])

    def process_rows_in_flight(self) -> Iterator[pa.RecordBatch]:
        """Process the rows of an unaligned checkpoint that its state does not contain yet, before others."""
        yield from self._partition.process_rows_in_flight()

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process rows, which have key groups."""
        yield from self._partition.process([batch])

    def advance(self, watermark: int | None) -> Iterator[pa.RecordBatch]:
        """Move the watermark and processing time forward, and fire the timers that are due."""
        yield from self._partition.advance(watermark)

    def end(self, at_end: AtEnd) -> Iterator[pa.RecordBatch]:
        """End the rows of an epoch, or of the run."""
        yield from self._partition.end(at_end)

    def finish(
        self, positions: Mapping[str, Any], in_flight: Sequence[pa.RecordBatch] = ()
    ) -> Acknowledgement:
        """Write the state after the epoch, with the positions of the sources, and rows before these."""
        assert isinstance(self._partition, Partition), "only kept state has epochs"
        assert self._start is not None, "an epoch has begun"
        path = self._partition.finish(self._start, positions=positions, in_flight=in_flight)
        return Acknowledgement(self._start.identity, path)

    def begin_epoch(self, epoch: int) -> None:
        """Continue with the next epoch, when the checkpoint of the one before is published."""
        assert isinstance(self._partition, Partition), "only kept state has epochs"
        self._start = self._epoch_start(epoch)
        if self._partition.follow(self._start):
            self._partition.begin(self._start)
        else:
            self._partition.close()
            self._partition = self._opened(self._start)

    def close(self) -> None:
        """Close the function and release the state; calling it again does nothing."""
        self._partition.close()

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
