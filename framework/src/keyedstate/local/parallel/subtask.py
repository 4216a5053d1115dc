"""A subtask: a process with one task of an operator, which has a channel from each channel of a source.

The process of the run starts it, sends it its plan, and ends it by closing the connections.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.errors.base import described
from keyedstate.local.channels import (
    Action,
    BarrierAligner,
    BarrierTracker,
    CompleteCheckpoint,
    InputGate,
    Process,
    TakeSnapshot,
    Watermark,
    WatermarkValve,
)
from keyedstate.local.parallel.connection import Connection, wait
from keyedstate.local.parallel.messages import (
    Begin,
    BroadcastEnd,
    Closed,
    EndEpoch,
    Failed,
    Finished,
    Opened,
    Published,
)
from keyedstate.local.run.operator_task import OperatorTask
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME, system_clock

#: Elements of a channel that wait at most; a channel with more is not read, so that its sender waits.
_QUEUED = 4
#: Seconds after which time moves forward although nothing arrives.
_TICK = 0.1


class Subtask:
    """The loop of a subtask.

    Parameters
    ----------
    control : Connection
        To the process of the run: messages, and the rows that the function yields.
    channels : sequence of Connection
    begin : Begin
    """

    def __init__(self, control: Connection, channels: Sequence[Connection], begin: Begin) -> None:
        self._control = control
        self._keeps_state = begin.plan.location is not None
        kind = BarrierAligner if begin.aligns else BarrierTracker
        self._gate: InputGate[pa.RecordBatch] = kind(len(channels))
        self._channels = channels
        self._valve = WatermarkValve(len(channels))
        self._watermark: int | None = None
        #: The end of the current epoch, from its snapshot on.
        self._end: EndEpoch | None = None
        self._is_over = False
        self._task = OperatorTask(begin.plan, begin.number, begin.identity, begin.operator_id, begin.epoch)

    def run(self) -> None:
        """Process the broadcast side, and then the channels until the last epoch is over."""
        _send(self._control, Opened(self._task.restored, self._task.watermark))
        while isinstance(message := _next(self._control), pa.RecordBatch):
            self._send_rows(self._task.process_broadcast(message))
        assert isinstance(message, BroadcastEnd)
        while not self._is_over:
            action = self._gate.poll(system_clock())
            if action is not None:
                self._do(action)
            else:
                self._receive(_TICK)
                self._send_rows(self._task.advance(self._watermark))

    def close(self) -> None:
        """Close the function and release the state."""
        self._task.close()

    def _receive(self, timeout: float) -> None:
        """Read one element of each channel that has one, and whose queue has room."""
        channels = {
            number: channel
            for number, channel in enumerate(self._channels)
            if self._gate.queued(number) < _QUEUED
        }
        wait(list(channels.values()), (), timeout)
        for number, channel in channels.items():
            element = channel.take()
            if element is not None:
                self._gate.receive(number, element)

    def _do(self, action: Action[pa.RecordBatch]) -> None:
        match action:
            case Process(_, pa.RecordBatch() as rows):
                self._send_rows(self._task.process(rows))
            case Process(channel, Watermark() as watermark):
                self._valve.receive(channel, watermark)
                # What the end of the input means for timers comes with the last epoch's end.
                if BEFORE_TIME < self._valve.watermark < END_OF_TIME:
                    self._watermark = self._valve.watermark
                    self._send_rows(self._task.advance(self._watermark))
            case TakeSnapshot(barrier):
                self._end = _next(self._control)
                assert isinstance(self._end, EndEpoch)
                assert self._end.epoch == barrier.checkpoint_id
                self._send_rows(self._task.end(self._end.at_end))
            case CompleteCheckpoint():
                self._finish_epoch()
            case _:
                raise AssertionError(f"{action}: nothing cancels a barrier, and no channel ends or is idle")

    def _finish_epoch(self) -> None:
        """Write the state, and begin the next epoch when the checkpoint is published."""
        assert self._end is not None, "a snapshot comes before its checkpoint is complete"
        if not self._keeps_state:
            _send(self._control, Finished(None))
        else:
            _send(self._control, Finished(self._task.finish(self._end.positions)))
        self._is_over = self._end.is_last
        if not self._is_over:
            assert isinstance(_next(self._control), Published)
            self._task.begin_epoch(self._end.epoch + 1)

    def _send_rows(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            _send(self._control, batch)


def main() -> None:
    """Run a subtask over the file descriptors that the arguments name: the control's, and the channels'."""
    # Ctrl-C is for the process of the run, which ends its subtasks at a checkpoint.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, *channels = (Connection(socket.socket(fileno=int(number))) for number in sys.argv[1:])
    try:
        _run(control, channels)
    except EOFError:
        # The run has ended, or its process was killed.
        sys.exit(1)


def _run(control: Connection, channels: Sequence[Connection]) -> None:
    try:
        subtask = Subtask(control, channels, _next(control))
        try:
            subtask.run()
        except BaseException:
            # The first error is the one to report.
            with contextlib.suppress(Exception):
                subtask.close()
            raise
        subtask.close()
        _send(control, Closed())
    except EOFError:
        raise
    except Exception as error:
        _send(control, _failed(error))


def _failed(error: Exception) -> Failed:
    trace = "".join(traceback.format_exception(error))
    try:
        return Failed(pickle.dumps(error), described(error), trace)
    except Exception:
        return Failed(None, described(error), trace)


def _next(control: Connection) -> Any:
    """Wait for the next message of the run's process, or rows of the broadcast side."""
    while (message := control.take()) is None:
        wait([control], (), None)
    return message


def _send(control: Connection, message: Any) -> None:
    """Send, and wait until there is room: the run's process reads no faster than its sink."""
    control.put(message)
    while control.unsent:
        wait((), [control], None)
        control.flush()
