"""Where the sockets of hosts lie, and who clears them away.

::

    <temporary folder>/keyedstate-<user id>/            0700, of this user
        <pid>-<start>/                                  the hosts of one of Spark's Python daemons
            <number>.sock

The temporary folder, and not Spark's local one, since the path of a socket has at most 107 bytes, and since
what an executor that was killed has left is found there by the next one.  Everything happens under a lock on
the user's folder, which ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keyedstate.spark.hosts.errors import HostUnavailableError
from keyedstate.spark.hosts.processes import Process

#: What a socket's address has room for, less the null byte at its end.
MAX_PATH_BYTES = 103 if hasattr(socket, "SO_NOSIGPIPE") else 107
_LONGEST_NAME = "/keyedstate-4294967295/4194304-18446744073709551615/99999.sock"


class HostFolder:
    """The folder with the sockets of the hosts that live as long as one process.

    Parameters
    ----------
    anchor : Process
        Spark's Python daemon or, where there is none, the executor.
    parent : Path, optional
        Where the user's folder is; by default the system's temporary folder or, where that has too long a
        path, ``/tmp``.
    """

    def __init__(self, anchor: Process, parent: Path | None = None) -> None:
        if parent is None:
            parent = Path(tempfile.gettempdir())
            if len(os.fsencode(parent)) + len(_LONGEST_NAME) > MAX_PATH_BYTES:
                parent = Path("/tmp")
        self._user = parent / f"keyedstate-{os.getuid()}"
        self.path = self._user / anchor.name

    def socket_path(self, number: int) -> Path:
        """Return where a host listens."""
        return self.path / f"{number}.sock"

    def is_there(self) -> bool:
        """Return whether there may be sockets; who connects to one asks first, for whoever made it gets all.

        Raises
        ------
        HostUnavailableError
            Where the user's folder is another user's, or others may enter it.
        """
        try:
            found = os.lstat(self._user)
        except FileNotFoundError:
            return False
        self._refuse_foreign(found)
        return True

    def _refuse_foreign(self, found: os.stat_result) -> None:
        if not stat.S_ISDIR(found.st_mode):
            raise HostUnavailableError(f"{self._user} is no folder of this user (it is no folder)")
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise HostUnavailableError(
                f"the folder {self._user} is another user's or open to others; delete it, or set TMPDIR"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock: sockets are made and removed under it.

        Raises
        ------
        HostUnavailableError
            Where the user's folder is another user's, or others may enter it.
        OSError
        """
        descriptor = self._lock()
        try:
            yield
        finally:
            os.close(descriptor)

    def listen(self, number: int) -> socket.socket:
        """Return a new listening socket, in the place of one that nobody listens at; under the lock.

        Folders of processes that have ended are deleted before.
        """
        self._delete_stale()
        self.path.mkdir(mode=0o700, exist_ok=True)
        path = self.socket_path(number)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
        return listener

    def remove(self, number: int) -> None:
        """Remove a host's socket, and every folder that is empty then; under the lock."""
        self.socket_path(number).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()
            self._user.rmdir()

    def _lock(self) -> int:
        while True:
            self._user.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                descriptor = os.open(self._user, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise HostUnavailableError(f"{self._user} is no folder of this user ({error})") from error
            try:
                found = os.fstat(descriptor)
                self._refuse_foreign(found)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Another process may have removed the folder before it let the lock go.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(found, os.stat(self._user)):
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _delete_stale(self) -> None:
        for name in os.listdir(self._user):
            anchor = Process.named(name)
            if anchor is not None and not anchor.is_alive:
                shutil.rmtree(self._user / name, ignore_errors=True)
