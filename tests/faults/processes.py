"""The processes of a run, found by the session that their driver began, and the disk that is full."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A living process.

    Attributes
    ----------
    pid, parent, session : int
    state : str
        As in ``/proc/PID/stat``: ``T`` is stopped.
    command : str
    """

    pid: int
    parent: int
    session: int
    state: str
    command: str

    @property
    def kind(self) -> str:
        """``executor``, ``daemon`` of the Python workers, or anything else: ``other``."""
        if "CoarseGrainedExecutorBackend" in self.command:
            return "executor"
        # A driver's Java has the module's name among its settings.
        return "daemon" if "-m faults.worker_daemon" in self.command else "other"


def of_sessions(sessions: set[int]) -> list[Process]:
    """Return the processes of some sessions that have not ended."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            state, parent, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(session) in sessions and state not in "ZX":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(Process(int(folder.name), int(parent), int(session), state, command))
    return found


def workers(processes: list[Process]) -> list[Process]:
    """Return the Python workers: a daemon's children, and what forked from them."""
    daemons = {process.pid for process in processes if process.kind == "daemon"}
    return [process for process in processes if process.kind == "daemon" and process.parent in daemons]


def hosts_of(run: Path) -> list[int]:
    """Return the hosts of a run: they are in sessions of their own, and know Spark's local folder."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            is_host = b"keyedstate.spark.hosts" in (folder / "cmdline").read_bytes()
            if is_host and f"={run}/".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes that may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_sessions(sessions: set[int]) -> None:
    """Kill all processes of some sessions, and wait until they are gone."""
    deadline = time.monotonic() + 30
    while (alive := of_sessions(sessions)) and time.monotonic() < deadline:
        send([process.pid for process in alive], signal.SIGKILL)
        time.sleep(0.02)


class SmallDisk:
    """A folder on a small file system in memory, where mounting one is allowed.

    Attributes
    ----------
    mounted : bool
    """

    def __init__(self, folder: Path, kilobytes: int) -> None:
        self._folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "keyedstate-faults", str(folder)]
        try:
            self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            self.mounted = False

    def make_room(self) -> None:
        """Let the disk have room enough."""
        subprocess.run(["mount", "-o", "remount,size=64m", str(self._folder)], check=True)

    def unmount(self) -> None:
        """Take the disk away, with what is on it."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self._folder)], check=True)
            self.mounted = False


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[SmallDisk]:
    """Give a folder on a disk of that size; it is gone afterwards, also after an error."""
    disk = SmallDisk(folder, kilobytes)
    try:
        yield disk
    finally:
        disk.unmount()
