"""Processes of this machine, told apart by pid and start time, because pids are reused."""

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
    """A process of this machine, with its start time in digits and letters of the operating system."""

    pid: int
    started: str

    @property
    def name(self) -> str:
        """Its name in paths."""
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
        """A file descriptor that becomes readable when the process ends; None if the system has none."""
        if not hasattr(os, "pidfd_open"):
            return None
        try:
            return os.pidfd_open(self.pid)
        except OSError:
            return None

    def kill(self, signal: int) -> None:
        """Send a signal if the process is alive."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal)


def peer_user(connection: socket.socket) -> int | None:
    """Return the user id of the process at the other end of a Unix socket; None if the system has no way."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user


def process_of(pid: int) -> Process | None:
    """Return the process that has a pid now; None if none has, or it is a zombie."""
    if _PROC.joinpath("self/stat").exists():
        try:
            fields = _fields(pid)
        except OSError:
            return None
        return None if fields[0] in "ZX" else Process(pid, fields[19])
    said = _ps(pid, "stat=,lstart=").split(maxsplit=1)
    if len(said) < 2 or said[0].startswith("Z"):
        return None
    return Process(pid, "".join(filter(str.isalnum, said[1])))


def worker_parents() -> list[Process]:
    """Return the processes whose end ends the hosts of a Python worker: Spark's Python daemon, the executor.

    The daemon, a Python child of the JVM, forks workers; without a daemon the JVM starts them.
    """
    parent = os.getppid()
    wanted = [parent]
    if _command(parent) == _command(os.getpid()):
        wanted.append(_parent_of(parent))
    return [found for found in map(process_of, wanted) if found is not None]


def _fields(pid: int) -> list[str]:
    # Any text may be in the parentheses of the command's name; the state of the process follows.
    return _PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(_fields(pid)[1])
    return int(_ps(pid, "ppid=") or 0)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.path.basename(os.path.realpath(os.readlink(f"/proc/{pid}/exe")))
    return os.path.basename(_ps(pid, "comm="))


def _ps(pid: int, columns: str) -> str:
    done = subprocess.run(["ps", "-o", columns, "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()
