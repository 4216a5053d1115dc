"""Which process is which: a number that is given again must not be taken for the process that had it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_PROC = Path("/proc")
#: Process, user and group.
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Process:
    """A process of this machine.

    Attributes
    ----------
    pid : int
    started : str
        When it began, in the words of the operating system; digits and letters.
    """

    pid: int
    started: str

    @property
    def name(self) -> str:
        """What it is called in paths."""
        return f"{self.pid}-{self.started}"

    @classmethod
    def named(cls, name: str) -> Process | None:
        """Return the process of a `name`; None for other words."""
        pid, mark, started = name.partition("-")
        return cls(int(pid), started) if pid.isdecimal() and mark and started.isalnum() else None

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return process_of(self.pid) == self

    @cached_property
    def handle(self) -> int | None:
        """A file descriptor that is readable when the process has ended; None where there is none."""
        if not hasattr(os, "pidfd_open"):
            return None
        try:
            return os.pidfd_open(self.pid)
        except OSError:
            return None

    def kill(self, signal: int) -> None:
        """Send a signal if the process is still there."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal)


def user_at_other_end(connection: socket.socket) -> int | None:
    """Return whose process is at the other end of a Unix socket; None where the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user


def process_of(pid: int) -> Process | None:
    """Return the process that has a number now; None where none has, or it is dead and not yet forgotten."""
    if _PROC.joinpath("self/stat").exists():
        try:
            fields = _fields(pid)
        except OSError:
            return None
        return None if fields[0] in "ZX" else Process(pid, fields[19])
    said = _asked(pid, "stat=,lstart=").split(maxsplit=1)
    if len(said) < 2 or said[0].startswith("Z"):
        return None
    return Process(pid, "".join(filter(str.isalnum, said[1])))


def worker_parents() -> list[Process]:
    """Return the processes whose end ends a Python worker's hosts: Spark's Python daemon and the executor.

    A worker is forked off by the daemon, which is Python too and a child of the JVM; where there is no
    daemon, by the JVM.
    """
    parent = os.getppid()
    wanted = [parent]
    if _command(parent) == _command(os.getpid()):
        wanted.append(_parent_of(parent))
    return [found for found in map(process_of, wanted) if found is not None]


def _fields(pid: int) -> list[str]:
    # The command's name is in parentheses and may hold anything; the state of the process follows.
    return _PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(_fields(pid)[1])
    return int(_asked(pid, "ppid=") or 0)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.path.basename(os.path.realpath(os.readlink(f"/proc/{pid}/exe")))
    return os.path.basename(_asked(pid, "comm="))


def _asked(pid: int, columns: str) -> str:
    done = subprocess.run(["ps", "-o", columns, "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()
