"""Connects a task to its host, and starts the host if it does not run."""

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
    """The limits of a host: time without a task until it ends or drops a partition, and memory (0: none)."""

    idle_ms: int
    memory_bytes: int

    @classmethod
    def of(cls, config: Configuration) -> HostSettings:
        """Read the options ``hosts.idle-time`` and ``hosts.memory``."""
        return cls(config[HOSTS_IDLE_TIME], config[HOSTS_MEMORY])


@dataclass(frozen=True)
class HostStart:
    """The command line of a host, as JSON."""

    #: Its number among the executor's hosts, from 0.
    number: int
    #: The file descriptor at which it listens.
    listener: int
    #: `Process.name` of the processes whose end ends it; the first one names the folder.
    parents: tuple[str, ...]
    #: One of `socket_places`.
    place: str
    settings: HostSettings


class Hosts:
    """The hosts of this worker's executor.

    The parents are those of `worker_parents`, the settings those of hosts that this process starts, and the
    places by default `socket_places`.
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
        #: The logged reasons against the preferred folder.
        self._warned: set[str] = set()

    def connect(self, number: int) -> socket.socket:
        """Return a connection to a host, which is started if it does not run.

        A new host reads from the connection once it has imported its modules. Raises `HostFolderError` if no
        folder is safe from other users, `HostFolderLockedError` and `HostUnavailableError`.
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
                # A host outlives the process group of Spark's daemon, and ends by itself.
                start_new_session=True,
                pass_fds=(listener.fileno(),),
                stdin=subprocess.DEVNULL,
                # The executor's log: Spark reads it there.
                stdout=2,
                stderr=2,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
