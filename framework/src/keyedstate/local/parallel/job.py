"""A run of operators whose subtasks are processes.

The process of the run reads the sources, sends rows to the subtasks that own their key groups, and yields
the rows that the last operator's subtasks send back. It passes those of another operator on to the subtasks
of the one that reads them, for which each subtask is a channel.

A checkpoint begins with a barrier in every channel of the sources, behind the rows that were read so far.
Reading continues meanwhile; what a subtask does with rows behind a barrier is its guarantee. A subtask sends
its barrier on, behind the rows of the epoch. When all subtasks of all operators have written their state, the
checkpoint is published, and they begin the next epoch.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator, Iterator

import pyarrow as pa

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
from keyedstate.errors import CheckpointTimeoutError, SubtaskFailedError
from keyedstate.local.channels.elements import Barrier
from keyedstate.local.parallel.connection import wait
from keyedstate.local.parallel.feed import Feed
from keyedstate.local.parallel.fork_server import ForkServer
from keyedstate.local.parallel.messages import Closed, Finished, MoreFollow
from keyedstate.local.parallel.operator import ParallelOperator
from keyedstate.local.parallel.process import SubtaskProcess
from keyedstate.local.run.chain import Chain
from keyedstate.local.run.checkpoints import Checkpoints
from keyedstate.local.run.elements import Committed, Element, Prepare, Restored
from keyedstate.local.run.operator_task import RunIdentity
from keyedstate.local.run.stop_request import StopRequest
from keyedstate.options import CHECKPOINT_TIMEOUT
from keyedstate.runtime.timers import AtEnd

_log = logging.getLogger(__name__)

#: Seconds to wait where no channel has rows and nothing arrives.
_PAUSE = 0.005
#: Seconds that a turn of the run counts at most towards the timeout of a checkpoint.
_LONGEST_TURN = 1.0


class ParallelJob:
    """A run of a chain of operators whose subtasks are processes.

    `drain` and `all_or_nothing` are those of `keyedstate.local.run.job.Job`. The stop request, which ends the
    run at a checkpoint, is entered where the state is kept.
    """

    def __init__(self, chain: Chain, *, drain: bool, all_or_nothing: bool, stop: StopRequest) -> None:
        self._chain = chain
        self._drain = drain
        self._all_or_nothing = all_or_nothing
        self._stop = stop

    def elements(self) -> Generator[Element, None, None]:
        """Run, and yield the rows and what happens to them; raises as `Job.elements`.

        Also raises `SubtaskFailedError` where the process of a subtask was killed, and
        `CheckpointTimeoutError`.
        """
        with contextlib.ExitStack() as stack:
            checkpoints = None
            identity, epoch = RunIdentity("", ""), 0
            if self._chain.keeps_state:
                checkpoints = Checkpoints(self._chain.plans)
                stack.callback(checkpoints.drain)
                identity, epoch = checkpoints.identity, checkpoints.epoch
            running = _Running(self._chain)
            stack.callback(running.close)
            restored = running.open(identity, epoch)
            yield Restored() if checkpoints is None else checkpoints.begun(restored)
            running.send_broadcast()
            yield from self._epochs(running, checkpoints)
            running.wait_until_closed()
        if self._stop.requested:
            raise KeyboardInterrupt

    def _epochs(self, running: _Running, checkpoints: Checkpoints | None) -> Iterator[Element]:
        epoch = 0 if checkpoints is None else checkpoints.epoch
        began = time.monotonic()
        is_last = is_limited = False
        while True:
            found = not is_last and running.read()
            yield from running.receive(0.0 if found else _PAUSE)
            if running.has_ended:
                if checkpoints is not None:
                    yield Prepare(epoch, checkpoints.identity.run_id)
                    checkpoints.publish(running.acknowledgements)
                    yield Committed(epoch)
                if is_last:
                    return
                running.begin_epoch(epoch)
                epoch += 1
                began = time.monotonic()
            elif running.is_ending and is_limited and checkpoints is not None:
                late = running.late(epoch)
                if late is not None:
                    checkpoints.expire()
                    raise late
            if self._stop.requested and self._all_or_nothing:
                raise KeyboardInterrupt
            if not running.is_ending:
                is_last = self._stop.requested or not running.is_reading
                keeps = checkpoints is not None and not self._all_or_nothing
                if is_last or (keeps and time.monotonic() - began >= self._chain.interval_s):
                    at_end = self._at_end(is_last=is_last)
                    running.end_epoch(epoch, at_end, is_last=is_last)
                    # All timers of the state take as long as they take.
                    is_limited = at_end is AtEnd.EPOCH

    def _at_end(self, *, is_last: bool) -> AtEnd:
        if not self._chain.keeps_state:
            return AtEnd.INPUT
        return AtEnd.DRAINED if is_last and self._drain and not self._stop.requested else AtEnd.EPOCH


class _Running:
    """The operators of a run that is under way."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._operators = {plan: ParallelOperator(plan) for plan in chain.plans}
        self._server = ForkServer()
        #: By subtask the operator that reads its rows, and their channel there; not of the last operator.
        self._receivers: dict[SubtaskProcess, tuple[ParallelOperator, Feed]] = {}
        #: Whether the barriers of the current epoch were sent.
        self.is_ending = False
        self._patience = _Patience()

    def open(self, identity: RunIdentity, epoch: int) -> CheckpointMetadata | None:
        """Start the processes; return the checkpoint that the last operator has restored."""
        for operator in self._operators.values():
            operator.start(self._server, identity, epoch)
        for operator in self._operators.values():
            operator.open()
        for plan, (receiver, number) in self._chain.receivers.items():
            reads = self._operators[receiver]
            for subtask in self._operators[plan].subtasks:
                self._receivers[subtask] = reads, reads.from_subtask(number, subtask.number)
        return operator.restored

    def send_broadcast(self) -> None:
        """Send the rows of the broadcast sides, which come before others."""
        for operator in self._operators.values():
            operator.send_broadcast()

    @property
    def is_reading(self) -> bool:
        """Whether a channel of the sources has not ended."""
        return any(operator.inputs.reading for operator in self._operators.values())

    @property
    def has_ended(self) -> bool:
        """Whether all subtasks have finished the epoch."""
        return not any(operator.unfinished for operator in self._operators.values())

    @property
    def acknowledgements(self) -> list[Acknowledgement]:
        """Those of all subtasks that have written the epoch."""
        return [each for operator in self._operators.values() for each in operator.acknowledgements]

    def read(self) -> bool:
        """Read a batch of each channel of the sources that has room; return whether there was one."""
        found = [operator.read() for operator in self._operators.values()]
        return any(found)

    def receive(self, timeout: float) -> Iterator[pa.RecordBatch]:
        """Wait so many seconds for anything to arrive or to be sent, and pass on what has arrived.

        Rows of the last operator are yielded.
        """
        # A subtask that has finished waits for the next epoch, or has closed its function. The rows of one
        # wait in its connection, and then in the subtask, while those that receive them have no room.
        reading = [
            (operator, subtask)
            for operator in self._operators.values()
            for subtask in operator.unfinished
            if self._has_room(subtask)
        ]
        unsent = [
            connection
            for operator in self._operators.values()
            for subtask in operator.subtasks
            for connection in (subtask.control, *subtask.channels)
            if connection.unsent
        ]
        wait([subtask.control for _, subtask in reading], unsent, timeout)
        for connection in unsent:
            connection.flush()
        for operator, subtask in reading:
            message = subtask.take()
            if isinstance(message, Finished):
                operator.finish(subtask, message)
            elif subtask in self._receivers:
                receiver, feed = self._receivers[subtask]
                if isinstance(message, pa.RecordBatch):
                    receiver.send_rows(feed, message)
                elif isinstance(message, MoreFollow):
                    receiver.expect_more(feed)
                elif isinstance(message, Barrier):
                    receiver.pass_barrier(feed, sender_has_ended=operator.inputs.has_ended)
            elif isinstance(message, pa.RecordBatch):
                yield message
        for operator in self._operators.values():
            operator.count_turn()
            operator.send_watermark()

    def _has_room(self, subtask: SubtaskProcess) -> bool:
        """Return whether what a subtask sends next can be passed on.

        Behind its barrier that is only the end of the epoch. It must not wait for a full channel: those that
        receive its rows read on after all subtasks have finished.
        """
        if subtask not in self._receivers:
            return True
        receiver, feed = self._receivers[subtask]
        return not feed.waits or not receiver.expects_rows(feed)

    def end_epoch(self, epoch: int, at_end: AtEnd, *, is_last: bool) -> None:
        """Send the barriers of an epoch behind the rows that were read."""
        for operator in self._operators.values():
            operator.end_epoch(epoch, at_end, is_last=is_last)
        self.is_ending = True
        self._patience = _Patience()

    def late(self, epoch: int) -> CheckpointTimeoutError | None:
        """Return an error if the subtasks take too long to finish an epoch."""
        waited_ms = self._patience.waited_ms()
        for operator in self._operators.values():
            timeout_ms = operator.plan.config[CHECKPOINT_TIMEOUT]
            if operator.unfinished and waited_ms > timeout_ms:
                numbers = [subtask.number for subtask in operator.unfinished]
                name, count = operator.plan.name, len(operator.subtasks)
                return CheckpointTimeoutError(name, epoch, numbers, count, timeout_ms)
        return None

    def begin_epoch(self, published: int) -> None:
        """Let the subtasks begin the next epoch, when the checkpoint of the last one is published."""
        for operator in self._operators.values():
            operator.begin_epoch(published)
        self.is_ending = False

    def wait_until_closed(self) -> None:
        """Wait until all subtasks have released their state; raises what one of them raised."""
        for operator in self._operators.values():
            for subtask in operator.subtasks:
                try:
                    subtask.next(Closed)
                except SubtaskFailedError as error:
                    if not self._chain.keeps_state:
                        raise
                    # All rows are in the last checkpoint: a run that starts again from it would yield none.
                    _log.warning(
                        "subtask %d of %r failed after the last checkpoint: %s. No row is lost.",
                        error.subtask,
                        error.operator,
                        error.reason,
                    )

    def close(self) -> None:
        """End the processes."""
        for operator in self._operators.values():
            for subtask in operator.subtasks:
                subtask.close()
        self._server.close()


class _Patience:
    """Measures how long the subtasks have had time for an epoch.

    While a source blocks, or the program does something else than to ask for the next rows, nothing is
    passed on. So one turn of the run counts at most a second.
    """

    def __init__(self) -> None:
        self._waited = 0.0
        self._turned = time.monotonic()

    def waited_ms(self) -> float:
        """Return the milliseconds since the barriers were sent; called in each turn."""
        now = time.monotonic()
        self._waited += min(now - self._turned, _LONGEST_TURN)
        self._turned = now
        return self._waited * 1000.0
