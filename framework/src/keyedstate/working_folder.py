"""Working folders: a process's state on a local disk outside of checkpoints, and how it is deleted.

::

    <base>/keyedstate-work-<32 hexadecimal digits>/     0700
        .keyedstate-work                                the mark, 0600; locked while its process lives
        ...

A process that is killed leaves its folders, and a later process deletes them. The lock (``flock``) proves
that the owner is dead: the kernel releases it with the process. Process ids are reused and differ between
containers, but locks are visible in all. A folder is deleted only if it has the name and the mark, this user
owns both, others have no access, and the owner ran on this machine: a network file system may not show the
locks of another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import stat
import struct
import tempfile
import uuid
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import TracebackType

_MARK = ".keyedstate-work"
_NAME = re.compile(r"keyedstate-work-[0-9a-f]{32}")
_MAX_MARK_BYTES = 4096
#: A default access list without access for others, as Linux stores it: files that a library creates with 0644
#: get 0600, whatever the umask is.
_OWNER_ONLY = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, rights, 0xFFFFFFFF) for tag, rights in ((0x01, 7), (0x04, 0), (0x20, 0))
)
#: The folders of this process, to be deleted when it ends.
_own: set[WorkingFolder] = set()


class WorkingFolder:
    """A new private folder of this process, deleted at the end as a context manager.

    The first one that a process creates in a base deletes those of dead processes there. The base is the
    system's temporary folder by default.

    Raises `OSError` where the folder cannot be created.
    """

    def __init__(self, base: Path | None = None) -> None:
        base = Path(tempfile.gettempdir()) if base is None else base
        _sweep_once(base)
        self.path = base / f"keyedstate-work-{uuid.uuid4().hex}"
        self._process = os.getpid()
        make_private(self.path)
        self._lock = _mark(self.path)
        _own.add(self)

    def remove(self) -> None:
        """Delete the folder and its contents; does nothing a second time, or in a forked process."""
        if self._process != os.getpid() or self not in _own:
            return
        _own.discard(self)
        with contextlib.suppress(OSError), _opened(self.path) as folder:
            _delete(self.path, folder)
        if self._lock is not None:
            os.close(self._lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def remove_own_folders() -> None:
    """Delete all working folders of this process, which is about to end without closing their users."""
    for folder in list(_own):
        folder.remove()


def sweep_working_folders(base: Path) -> None:
    """Delete the working folders in a base whose processes have ended, as far as possible."""
    with contextlib.suppress(OSError):
        for name in os.listdir(base):
            if _NAME.fullmatch(name):
                with contextlib.suppress(OSError):
                    _delete_dead(base / name)


_sweep_once = lru_cache(maxsize=16)(sweep_working_folders)


def make_private(path: Path) -> None:
    """Create a folder, and the missing ones above it, with access for this user alone."""
    if path.is_dir():
        return
    make_private(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)


def _mark(folder: Path) -> int | None:
    """Mark a folder as this process's and lock the mark; None if the file system has no locks."""
    with contextlib.suppress(OSError, AttributeError):
        os.setxattr(folder, "system.posix_acl_default", _OWNER_ONLY)
    # It gets its name when it is locked, so that no process takes this one for dead in between.
    unlocked = folder / f"{_MARK}.new"
    descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps({"pid": os.getpid(), **_this_machine()}).encode())
        unlocked.rename(folder / _MARK)
    except OSError:
        # Without a mark no other process deletes the folder.
        os.close(descriptor)
        unlocked.unlink(missing_ok=True)
        return None
    return descriptor


def _delete_dead(path: Path) -> None:
    with _opened(path) as folder:
        found = os.fstat(folder)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return
        mark = os.open(_MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            if _is_dead(mark):
                _delete(path, folder)
        finally:
            os.close(mark)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def _is_dead(mark: int) -> bool:
    """Return whether the process of a mark has ended; if so, lock the mark."""
    found = os.fstat(mark)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_size > _MAX_MARK_BYTES:
        return False
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owner = json.loads(os.pread(mark, _MAX_MARK_BYTES, 0))
        # A kernel knows all of its locks, and a rebooted machine has no earlier process.
        return any(value and owner[name] == value for name, value in _this_machine().items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


@lru_cache(maxsize=1)
def _this_machine() -> dict[str, str]:
    def content(path: str) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return Path(path).read_text().strip()
        return ""

    machine = f"{socket.gethostname()} {content('/etc/machine-id')}"
    return {"machine": machine, "boot": content("/proc/sys/kernel/random/boot_id")}


def _delete(path: Path, folder: int) -> None:
    """Delete a folder, its mark last: after a kill in between the next sweep still finds it."""
    for parent, folders, files, inside in os.fwalk(".", topdown=False, dir_fd=folder):
        for name in folders + files:
            if parent == "." and name == _MARK:
                continue
            with contextlib.suppress(OSError):
                # A link to a folder is listed as one, and deleted as a file.
                is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=inside).st_mode)
                (os.rmdir if is_folder else os.unlink)(name, dir_fd=inside)
    if os.listdir(folder) == [_MARK]:
        os.unlink(_MARK, dir_fd=folder)
    path.rmdir()
