"""A run of one operator with several subtasks, each in a process of its own.

The process of the run reads the sources, sends rows to the subtasks that own their key groups, and yields
the rows that they send back. A checkpoint begins with a barrier in every channel, behind the rows that were
read so far. Reading continues meanwhile; what a subtask does with rows behind a barrier is its guarantee. A
subtask that has written its state begins the next epoch when the checkpoint is published.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator

import pyarrow as pa

from keyedstate.checkpoint import Acknowledgement
from keyedstate.errors import LocalRunError
from keyedstate.local.channels import Barrier, Watermark
from keyedstate.local.parallel.connection import wait
from keyedstate.local.parallel.feed import Feed
from keyedstate.local.parallel.messages import (
    Begin,
    BroadcastEnd,
    Closed,
    EndEpoch,
    Finished,
    Opened,
    Published,
)
from keyedstate.local.parallel.process import SubtaskProcess
from keyedstate.local.run.checkpoints import Checkpoints
from keyedstate.local.run.elements import Committed, Element, Prepare, Restored
from keyedstate.local.run.input_channels import InputChannels
from keyedstate.local.run.operator_task import RunIdentity, new_operator_id
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.local.run.stop_request import StopRequest
from keyedstate.local.sources.source import Source
from keyedstate.options import (
    AT_LEAST_ONCE,
    CHECKPOINT_ALIGNMENT_TIMEOUT,
    CHECKPOINT_INTERVAL,
    CHECKPOINT_MODE,
    UNALIGNED,
)
from keyedstate.runtime.timers import AtEnd
from keyedstate.state.clock import END_OF_TIME, system_clock

#: Seconds to wait where no channel has rows and nothing arrives.
_PAUSE = 0.005


class ParallelJob:
    """A run of an operator with several subtasks.

    Parameters
    ----------
    plan : OperatorPlan
    drain : bool
        Whether all event-time timers fire when the input is over, although state is kept.
    all_or_nothing : bool
        As of `keyedstate.local.run.job.Job`.
    stop : StopRequest
        Which ends the run at a checkpoint; entered where the state is kept.

    Raises
    ------
    LocalRunError
        Where the operator reads the result of another one.
    """

    def __init__(self, plan: OperatorPlan, *, drain: bool, all_or_nothing: bool, stop: StopRequest) -> None:
        if not all(isinstance(input_.rows, Source) for input_ in plan.read.inputs):
            raise LocalRunError(
                f"the option 'parallelism' with {plan.partitions.parallelism}",
                "the operator reads the result of another one",
                "Leave it out: a chain of operators runs in one process.",
            )
        self._plan = plan
        self._drain = drain
        self._all_or_nothing = all_or_nothing
        self._stop = stop

    def elements(self) -> Generator[Element, None, None]:
        """Run, and yield the rows and what happens to them; as `Job.elements`.

        Raises
        ------
        SubtaskFailedError
            Where the process of a subtask was killed.
        UserFunctionError, OutputTypeError, SourceError
        CheckpointError, StateError
        KeyboardInterrupt
            After the last checkpoint.
        """
        with contextlib.ExitStack() as stack:
            checkpoints = None
            identity, epoch = RunIdentity("", ""), 0
            if self._plan.folder is not None:
                checkpoints = Checkpoints([self._plan])
                stack.callback(checkpoints.drain)
                identity, epoch = checkpoints.identity, checkpoints.epoch
            running = _Running(self._plan, identity, epoch)
            stack.callback(running.close)
            yield Restored() if checkpoints is None else checkpoints.begun(running.restored)
            running.send_broadcast()
            yield from self._epochs(running, checkpoints)
            running.close_functions()
        if self._stop.requested:
            raise KeyboardInterrupt

    def _epochs(self, running: _Running, checkpoints: Checkpoints | None) -> Iterator[Element]:
        interval = self._plan.config[CHECKPOINT_INTERVAL] / 1000.0
        began = time.monotonic()
        is_last = False
        while True:
            found = not is_last and running.read()
            yield from running.receive(0.0 if found else _PAUSE)
            if running.has_ended:
                if checkpoints is not None:
                    yield Prepare(running.epoch, checkpoints.identity.run_id)
                    checkpoints.publish(running.acknowledgements)
                    yield Committed(running.epoch)
                if is_last:
                    return
                running.begin_epoch()
                began = time.monotonic()
            if self._stop.requested and self._all_or_nothing:
                raise KeyboardInterrupt
            if not running.is_ending:
                is_last = self._stop.requested or not running.is_reading
                keeps = checkpoints is not None and not self._all_or_nothing
                if is_last or (keeps and time.monotonic() - began >= interval):
                    running.end_epoch(self._at_end(is_last=is_last), is_last=is_last)

    def _at_end(self, *, is_last: bool) -> AtEnd:
        if self._plan.folder is None:
            return AtEnd.INPUT
        return AtEnd.DRAINED if is_last and self._drain and not self._stop.requested else AtEnd.EPOCH


class _Running:
    """The sources and the subtasks of a run that is under way.

    Attributes
    ----------
    epoch : int
        The current one; without kept state there is one.
    is_ending : bool
        Whether the epoch's barriers were sent.
    acknowledgements : list of Acknowledgement
        Of the subtasks that have written the epoch.
    """

    def __init__(self, plan: OperatorPlan, identity: RunIdentity, epoch: int) -> None:
        self._plan = plan
        self._inputs = InputChannels(plan, system_clock)
        self._subtasks: list[SubtaskProcess] = []
        self._watermark: int | None = None
        self.epoch = epoch
        self.is_ending = False
        self.acknowledgements: list[Acknowledgement] = []
        partitions, operator_id = plan.partitions, new_operator_id()
        try:
            for number in range(partitions.parallelism):
                subtask = SubtaskProcess(number, len(self._inputs.reading))
                self._subtasks.append(subtask)
                aligns = plan.config[CHECKPOINT_MODE] != AT_LEAST_ONCE
                subtask.control.put(Begin(partitions, number, identity, operator_id, epoch, aligns))
            self._unfinished = set(self._subtasks)
            opened = [subtask.next(Opened) for subtask in self._subtasks]
            self.restored = opened[0].restored
            marks = [each.watermark for each in opened if each.watermark is not None]
            self._inputs.restore(self.restored, max(marks, default=None))
        except BaseException:
            self.close()
            raise
        self._feeds = [
            Feed(
                number,
                channel,
                [subtask.channels[place] for subtask in self._subtasks],
                partitions.max_parallelism,
            )
            for place, (number, channel) in enumerate(self._inputs.reading)
        ]

    @property
    def is_reading(self) -> bool:
        """Whether a channel of the sources has not ended."""
        return bool(self._inputs.reading)

    @property
    def has_ended(self) -> bool:
        """Whether all subtasks have finished the epoch."""
        return not self._unfinished

    # -- to the subtasks ------------------------------------------------------------------------------------

    def send_broadcast(self) -> None:
        """Send the rows of the broadcast side to every subtask."""
        broadcast = self._plan.read.broadcast
        for channel in () if broadcast is None else broadcast.channels():
            while (batch := channel.read()) is not None:
                for subtask in self._subtasks:
                    subtask.control.put(batch)
        for subtask in self._subtasks:
            subtask.control.put(BroadcastEnd())

    def read(self) -> bool:
        """Read a batch of each channel whose subtasks have room; return whether there was one."""
        found = False
        readable = self._inputs.readable()
        for feed in self._feeds:
            if feed.waits or (feed.number, feed.channel) not in readable:
                continue
            batch = feed.channel.read()
            if batch is None:
                found = True
                self._inputs.end(feed.number, feed.channel)
            elif batch.num_rows:
                found = True
                feed.send_rows(self._inputs.keyed(feed.number, feed.channel.name, batch))
            # Also without rows: an idle channel holds nothing back.
            self._send_watermark()
            if batch is None:
                feed.send(Watermark(END_OF_TIME))
        return found

    def _send_watermark(self) -> None:
        """Send the watermark of all channels into each of them, if it has grown."""
        watermark = self._inputs.watermark()
        if watermark is not None and (self._watermark is None or watermark > self._watermark):
            self._watermark = watermark
            for feed in self._feeds:
                feed.send(Watermark(watermark))

    def end_epoch(self, at_end: AtEnd, *, is_last: bool) -> None:
        """Send the barriers of the epoch behind the rows that were read."""
        mode, timeout_ms = self._plan.config[CHECKPOINT_MODE], None
        if mode == UNALIGNED and not is_last:
            # The last one has no rows in flight, so that anything may continue from it.
            timeout_ms = self._plan.config[CHECKPOINT_ALIGNMENT_TIMEOUT]
        barrier = Barrier(self.epoch, system_clock(), alignment_timeout_ms=timeout_ms)
        end = EndEpoch(barrier, at_end, is_last, self._inputs.positions())
        for subtask in self._subtasks:
            subtask.control.put(end)
        for feed in self._feeds:
            feed.send(barrier)
        self.is_ending = True

    def begin_epoch(self) -> None:
        """Let the subtasks begin the next epoch."""
        for subtask in self._subtasks:
            subtask.control.put(Published(self.epoch))
        self.epoch += 1
        self.is_ending = False
        self.acknowledgements = []
        self._unfinished = set(self._subtasks)

    # -- from the subtasks ----------------------------------------------------------------------------------

    def receive(self, timeout: float) -> Iterator[pa.RecordBatch]:
        """Wait so many seconds for anything to arrive or to be sent, and yield the rows that have arrived."""
        # A subtask that has finished waits for the next epoch, or has closed its function.
        reading = [subtask for subtask in self._subtasks if subtask in self._unfinished]
        unsent = [
            connection
            for subtask in self._subtasks
            for connection in (subtask.control, *subtask.channels)
            if connection.unsent
        ]
        wait([subtask.control for subtask in reading], unsent, timeout)
        for connection in unsent:
            connection.flush()
        for subtask in reading:
            message = subtask.take()
            if isinstance(message, pa.RecordBatch):
                yield message
            elif isinstance(message, Finished):
                self._unfinished.remove(subtask)
                if message.acknowledgement is not None:
                    self.acknowledgements.append(message.acknowledgement)

    def close_functions(self) -> None:
        """Wait until all subtasks have closed their functions; raises what one of them raised."""
        for subtask in self._subtasks:
            subtask.next(Closed)

    def close(self) -> None:
        """End the processes."""
        for subtask in self._subtasks:
            subtask.disconnect()
        for subtask in self._subtasks:
            subtask.wait()
