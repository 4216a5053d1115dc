"""The fork server of a run: a process that has imported keyedstate, and becomes the subtasks by forking.

A subtask would import for a second what another one has imported, too. The server runs nothing of the user.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from keyedstate.local.parallel import subtask

#: Of the run's process: how many file descriptors a new process gets, which follow.
_REQUEST = struct.Struct("<Q")
#: Of the server: a process, and its exit code behind `_ENDED` or nothing behind `_STARTED`.
_REPORT = struct.Struct("<qqq")
_STARTED, _ENDED = 0, 1
#: File descriptors that a message has at most; the system allows a few more.
_AT_ONCE = 200
#: Seconds after which processes that should end are killed.
_PATIENCE = 5.0
_START = "from keyedstate.local.parallel.fork_server import main; main()"


class ForkServer:
    """The run's end of a fork server, which this starts."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        # A terminal sends Ctrl-C to all processes: it does not reach the new one before that ignores it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self._running: set[int] = set()
        self._exit_codes: dict[int, int] = {}
        self._is_lost = False

    def start(self, descriptors: Sequence[int]) -> int:
        """Start a subtask with file descriptors, its control connection's first; return its process id.

        Raises ChildProcessError where the server has ended.
        """
        before = set(self._running)
        try:
            self._socket.sendall(_REQUEST.pack(len(descriptors)))
            for begin in range(0, len(descriptors), _AT_ONCE):
                socket.send_fds(self._socket, [b"\0"], descriptors[begin : begin + _AT_ONCE])
        except ConnectionError:
            self._is_lost = True
        while not self._running - before:
            if not self._take_report(None):
                raise ChildProcessError("the process that starts subtasks has ended")
        (pid,) = self._running - before
        return pid

    def exit_code(self, pid: int, timeout: float) -> int | None:
        """Wait so many seconds for the end of a process; return its exit code, negative for a signal."""
        until = time.monotonic() + timeout
        while pid in self._running and self._take_report(max(until - time.monotonic(), 0.0)):
            pass
        return self._exit_codes.get(pid)

    def close(self) -> None:
        """Wait for the end of all processes, and kill those that have not ended after some seconds."""
        until = time.monotonic() + _PATIENCE
        for pid in tuple(self._running):
            self.exit_code(pid, max(until - time.monotonic(), 0.0))
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._socket.close()
        self._process.wait()

    def _take_report(self, timeout: float | None) -> bool:
        """Take a report of the server; return False if none arrived in time, or the server has ended."""
        if self._is_lost:
            return False
        self._socket.settimeout(timeout if timeout is None else max(timeout, 1e-6))
        try:
            report = self._socket.recv(_REPORT.size, socket.MSG_WAITALL)
        except TimeoutError:
            return False
        except ConnectionError:
            report = b""
        finally:
            self._socket.settimeout(None)
        if len(report) < _REPORT.size:
            self._is_lost = True
            return False
        what, pid, code = _REPORT.unpack(report)
        if what == _STARTED:
            self._running.add(pid)
        else:
            self._running.discard(pid)
            self._exit_codes[pid] = code
        return True


def main() -> None:
    """Serve the run's process over the file descriptor that the argument names."""
    # Ctrl-C is for the process of the run, which ends its subtasks at a checkpoint.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    run = socket.socket(fileno=int(sys.argv[1]))
    # With its first array, pyarrow imports pandas where that is installed: the rows need not wait for it.
    pa.array([])
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    running: set[int] = set()
    with run, woken, wakes, selectors.DefaultSelector() as selector:
        for end in (run, woken):
            selector.register(end, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if woken in ready:
                woken.recv(4096)
                _report_ended(run, running)
            if run not in ready:
                continue
            request = run.recv(_REQUEST.size, socket.MSG_WAITALL)
            if len(request) < _REQUEST.size:
                break
            descriptors = _received(run, *_REQUEST.unpack(request))
            pid = os.fork()
            if not pid:
                # Only this is left of the server in the new process, which ends in the subtask.
                break
            for descriptor in descriptors:
                os.close(descriptor)
            running.add(pid)
            run.sendall(_REPORT.pack(_STARTED, pid, 0))
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if len(request) < _REQUEST.size:
        _end(running)
    else:
        # Otherwise all subtasks would draw the same numbers; `random` does so itself.
        np.random.seed()
        subtask.main(descriptors)


def _received(run: socket.socket, count: int) -> list[int]:
    descriptors: list[int] = []
    while len(descriptors) < count:
        _, some, _, _ = socket.recv_fds(run, 1, min(_AT_ONCE, count - len(descriptors)))
        descriptors += some
    return descriptors


def _report_ended(run: socket.socket, running: set[int]) -> None:
    for pid in tuple(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            running.discard(pid)
            try:
                run.sendall(_REPORT.pack(_ENDED, pid, os.waitstatus_to_exitcode(status)))
            except ConnectionError:
                # The run's process was killed; the request that follows is the end.
                continue


def _end(running: set[int]) -> None:
    """Wait until the subtasks of a run that has ended have ended, too; kill those that take long."""
    until = time.monotonic() + _PATIENCE
    while running and time.monotonic() < until:
        running = {pid for pid in running if not os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.01)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
