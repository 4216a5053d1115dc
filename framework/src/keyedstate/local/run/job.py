"""A run: operators that feed each other, read from sources in this process, and checkpointed together.

Rows of one channel after the other pass through all operators before the next are read. Between two batches
nothing is on its way, so that a checkpoint there is one of all operators and sources.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Mapping

import pyarrow as pa

from keyedstate.local.run.chain import Chain
from keyedstate.local.run.checkpoints import Checkpoints
from keyedstate.local.run.elements import Committed, Element, Prepare, Restored
from keyedstate.local.run.input_channels import upstream_channel
from keyedstate.local.run.operator import RunningOperator
from keyedstate.local.run.operator_task import RunIdentity
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.local.run.stop_request import StopRequest
from keyedstate.local.sources.source import SourceChannel
from keyedstate.runtime.timers import AtEnd
from keyedstate.state.clock import system_clock

#: Seconds to wait where no channel has rows.
_PAUSE = 0.005


class Job:
    """A run of a chain of operators.

    Parameters
    ----------
    drain : bool
        Whether all event-time timers fire when the input is over, although state is kept.
    all_or_nothing : bool
        Whether the only checkpoint is that of the end, because the result is in memory until then: after a
        failure or Ctrl-C all rows come again.
    """

    def __init__(self, chain: Chain, *, drain: bool = False, all_or_nothing: bool = False) -> None:
        self._chain = chain
        self._drain = drain
        self._all_or_nothing = all_or_nothing
        self._stop = StopRequest()

    def elements(self) -> Generator[Element, None, None]:
        """Run, and yield the rows of the last operator and what happens to them.

        Where the state is kept, the first Ctrl-C ends the run at a checkpoint, after which KeyboardInterrupt
        is raised, and the second one at once. Raises `UserFunctionError`, `OutputTypeError`, `SourceError`,
        `CheckpointError` and `StateError`.
        """
        with contextlib.ExitStack() as stack:
            checkpoints = None
            identity, epoch = RunIdentity("", ""), 0
            if self._chain.keeps_state:
                checkpoints = Checkpoints(self._chain.plans)
                stack.callback(checkpoints.drain)
                identity, epoch = checkpoints.identity, checkpoints.epoch
                stack.enter_context(self._stop)
            operators = {}
            for plan in self._chain.plans:
                operators[plan] = RunningOperator(plan, identity, epoch, system_clock)
                stack.callback(operators[plan].close)
            running = _Running(operators, self._chain.receivers)
            restored = operators[self._chain.plans[-1]].task.restored
            yield Restored() if checkpoints is None else checkpoints.begun(restored)
            # An operator has its broadcast rows and rows in flight before those that another one yields.
            for operator in reversed(operators.values()):
                yield from running.passed_on(operator, operator.begin())
            if checkpoints is None:
                for batches in running.steps():
                    yield from batches
                yield from running.end(AtEnd.INPUT, is_last=True)
            else:
                yield from self._epochs(running, checkpoints)
        if self._stop.requested:
            raise KeyboardInterrupt

    def _epochs(self, running: _Running, checkpoints: Checkpoints) -> Iterator[Element]:
        operators = list(running.operators.values())
        began = time.monotonic()
        for batches in running.steps():
            yield from batches
            if self._stop.requested:
                break
            is_due = not self._all_or_nothing and time.monotonic() - began >= self._chain.interval_s
            if is_due and any(operator.inputs.reading for operator in operators):
                yield from self._checkpoint(running, checkpoints, AtEnd.EPOCH, is_last=False)
                for operator in operators:
                    operator.task.begin_epoch(checkpoints.epoch)
                began = time.monotonic()
        if self._stop.requested and self._all_or_nothing:
            return
        at_end = AtEnd.DRAINED if self._drain and not self._stop.requested else AtEnd.EPOCH
        yield from self._checkpoint(running, checkpoints, at_end, is_last=True)

    def _checkpoint(
        self, running: _Running, checkpoints: Checkpoints, at_end: AtEnd, *, is_last: bool
    ) -> Iterator[Element]:
        yield from running.end(at_end, is_last=is_last)
        operators = running.operators.values()
        if is_last:
            for operator in operators:
                # An error must come before the checkpoint, behind which no run yields these rows again.
                operator.task.close_function()
        epoch = checkpoints.epoch
        yield Prepare(epoch, checkpoints.identity.run_id)
        checkpoints.publish([each.task.finish(each.inputs.positions()) for each in operators])
        yield Committed(epoch)


class _Running:
    """The operators of a run that is under way."""

    def __init__(
        self,
        operators: dict[OperatorPlan, RunningOperator],
        receivers: Mapping[OperatorPlan, tuple[OperatorPlan, int]],
    ) -> None:
        self.operators = operators
        self._receivers = receivers

    def steps(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield, for each batch of a source, an iterator that processes it and yields the result.

        Channels are read in turn until all have ended.
        """
        while any(operator.inputs.reading for operator in self.operators.values()):
            for operator in self.operators.values():
                operator.inputs.count_turn()
            waiting = [
                (operator, number, channel)
                for operator in self.operators.values()
                for number, channel in operator.inputs.readable()
            ]
            idle = True
            for operator, number, channel in waiting:
                batch = channel.read()
                idle = idle and batch is not None and not batch.num_rows
                yield self._step(operator, number, channel, batch)
            if idle:
                time.sleep(_PAUSE)

    def _step(
        self, operator: RunningOperator, number: int, channel: SourceChannel, batch: pa.RecordBatch | None
    ) -> Iterator[pa.RecordBatch]:
        if batch is None:
            operator.inputs.end(number, channel.name)
        else:
            yield from self.passed_on(operator, operator.receive(number, channel.name, batch))
        # Also without rows: time goes by, and an idle channel holds nothing back.
        for each in self.operators.values():
            yield from self.passed_on(each, each.advance())

    def end(self, at_end: AtEnd, *, is_last: bool) -> Iterator[pa.RecordBatch]:
        """End the rows of an epoch or of the run in all operators, first in those that feed others."""
        for operator in self.operators.values():
            # The operators before it may just have yielded rows, or have ended.
            yield from self.passed_on(operator, operator.advance())
            yield from self.passed_on(operator, operator.task.partition.end(at_end))
            if is_last and operator.inputs.has_ended and operator.plan in self._receivers:
                plan, number = self._receivers[operator.plan]
                self.operators[plan].inputs.end(number, upstream_channel(0))

    def passed_on(
        self, operator: RunningOperator, rows: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Give the rows of an operator to the one that reads them; yield those of the last one."""
        receiver = self._receivers.get(operator.plan)
        if receiver is None:
            yield from rows
            return
        plan, number = receiver
        reads = self.operators[plan]
        for batch in rows:
            yield from self.passed_on(reads, reads.receive(number, upstream_channel(0), batch))
