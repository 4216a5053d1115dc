"""The processes of subtasks, as the process of the run sees them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from keyedstate.errors import SubtaskFailedError
from keyedstate.local.parallel.connection import Connection, wait
from keyedstate.local.parallel.messages import Failed
from keyedstate.runtime.functions.failures import RemoteTraceback

_START = "from keyedstate.local.parallel.subtask import main; main()"
#: Seconds after which processes that should end are killed.
_PATIENCE = 5.0

_Message = TypeVar("_Message")


class SubtaskProcess:
    """A process that runs a subtask of an operator, and the connections to it."""

    def __init__(self, operator: str, number: int, channels: int) -> None:
        pairs = [socket.socketpair() for _ in range(channels + 1)]
        theirs = [end for _, end in pairs]
        # A terminal sends Ctrl-C to all processes: it does not reach the new one before that ignores it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *(str(end.fileno()) for end in theirs)],
                pass_fds=[end.fileno() for end in theirs],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for end in theirs:
                end.close()
        self._operator = operator
        self.number = number
        self.control, *self.channels = (Connection(end) for end, _ in pairs)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def take(self) -> Any:
        """Return the next rows or message of the subtask; None if none has arrived yet.

        Raises what the subtask raised, and `SubtaskFailedError` where the process was killed.
        """
        try:
            message = self.control.take()
        except EOFError:
            raise self._lost() from None
        if not isinstance(message, Failed):
            return message
        cause = RemoteTraceback(message.trace)
        if message.pickled is None:
            raise SubtaskFailedError(self._operator, self.number, message.text) from cause
        raise pickle.loads(message.pickled) from cause

    def next(self, kind: type[_Message]) -> _Message:
        """Wait for a message of a kind, which is the next one of the subtask; raises as `take`."""
        while (message := self.take()) is None:
            wait([self.control], [self.control] if self.control.unsent else (), None)
            self.control.flush()
        assert isinstance(message, kind), f"subtask {self.number} sent {message!r}"
        return message

    def _lost(self) -> SubtaskFailedError:
        """Return the error of a process that ended without a message."""
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return SubtaskFailedError(self._operator, self.number, "its process has closed its connections")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return SubtaskFailedError(self._operator, self.number, f"its process {how}")

    def wait(self, seconds: float) -> None:
        """Wait for the end of the process, which is killed if that takes longer."""
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def end_processes(subtasks: Sequence[SubtaskProcess]) -> None:
    """End processes, and kill those that have not ended after some seconds."""
    for subtask in subtasks:
        # A subtask ends without its connections.
        for connection in (subtask.control, *subtask.channels):
            connection.close()
    until = time.monotonic() + _PATIENCE
    for subtask in subtasks:
        subtask.wait(until - time.monotonic())
