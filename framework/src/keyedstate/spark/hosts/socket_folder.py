"""The folder with the sockets of hosts: its location, its safety from other users, and its clean-up.

::

    <place>/keyedstate-<user id>/            0700, of this user
        <pid>-<start>/                       the hosts of one of Spark's Python daemons
            <number>.sock

The first place is the system's temporary folder: the path of a socket has at most 107 bytes, and the next
executor finds what a killed one has left there.  Any user can create a folder of that name there first, so
the second place is Spark's local folder of the executor, where only the executor's user creates files.  All
processes of an executor try the places in the same order.  They create and remove sockets under a lock on
the user's folder.  The kernel releases it when its process ends; others wait for `LOCK_TIMEOUT_S`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from keyedstate.epoch.local_folders import local_folder
from keyedstate.errors import HostFolderError, HostFolderLockedError
from keyedstate.spark.hosts.processes import Process, peer_user

#: How long a process waits for the lock, which another one has for some milliseconds.
LOCK_TIMEOUT_S = 30.0
_LOCK_POLL_S = 0.02
#: The length of a socket's address, without the null byte at its end.
MAX_PATH_BYTES = 103 if hasattr(socket, "SO_NOSIGPIPE") else 107
_LONGEST_NAME = "/keyedstate-4294967295/4194304-18446744073709551615/99999.sock"
#: The open files of this process by descriptor; Linux only.
_DESCRIPTORS = Path("/proc/self/fd")


def socket_places() -> list[Path]:
    """Return the possible places of the user's folder, in the order in which they are tried."""
    places: list[Path] = []
    with contextlib.suppress(FileNotFoundError):
        temporary = Path(tempfile.gettempdir())
        fits = len(os.fsencode(temporary)) + len(_LONGEST_NAME) <= MAX_PATH_BYTES
        places.append(temporary if fits else Path("/tmp"))
    local = local_folder()
    return places if local is None else [*places, local]


class HostFolder:
    """The folder with the sockets of the hosts that end with one process.

    That is Spark's Python daemon or, without one, the executor. The place is an existing one of
    `socket_places`.
    """

    def __init__(self, anchor: Process, place: Path) -> None:
        self.place = place
        self._user = place / f"keyedstate-{os.getuid()}"
        self.path = self._user / anchor.name

    def socket_path(self, number: int) -> Path:
        """Return the path of a host's socket."""
        return self.path / f"{number}.sock"

    def connect(self, number: int) -> socket.socket | None:
        """Return a connection to a host of this user; None if none listens.

        Raises `HostFolderError` if another user has created the socket, or could have, and OSError.
        """
        try:
            self._refuse_foreign(os.lstat(self._user))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._address(number) as address:
                connection.connect(address)
            user = peer_user(connection)
            if user not in (None, os.getuid()):
                raise HostFolderError(
                    f"a process of {_user_name(user)} listens at {self.socket_path(number)}"
                )
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, for which `HostFolderLockedError` limits the time.

        Raises `HostFolderError` if the user's folder cannot be created, belongs to another user, or others
        may enter it.
        """
        try:
            descriptor = self._lock()
        except OSError as error:
            raise self._unusable(error) from error
        try:
            yield
        finally:
            # After close() alone, a process that was forked meanwhile would still have the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def listen(self, number: int) -> socket.socket:
        """Replace a socket without a listening process, and delete folders of ended ones; under the lock.

        Raises `HostFolderError`.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._delete_stale()
            self.path.mkdir(mode=0o700, exist_ok=True)
            self.socket_path(number).unlink(missing_ok=True)
            with self._address(number) as address:
                listener.bind(address)
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise self._unusable(error) from error
        except BaseException:
            listener.close()
            raise
        return listener

    def withdraw(self, number: int, unless: Callable[[], bool] = lambda: False) -> bool:
        """Remove a host's socket, and folders that are empty then; return whether it is removed.

        It stays if `unless`, which is called under the lock, returns True.
        """
        try:
            with self.locked():
                if unless():
                    return False
                self.socket_path(number).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    self.path.rmdir()
                    self._user.rmdir()
        except HostFolderLockedError:
            return False
        except HostFolderError:
            # Tasks find no socket in a folder that is gone or belongs to another user.
            pass
        return True

    def _refuse_foreign(self, found: os.stat_result) -> None:
        if not stat.S_ISDIR(found.st_mode):
            raise HostFolderError(f"{self._user} is no folder; {_user_name(found.st_uid)} has created it")
        if found.st_uid != os.getuid():
            raise HostFolderError(f"the folder {self._user} belongs to {_user_name(found.st_uid)}")
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            raise HostFolderError(f"the folder {self._user} is open to others (mode {mode:04o}, not 0700)")
        if not hasattr(socket, "SO_PEERCRED"):
            # The kernel does not name the peer's user: no other user may be able to replace the folder.
            self._refuse_replaceable()

    def _refuse_replaceable(self) -> None:
        place = self.place.resolve()
        for parent in (place, *place.parents):
            found = parent.stat()
            open_to_all = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
            if found.st_uid not in (0, os.getuid()) or open_to_all:
                raise HostFolderError(f"other users may replace what is in {parent}, which has no sticky bit")

    def _unusable(self, error: OSError) -> HostFolderError:
        return HostFolderError(f"the folder {self.path} cannot be used ({error})")

    @contextlib.contextmanager
    def _address(self, number: int) -> Iterator[str]:
        """Give a socket's address: through a descriptor of its folder if the path is too long."""
        path = self.socket_path(number)
        if len(os.fsencode(path)) <= MAX_PATH_BYTES or not _DESCRIPTORS.is_dir():
            yield str(path)
            return
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield f"{_DESCRIPTORS}/{descriptor}/{path.name}"
        finally:
            os.close(descriptor)

    def _lock(self) -> int:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            # Without parents: a host that outlives Spark's local folder must not create it again.
            with contextlib.suppress(FileExistsError):
                self._user.mkdir(mode=0o700)
            try:
                descriptor = os.open(self._user, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                # Another process has just removed it: try again; or this names its owner.
                with contextlib.suppress(FileNotFoundError):
                    self._refuse_foreign(os.lstat(self._user))
                    raise
                continue
            try:
                found = os.fstat(descriptor)
                self._refuse_foreign(found)
                self._await_lock(descriptor, deadline)
                # Another process may have removed the folder before it released the lock.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(found, os.stat(self._user)):
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _await_lock(self, descriptor: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise HostFolderLockedError(str(self._user), LOCK_TIMEOUT_S) from error
                time.sleep(_LOCK_POLL_S)
            else:
                return

    def _delete_stale(self) -> None:
        for name in os.listdir(self._user):
            anchor = Process.named(name)
            if anchor is not None and not anchor.is_alive:
                HostFolder(anchor, self.place)._delete_unused()

    def _delete_unused(self) -> None:
        """Delete the sockets at which no process listens, and the folder if it is empty then.

        A process that is not visible here may run in another container.
        """
        for path in self.path.glob("*.sock"):
            with contextlib.suppress(OSError, HostFolderError, ValueError):
                connection = self.connect(int(path.stem))
                if connection is None:
                    path.unlink()
                else:
                    connection.close()
        with contextlib.suppress(OSError):
            self.path.rmdir()


def _user_name(user: int | None) -> str:
    with contextlib.suppress(KeyError, TypeError):
        return f"the user {pwd.getpwuid(user)[0]!r} ({user})"  # type: ignore[arg-type]
    return f"the user {user}"
