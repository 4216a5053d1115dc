"""The processes of subtasks, as the process of the run sees them."""

from __future__ import annotations

import pickle
import socket
from typing import Any, TypeVar

from keyedstate.errors import SubtaskFailedError
from keyedstate.local.parallel.connection import Connection, wait
from keyedstate.local.parallel.fork_server import ForkServer
from keyedstate.local.parallel.messages import Failed
from keyedstate.runtime.functions.failures import RemoteTraceback

#: Seconds in which a process ends that has closed its connections.
_PATIENCE = 5.0

_Message = TypeVar("_Message")


class SubtaskProcess:
    """A process that runs a subtask of an operator, and the connections to it.

    Raises `SubtaskFailedError` where the fork server has ended, so that no process can be started.
    """

    def __init__(self, server: ForkServer, operator: str, number: int, channels: int) -> None:
        pairs = [socket.socketpair() for _ in range(channels + 1)]
        theirs = [end for _, end in pairs]
        try:
            self._pid = server.start([end.fileno() for end in theirs])
        except ChildProcessError as error:
            for end, _ in pairs:
                end.close()
            raise SubtaskFailedError(operator, number, str(error)) from error
        finally:
            for end in theirs:
                end.close()
        self._server = server
        self._operator = operator
        self.number = number
        self.control, *self.channels = (Connection(end) for end, _ in pairs)

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
        code = self._server.exit_code(self._pid, _PATIENCE)
        if code is None:
            how = "has closed its connections"
        else:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return SubtaskFailedError(self._operator, self.number, f"its process {how}")

    def close(self) -> None:
        """Close the connections, without which the subtask ends."""
        for connection in (self.control, *self.channels):
            connection.close()
