"""How a task comes to its host: connect, or start one and connect."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from keyedstate.errors import HostFolderError, HostUnavailableError
from keyedstate.options import HOSTS_IDLE_TIME, HOSTS_MEMORY, Configuration
from keyedstate.spark.hosts.processes import Process
from keyedstate.spark.hosts.socket_folder import HostFolder, socket_places

_log = logging.getLogger(__name__)

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
    place : str
        Where the user's folder with the sockets is: one of `socket_places`.
    settings : HostSettings
    """

    number: int
    listener: int
    parents: tuple[str, ...]
    place: str
    settings: HostSettings


class Hosts:
    """The hosts of the executor for which this process works.

    Parameters
    ----------
    parents : sequence of Process
        As `worker_parents` returns them.
    settings : HostSettings
        For hosts that are started.
    places : sequence of Path, optional
        Where sockets may be, the preferred place first; by default `socket_places`.
    """

    def __init__(
        self, parents: Sequence[Process], settings: HostSettings, places: Sequence[Path] | None = None
    ) -> None:
        if not parents:
            raise HostUnavailableError("the processes that started this worker are gone")
        self._parents = parents
        self._settings = settings
        places = socket_places() if places is None else places
        self._folders = [HostFolder(parents[0], place) for place in places]
        #: Why another folder than the preferred one is used, as it was logged.
        self._warned: set[str] = set()

    def connect(self, number: int) -> socket.socket:
        """Return a connection to a host, which is started if it does not run.

        The new host may yet be about to import its modules: what is sent waits for it.

        Raises
        ------
        HostFolderError
            Where there is no folder in which this user's sockets are safe from other users.
        HostUnavailableError
        """
        refused: list[str] = []
        for folder in self._folders:
            try:
                connection = self._connect_in(folder, number)
            except HostFolderError as error:
                refused.append(error.reason)
            except OSError as error:
                raise HostUnavailableError(f"it could not be started ({error})") from error
            else:
                if refused:
                    self._warn(folder, "; ".join(refused))
                return connection
        raise HostFolderError("; ".join(refused) or "neither TMPDIR nor SPARK_LOCAL_DIRS names one")

    def _warn(self, folder: HostFolder, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            _log.warning("the sockets of hosts are in %s, because %s", folder.place, reason)

    def _connect_in(self, folder: HostFolder, number: int) -> socket.socket:
        connection = folder.connect(number)
        if connection is None:
            with folder.locked():
                connection = folder.connect(number)
                if connection is None:
                    self._start(folder, number)
                    connection = folder.connect(number)
        if connection is None:
            raise HostUnavailableError(f"no process listens at {folder.socket_path(number)}")
        return connection

    def _start(self, folder: HostFolder, number: int) -> None:
        with folder.listen(number) as listener:
            start = HostStart(
                number=number,
                listener=listener.fileno(),
                parents=tuple(parent.name for parent in self._parents),
                place=str(folder.place),
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
