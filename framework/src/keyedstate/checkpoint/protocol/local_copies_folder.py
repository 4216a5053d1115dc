"""The folder of an operator's local copies: its layout, and what may be deleted from it.

::

    <base>/keyedstate-copies-<user id>-<key of the operator's folder>/   0700
        .keyedstate-copies                                               the mark
        epoch-<epoch>/<path of the data file>                            0600
        epoch-<epoch>/<path>.<32 hexadecimal digits>.tmp                 being written, and locked meanwhile

The user chooses the base folder and may keep other files there.  So a folder counts as ours only with its
name, its mark, this user as its owner and no access for others, and only files with our names are deleted
from it.  Its age is that of its newest file: a folder's own time does not change when a file in it does.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from keyedstate.checkpoint.protocol.operator_folder import is_data_path
from keyedstate.working_folder import make_private

#: Copies that no checkpoint names and no task of a current epoch can be writing are deleted after this time.
_STALE_SECONDS = 86_400
#: Copies of an operator that no task of this machine has worked for are deleted after this time.
_ABANDONED_SECONDS = 7 * 86_400
_MARK = ".keyedstate-copies"
_NAME = re.compile(r"keyedstate-copies-([0-9]+)-[0-9a-f]{32}")
_EPOCH = re.compile(r"epoch-([0-9]+)")
_UNFINISHED = re.compile(r"(.+)\.[0-9a-f]{32}\.tmp")


class CopyFile(NamedTuple):
    """A file with one of our names; `unfinished` for one that is, or was, being written."""

    epoch: int
    path: str
    file: Path
    unfinished: bool


class CopiesFolder:
    """The copies of one operator's data files on this machine, in a base folder with files of others."""

    def __init__(self, base: Path, address: str) -> None:
        key = hashlib.sha256(address.encode()).hexdigest()[:32]
        self._address = address
        self.path = base / f"keyedstate-copies-{os.getuid()}-{key}"
        with contextlib.suppress(OSError):
            # A task works for the operator: its copies are not abandoned.
            os.utime(self.path / _MARK, follow_symlinks=False)

    @classmethod
    def sweep(cls, base: Path) -> None:
        """Delete the copies in a base folder that no task has used for a week."""
        with contextlib.suppress(OSError):
            for name in os.listdir(base):
                found = _NAME.fullmatch(name)
                if found is not None and int(found[1]) == os.getuid():
                    _delete_abandoned(base / name)

    def find(self, path: str) -> Path | None:
        """Return the copy of a data file, if it has one."""
        return next((copy.file for copy in _files(self.path) if copy.path == path), None)

    def create(self, epoch: int, path: str) -> tuple[Path, Path, int]:
        """Create a file, and the folder where it does not exist; raises `OSError`.

        Returns the file's final name, its name while it is written, and its descriptor.
        """
        make_private(self.path)
        found = os.lstat(self.path)
        if not _is_private(found):
            raise PermissionError(0, "the folder is another user's, or others may enter it", str(self.path))
        with contextlib.suppress(FileExistsError), open(self.path / _MARK, "x", opener=_private) as mark:
            mark.write(f"Copies of data files of {self._address}, made by keyedstate.\n")
        target = self.path / f"epoch-{epoch}" / path
        make_private(target.parent)
        unfinished = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
        descriptor = _private(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with contextlib.suppress(OSError):
            # A file that another process can lock has no writer any more.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return target, unfinished, descriptor

    def prune(self, epoch: int, kept: set[str]) -> None:
        """Delete the copies of earlier epochs that are not kept, and leftovers.

        Copies of the epoch and of later ones stay: other tasks may be writing them, and this one may be a
        zombie.
        """
        now = time.time()
        files = list(_files(self.path))
        for file in files:
            if file.unfinished:
                _delete_unlocked(file.file)
            elif file.path not in kept and (file.epoch < epoch or _age(file.file, now) > _STALE_SECONDS):
                delete(file.file)
        for number in {file.epoch for file in files if file.epoch < epoch}:
            _delete_empty(self.path / f"epoch-{number}")


def delete(file: Path) -> None:
    """Delete a copy; a failure is no error, since copies are never trusted."""
    with contextlib.suppress(OSError):
        file.unlink()


def _files(folder: Path) -> Iterator[CopyFile]:
    """Yield the files with our names; none where the folder is not ours."""
    for epoch in os.listdir(folder) if _is_ours(folder) else ():
        number = _EPOCH.fullmatch(epoch)
        top = folder / epoch
        if number is None or top.is_symlink():
            continue
        for parent, _, names in os.walk(top):
            for name in names:
                path = Path(parent, name).relative_to(top).as_posix()
                unfinished = _UNFINISHED.fullmatch(path)
                if is_data_path(path if unfinished is None else unfinished[1]):
                    yield CopyFile(int(number[1]), path, top / path, unfinished is not None)


def _is_ours(folder: Path) -> bool:
    try:
        mark = os.lstat(folder / _MARK)
        return _is_private(os.lstat(folder)) and stat.S_ISREG(mark.st_mode) and mark.st_uid == os.getuid()
    except OSError:
        return False


def _is_private(folder: os.stat_result) -> bool:
    mine = stat.S_ISDIR(folder.st_mode) and folder.st_uid == os.getuid()
    return mine and not stat.S_IMODE(folder.st_mode) & 0o077


def _delete_abandoned(folder: Path) -> None:
    if not _is_ours(folder):
        return
    now = time.time()
    ages = [_age(Path(parent, name), now) for parent, _, names in os.walk(folder) for name in names]
    if min(ages, default=0.0) <= _ABANDONED_SECONDS:
        return
    files = list(_files(folder))
    for file in files:
        delete(file.file)
    for epoch in {file.epoch for file in files}:
        _delete_empty(folder / f"epoch-{epoch}")
    with contextlib.suppress(OSError):
        # The mark last, and only alone: with other files in it the folder stays, and stays ours.
        if os.listdir(folder) == [_MARK]:
            (folder / _MARK).unlink()
            folder.rmdir()


def _delete_empty(epoch: Path) -> None:
    for folder in (epoch / "data", epoch):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _delete_unlocked(file: Path) -> None:
    with contextlib.suppress(OSError), open(file, "r+b", opener=_private) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink()


def _private(path: str | Path, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _age(file: Path, now: float) -> float:
    try:
        return now - file.lstat().st_mtime
    except OSError:
        return 0.0
