"""An operator in a run: its partition, its event time, its inputs, and its epochs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keyedstate.checkpoint import Acknowledgement, CheckpointMetadata, TaskIdentity
from keyedstate.columns.keyed import with_key_groups
from keyedstate.columns.spark_types import batch_as_spark_reads
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.partition import Partition
from keyedstate.local.run.event_time import OperatorTime
from keyedstate.local.run.partitions import BoundedPartition
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.local.sources.source import Source, SourceChannel
from keyedstate.runtime.timers import AtEnd
from keyedstate.state.clock import BEFORE_TIME, Clock

#: The channel of the rows that another operator yields.
UPSTREAM = "upstream"


@dataclass(frozen=True)
class RunIdentity:
    """The identity of a run of a program.

    Attributes
    ----------
    query_id : str
        The same in all runs over one checkpoint folder.
    run_id : str
    """

    query_id: str
    run_id: str


class RunningOperator:
    """One operator of a run.

    Parameters
    ----------
    plan : OperatorPlan
    clock : callable
        Returns processing time in milliseconds.

    Attributes
    ----------
    plan : OperatorPlan
    channels : list of (int, SourceChannel)
        The channels of its sources that have not ended, each with the number of the input.
    """

    def __init__(self, plan: OperatorPlan, clock: Clock) -> None:
        self.plan = plan
        self.channels: list[tuple[int, SourceChannel]] = []
        self._clock = clock
        self._all_channels: list[tuple[int, SourceChannel]] = []
        self._upstream: list[int] = []
        self._partition: Partition | BoundedPartition | None = None
        self._start: EpochStart | None = None
        #: Differs each time an operator begins, so that two of one uid are told apart.
        self._operator_id = uuid.uuid4().hex[:16]
        self._time = OperatorTime((), None)

    def open(self, identity: RunIdentity, epoch: int) -> CheckpointMetadata | None:
        """Restore the state and move the sources to their positions; return the restored checkpoint.

        Raises as `EpochStart.of` and `Partition`.
        """
        event_times = self.plan.partitions.event_times
        restored = None
        if self.plan.partitions.location is None:
            self._partition = BoundedPartition(self.plan.partitions, 0)
            self._time = OperatorTime(event_times, None)
        else:
            start = self._begin_start(identity, epoch)
            restored = None if start.stored is None else start.stored.metadata
            self._partition = Partition(self.plan.partitions, start, stays=True)
            self._partition.begin(start)
            self._time = OperatorTime(event_times, self._partition.watermark)
        positions = {} if restored is None else restored.positions or {}
        self._open_channels(positions)
        return restored

    def begin_epoch(self, identity: RunIdentity, epoch: int) -> None:
        """Continue with the next epoch after `finish`."""
        assert isinstance(self._partition, Partition), "only kept state has epochs"
        start = self._begin_start(identity, epoch)
        if not self._partition.follow(start):
            self._partition.close()
            self._partition = Partition(self.plan.partitions, start, stays=True)
        self._partition.begin(start)

    def process_broadcast(self) -> Iterator[pa.RecordBatch]:
        """Process the rows of the broadcast side, all of them."""
        broadcast = self.plan.read.broadcast
        if broadcast is None:
            return
        for channel in broadcast.channels():
            while (batch := channel.read()) is not None:
                yield from self._open.process_broadcast([batch])

    def receive(self, number: int, channel: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process rows of one of the inputs; `advance` then moves time."""
        if not batch.num_rows:
            return
        columns = self.plan.read.inputs[number].columns
        rows = columns.with_key_columns(batch_as_spark_reads(batch, columns.given_schema))
        self._time.saw(number, channel, rows, self._clock())
        if self.plan.connected is not None:
            rows = self.plan.connected.union(number, rows)
        partitions = self.plan.partitions
        keys = [name for name, _ in partitions.key_columns]
        yield from self._open.process([with_key_groups(rows, keys, partitions.max_parallelism)])

    def advance(self) -> Iterator[pa.RecordBatch]:
        """Move the watermark and processing time forward, and fire the timers that are due."""
        yield from self._open.advance(self._time.watermark(self._clock()))

    def end_channel(self, number: int, channel: SourceChannel) -> None:
        """Note that a channel has no more rows."""
        self.channels.remove((number, channel))
        self._time.end_channel(number, channel.name)

    def end(self, at_end: AtEnd) -> Iterator[pa.RecordBatch]:
        """End the rows of an epoch, or of the run."""
        yield from self._open.end(at_end)

    def finish(self) -> Acknowledgement:
        """Write the state after the epoch, with the positions of the sources."""
        assert isinstance(self._partition, Partition), "only kept state has epochs"
        assert self._start is not None, "an epoch has begun"
        path = self._partition.finish(self._start, positions=self._positions())
        return Acknowledgement(self._start.identity, path)

    def close(self) -> None:
        """Close the function and release the state."""
        if self._partition is not None:
            self._partition.close()

    @property
    def _open(self) -> Partition | BoundedPartition:
        assert self._partition is not None, "opened"
        return self._partition

    def _begin_start(self, identity: RunIdentity, epoch: int) -> EpochStart:
        partitions = self.plan.partitions
        assert partitions.location is not None, "only kept state has epochs"
        task = TaskIdentity(
            uid=partitions.location.uid,
            query_id=identity.query_id,
            run_id=identity.run_id,
            epoch=epoch,
            partition=0,
            parallelism=partitions.parallelism,
            max_parallelism=partitions.max_parallelism,
            attempt=0,
            nonce=f"{self._operator_id}-{uuid.uuid4().hex}",
        )
        self._start = EpochStart.of(partitions, partitions.location, task)
        return self._start

    def _open_channels(self, positions: Mapping[str, Any]) -> None:
        now = self._clock()
        for number, input_ in enumerate(self.plan.read.inputs):
            stored = positions.get(str(number + 1), {})
            if not isinstance(input_.rows, Source):
                self._upstream.append(number)
                self._time.add_channel(number, UPSTREAM, _times(stored.get(UPSTREAM)), now)
                continue
            for channel in input_.rows.channels():
                position = stored.get(channel.name)
                if position is not None:
                    channel.seek(position["offset"])
                self._time.add_channel(number, channel.name, _times(position), now)
                self._all_channels.append((number, channel))
        self.channels = list(self._all_channels)

    def _positions(self) -> dict[str, Any]:
        """Return the positions as `AttemptManifest.positions` has them."""
        found: dict[str, dict[str, Any]] = {}
        for number in self._upstream:
            times = self._time.times_of(number, UPSTREAM)
            found.setdefault(str(number + 1), {})[UPSTREAM] = {"offset": None, "event_times": times}
        for number, channel in self._all_channels:
            times = self._time.times_of(number, channel.name)
            of_input = found.setdefault(str(number + 1), {})
            of_input[channel.name] = {"offset": channel.offset(), "event_times": times}
        return found


def _times(position: Any) -> dict[str, int]:
    """Return the event times of a stored position that are known."""
    if position is None:
        return {}
    return {name: time for name, time in position["event_times"].items() if time != BEFORE_TIME}
