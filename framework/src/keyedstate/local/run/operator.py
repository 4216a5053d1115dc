"""An operator in a run whose rows are processed in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from keyedstate.local.run.input_channels import InputChannels
from keyedstate.local.run.operator_task import OperatorTask, RunIdentity, new_operator_id
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.state.clock import Clock


class RunningOperator:
    """One operator of a run, with its only task; raises as `OperatorTask`.

    `epoch` is the first one of the run. The inputs are at the positions from which the state was restored.
    """

    def __init__(self, plan: OperatorPlan, identity: RunIdentity, epoch: int, clock: Clock) -> None:
        self.plan = plan
        self.inputs = InputChannels(plan, clock)
        self.task = OperatorTask(plan.partitions, 0, identity, new_operator_id(), epoch)
        try:
            self.inputs.restore(self.task.restored, self.task.partition.watermark)
        except BaseException:
            self.close()
            raise

    def begin(self) -> Iterator[pa.RecordBatch]:
        """Process what comes before the channels: the broadcast side, and rows that were in flight."""
        for batch in self.plan.read.broadcast_rows():
            yield from self.task.partition.process_broadcast([batch])
        yield from self.task.partition.process_rows_in_flight()

    def receive(self, number: int, channel: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process rows of one of the inputs; `advance` then moves time."""
        if batch.num_rows:
            yield from self.task.partition.process([self.inputs.keyed(number, channel, batch)])

    def advance(self) -> Iterator[pa.RecordBatch]:
        """Move the watermark and processing time forward, and fire the timers that are due."""
        yield from self.task.partition.advance(self.inputs.time.watermark())

    def close(self) -> None:
        """Close the function and release the state."""
        self.task.partition.close()
