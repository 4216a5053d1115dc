"""An operator in a run whose rows are processed in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from keyedstate.checkpoint import Acknowledgement, CheckpointMetadata
from keyedstate.local.run.input_channels import InputChannels
from keyedstate.local.run.operator_task import OperatorTask, RunIdentity, new_operator_id
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.local.sources.source import SourceChannel
from keyedstate.runtime.timers import AtEnd
from keyedstate.state.clock import Clock


class RunningOperator:
    """One operator of a run, with its only task.

    Parameters
    ----------
    epoch : int
        The first one of the run.
    clock : callable
        Returns processing time in milliseconds.

    Raises
    ------
    CheckpointError, StateError, FunctionTransportError
        As `OperatorTask`.
    """

    def __init__(self, plan: OperatorPlan, identity: RunIdentity, epoch: int, clock: Clock) -> None:
        self.plan = plan
        self._inputs = InputChannels(plan, clock)
        self._task = OperatorTask(plan.partitions, 0, identity, new_operator_id(), epoch)
        try:
            self._inputs.restore(self._task.restored, self._task.watermark)
        except BaseException:
            self._task.close()
            raise

    @property
    def restored(self) -> CheckpointMetadata | None:
        """The checkpoint from which the state was restored."""
        return self._task.restored

    @property
    def channels(self) -> list[tuple[int, SourceChannel]]:
        """The channels of its sources that have not ended, each with the number of the input."""
        return self._inputs.reading

    def readable(self) -> list[tuple[int, SourceChannel]]:
        """Begin a turn of the run; return the channels to read in it."""
        self._inputs.count_turn()
        return self._inputs.readable()

    def begin(self) -> Iterator[pa.RecordBatch]:
        """Process what comes before the channels: the broadcast side, and rows that were in flight."""
        broadcast = self.plan.read.broadcast
        for channel in () if broadcast is None else broadcast.channels():
            while (batch := channel.read()) is not None:
                yield from self._task.process_broadcast(batch)
        yield from self._task.process_rows_in_flight()

    def receive(self, number: int, channel: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process rows of one of the inputs; `advance` then moves time."""
        if batch.num_rows:
            yield from self._task.process(self._inputs.keyed(number, channel, batch))

    def advance(self) -> Iterator[pa.RecordBatch]:
        """Move the watermark and processing time forward, and fire the timers that are due."""
        yield from self._task.advance(self._inputs.watermark())

    @property
    def has_ended(self) -> bool:
        """Whether all channels of all inputs have ended."""
        return self._inputs.has_ended

    def end_channel(self, number: int, channel: str) -> None:
        """Note that a channel has no more rows."""
        self._inputs.end(number, channel)

    def end(self, at_end: AtEnd) -> Iterator[pa.RecordBatch]:
        """End the rows of an epoch, or of the run."""
        yield from self._task.end(at_end)

    def finish(self) -> Acknowledgement:
        """Write the state after the epoch, with the positions of the sources."""
        return self._task.finish(self._inputs.positions())

    def begin_epoch(self, epoch: int) -> None:
        """Continue with the next epoch after `finish`."""
        self._task.begin_epoch(epoch)

    def close(self) -> None:
        """Close the function and release the state."""
        self._task.close()
