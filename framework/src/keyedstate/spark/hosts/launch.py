"""How a task comes to its host: connect, or start one and connect."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from keyedstate.config import HOSTS_IDLE_TIME, HOSTS_MEMORY, Configuration
from keyedstate.spark.hosts.errors import HostUnavailableError
from keyedstate.spark.hosts.folder import HostFolder
from keyedstate.spark.hosts.processes import Process, user_at_other_end

_START = "from keyedstate.spark.hosts.server import main; main()"


@dataclass(frozen=True)
class HostSettings:
    """How a host lives.

    Attributes
    ----------
    idle_ms : int
        After how long without a task a host ends, and a partition is no longer kept.
    memory_bytes : int
        How much memory it may take; 0 for any.
    """

    idle_ms: int
    memory_bytes: int

    @classmethod
    def of(cls, config: Configuration) -> HostSettings:
        """Return what the options ``hosts.idle-time`` and ``hosts.memory`` say."""
        return cls(config[HOSTS_IDLE_TIME], config[HOSTS_MEMORY])


@dataclass(frozen=True)
class HostStart:
    """What a host is told when it starts.

    Attributes
    ----------
    number : int
        Which of an executor's hosts it is, from 0.
    listener : int
        The file descriptor at which it listens.
    parents : tuple of str
        The processes whose end is its end, as `Process.name`; the first gives the folder its name.
    folder : str or None
        Where the user's folder is, if not in its usual place.
    settings : HostSettings
    """

    number: int
    listener: int
    parents: tuple[str, ...]
    folder: str | None
    settings: HostSettings


class Hosts:
    """The hosts of the executor for which this process works.

    Parameters
    ----------
    parents : sequence of Process
        As `worker_parents` returns them.
    settings : HostSettings
        For hosts that are started.
    folder : Path, optional
        As in `HostFolder`.
    """

    def __init__(self, parents: list[Process], settings: HostSettings, folder: Path | None = None) -> None:
        if not parents:
            raise HostUnavailableError("the processes that started this worker are gone")
        self._parents = parents
        self._settings = settings
        self._parent_folder = folder
        self._folder = HostFolder(parents[0], folder)

    def connect(self, number: int) -> socket.socket:
        """Return a connection to a host, which is started if it does not run.

        The new host may yet be about to import its modules: what is sent waits for it.

        Raises
        ------
        HostUnavailableError
        """
        try:
            connection = self._try(number)
            if connection is None:
                with self._folder.locked():
                    connection = self._try(number)
                    if connection is None:
                        self._start(number)
                        connection = self._try(number)
        except OSError as error:
            raise HostUnavailableError(f"it could not be started ({error})") from error
        if connection is None:
            raise HostUnavailableError(f"nobody listens at {self._folder.socket_path(number)}")
        return connection

    def _try(self, number: int) -> socket.socket | None:
        if not self._folder.is_there():
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = self._folder.socket_path(number)
        try:
            connection.connect(str(path))
            user = user_at_other_end(connection)
            if user not in (None, os.getuid()):
                reason = f"a process of the user {user} listens at {path}; end it, or set TMPDIR"
                raise HostUnavailableError(reason)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    def _start(self, number: int) -> None:
        with self._folder.listen(number) as listener:
            start = HostStart(
                number=number,
                listener=listener.fileno(),
                parents=tuple(parent.name for parent in self._parents),
                folder=None if self._parent_folder is None else str(self._parent_folder),
                settings=self._settings,
            )
            subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(asdict(start))],
                # A host outlives the process group of Spark's daemon, and sees to its own end.
                start_new_session=True,
                pass_fds=(listener.fileno(),),
                stdin=subprocess.DEVNULL,
                # The executor's log: Spark reads it there.
                stdout=2,
                stderr=2,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
