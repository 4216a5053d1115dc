"""A subtask: a process with one task of an operator.

It has a channel from each channel of a source, and from each subtask of the operators whose rows it reads.

The run's fork server starts it. The process of the run sends it its plan, and ends
it by closing the connections.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import socket
import sys
import threading
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from keyedstate.errors.base import described
from keyedstate.local.channels.actions import Action, CompleteCheckpoint, Process, TakeSnapshot
from keyedstate.local.channels.barrier_aligner import BarrierAligner
from keyedstate.local.channels.barrier_tracker import BarrierTracker
from keyedstate.local.channels.elements import BarrierAnnouncement, Watermark
from keyedstate.local.channels.input_gate import InputGate
from keyedstate.local.channels.watermark_valve import WatermarkValve
from keyedstate.local.parallel.connection import Connection, wait
from keyedstate.local.parallel.messages import (
    Begin,
    BroadcastEnd,
    Closed,
    EndEpoch,
    Failed,
    Finished,
    MoreFollow,
    Opened,
    Positions,
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

    The control connection, to the process of the run, carries messages, the rows that the function yields,
    and barriers behind them.
    """

    def __init__(self, control: Connection, channels: Sequence[Connection], begin: Begin) -> None:
        self._control = control
        self._keeps_state = begin.plan.location is not None
        kind = BarrierAligner if begin.aligns else BarrierTracker
        self._gate: InputGate[pa.RecordBatch] = kind(len(channels))
        self._channels = channels
        self._valve = WatermarkValve(len(channels))
        self._watermark: int | None = None
        #: The latest watermark of a channel before its end.
        self._latest = BEFORE_TIME
        #: The end of the current epoch, from the moment when it was announced.
        self._end: EndEpoch | None = None
        self._is_over = False
        self._task = OperatorTask(begin.plan, begin.number, begin.identity, begin.operator_id, begin.epoch)

    def run(self) -> None:
        """Process the broadcast side, and then the channels until the last epoch is over."""
        _send(self._control, Opened(self._task.restored, self._task.partition.watermark))
        while isinstance(message := _next(self._control), pa.RecordBatch):
            self._send_rows(self._task.partition.process_broadcast([message]))
        assert isinstance(message, BroadcastEnd)
        self._send_rows(self._task.partition.process_rows_in_flight())
        while not self._is_over:
            action = self._gate.poll(system_clock())
            if action is not None:
                self._do(action)
            else:
                self._receive(self._with_room(), self._until_deadline())
                self._send_rows(self._task.partition.advance(self._watermark))

    def close(self) -> None:
        """Close the function and release the state."""
        self._task.partition.close()

    def _with_room(self) -> list[int]:
        """Return the channels whose queues have room."""
        return [number for number in range(len(self._channels)) if self._gate.queued(number) < _QUEUED]

    def _until_deadline(self) -> float:
        """Return the seconds after which time has to move forward."""
        deadline = self._gate.deadline_ms
        return _TICK if deadline is None else min(max(deadline - system_clock(), 0) / 1000.0, _TICK)

    def _receive(self, numbers: Iterable[int], timeout: float | None) -> None:
        """Wait for elements, and read one of each of these channels that has one."""
        channels = {number: self._channels[number] for number in numbers}
        # Its next message is the end of the epoch, until that has come.
        control = [self._control] if self._end is None else []
        wait([*channels.values(), *control], (), timeout)
        for connection in control:
            self._announced(connection.take())
        for number, channel in channels.items():
            element = channel.take()
            if element is not None:
                self._gate.receive(number, element)

    def _announced(self, end: EndEpoch | None) -> None:
        if end is not None:
            self._end = end
            self._gate.receive(0, BarrierAnnouncement(end.barrier))

    def _do(self, action: Action[pa.RecordBatch]) -> None:
        match action:
            case Process(_, pa.RecordBatch() as rows):
                self._send_rows(self._task.partition.process([rows]))
            case Process(channel, Watermark() as watermark):
                self._valve.receive(channel, watermark)
                if watermark.time_ms != END_OF_TIME:
                    self._latest = max(self._latest, watermark.time_ms)
                # What the end of the input means for timers comes with the last epoch's end. Each channel has
                # the watermark of all, but those that ended early lack the latest, and may come last.
                time = min(self._valve.watermark, self._latest)
                if time != BEFORE_TIME:
                    self._watermark = time
                    self._send_rows(self._task.partition.advance(self._watermark))
            case TakeSnapshot(barrier):
                if self._end is None:
                    self._announced(_next(self._control))
                assert self._end is not None
                self._send_rows(self._task.partition.end(self._end.at_end))
                # The operator that reads the rows need not wait until the state is written.
                _send(self._control, barrier)
                # The state must not change before it is written.
                while collecting := self._gate.collecting:
                    self._receive(collecting, None)
            case CompleteCheckpoint(_, channel_state):
                self._finish_epoch(
                    [
                        element
                        for elements in channel_state.values()
                        for element in elements
                        if isinstance(element, pa.RecordBatch)
                    ]
                )
            case _:
                raise AssertionError(f"{action}: nothing cancels a barrier, and no channel ends or is idle")

    def _finish_epoch(self, in_flight: Sequence[pa.RecordBatch]) -> None:
        """Write the state, and begin the next epoch when the checkpoint is published."""
        assert self._end is not None, "a snapshot comes before its checkpoint is complete"
        end, self._end = self._end, None
        # Behind the barriers of all channels, which have come.
        reached = _next(self._control)
        assert isinstance(reached, Positions)
        if not self._keeps_state:
            _send(self._control, Finished(None))
        else:
            if end.is_last:
                # An error must come before the checkpoint, behind which no run yields these rows again.
                self._task.close_function()
            _send(self._control, Finished(self._task.finish(reached.positions, in_flight)))
        self._is_over = end.is_last
        if not self._is_over:
            assert isinstance(_next(self._control), Published)
            self._task.begin_epoch(end.barrier.checkpoint_id + 1)

    def _send_rows(self, batches: Iterable[pa.RecordBatch]) -> None:
        waiting = None
        for batch in batches:
            if waiting is not None:
                _send(self._control, MoreFollow())
                _send(self._control, waiting)
            waiting = batch
        if waiting is not None:
            _send(self._control, waiting)


def main(descriptors: Sequence[int]) -> NoReturn:
    """Run a subtask over file descriptors, the control's and the channels', and end the process."""
    control, *channels = (Connection(socket.socket(fileno=number)) for number in descriptors)
    code = 0
    try:
        _run(control, channels)
    except EOFError:
        # The run has ended, or its process was killed.
        code = 1
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End the process as the interpreter would, but without freeing all objects, which takes 0.2 seconds."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


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
