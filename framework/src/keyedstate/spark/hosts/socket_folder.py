"""The folder with the sockets of hosts: where it is, whether only this user can change it, and its clean-up.

::

    <place>/keyedstate-<user id>/            0700, of this user
        <pid>-<start>/                       the hosts of one of Spark's Python daemons
            <number>.sock

The first place is the system's temporary folder: the path of a socket has at most 107 bytes, and the next
executor finds there what a killed one has left.  Any user can create a folder of that name there first, so
the second place is Spark's local folder of the executor, in which only the executor's user creates files.
All processes of an executor try the same places in the same order.  Sockets are created and removed under a
lock on the user's folder, which ends with the process that has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from keyedstate.epoch.local_folders import local_folder
from keyedstate.errors import HostFolderError
from keyedstate.spark.hosts.processes import Process, user_at_other_end

#: What a socket's address has room for, less the null byte at its end.
MAX_PATH_BYTES = 103 if hasattr(socket, "SO_NOSIGPIPE") else 107
_LONGEST_NAME = "/keyedstate-4294967295/4194304-18446744073709551615/99999.sock"
#: Where a process finds its open folders by the numbers of their descriptors; Linux only.
_DESCRIPTORS = Path("/proc/self/fd")


def socket_places() -> list[Path]:
    """Return the folders in which the user's folder may be, in the order in which they are tried."""
    places: list[Path] = []
    with contextlib.suppress(FileNotFoundError):
        temporary = Path(tempfile.gettempdir())
        fits = len(os.fsencode(temporary)) + len(_LONGEST_NAME) <= MAX_PATH_BYTES
        places.append(temporary if fits else Path("/tmp"))
    local = local_folder()
    return places if local is None else [*places, local]


class HostFolder:
    """The folder with the sockets of the hosts that live as long as one process.

    Parameters
    ----------
    anchor : Process
        Spark's Python daemon or, where there is none, the executor.
    place : Path
        One of `socket_places`; it exists.
    """

    def __init__(self, anchor: Process, place: Path) -> None:
        self.place = place
        self._user = place / f"keyedstate-{os.getuid()}"
        self.path = self._user / anchor.name

    def socket_path(self, number: int) -> Path:
        """Return where a host listens."""
        return self.path / f"{number}.sock"

    def connect(self, number: int) -> socket.socket | None:
        """Return a connection to a host of this user; None where none listens.

        Raises
        ------
        HostFolderError
            Where another user could have created the socket, or has.
        OSError
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
            user = user_at_other_end(connection)
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
        """Hold the lock: sockets are created and removed under it.

        Raises
        ------
        HostFolderError
            Where the user's folder cannot be created, is another user's, or others may enter it.
        """
        try:
            descriptor = self._lock()
        except OSError as error:
            raise self._unusable(error) from error
        try:
            yield
        finally:
            # Closing alone leaves the lock with a process that was forked meanwhile, for as long as it lives.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def listen(self, number: int) -> socket.socket:
        """Return a new listening socket in place of one at which no process listens; under the lock.

        Folders of processes that have ended are deleted before.

        Raises
        ------
        HostFolderError
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
        """Remove a host's socket, and every folder that is empty then; returns whether that was done.

        Parameters
        ----------
        number : int
        unless : callable
            Called under the lock: True keeps the socket.
        """
        # In a folder that is gone or another user's no task finds the socket.
        with contextlib.suppress(HostFolderError), self.locked():
            if unless():
                return False
            self.socket_path(number).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()
                self._user.rmdir()
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
            # Where the kernel does not name the user at the other end, no other user may replace the folder.
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
        """Give a socket's address: through a descriptor of its folder where the path is too long for one."""
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
        while True:
            # Not its parents: a host that ends after Spark has deleted its local folder must not restore it.
            with contextlib.suppress(FileExistsError):
                self._user.mkdir(mode=0o700)
            try:
                descriptor = os.open(self._user, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                # Where another process has just removed it, it is created again; else this says whose it is.
                with contextlib.suppress(FileNotFoundError):
                    self._refuse_foreign(os.lstat(self._user))
                    raise
                continue
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
                HostFolder(anchor, self.place)._delete_unused()

    def _delete_unused(self) -> None:
        """Delete the sockets at which no process listens, and the folder if none is left.

        That the process is not to be seen proves nothing: it may run in another container.
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
