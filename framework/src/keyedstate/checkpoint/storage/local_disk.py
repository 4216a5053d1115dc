"""Writing on a local disk: files survive a crash of the machine, and only certain users may read them."""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True)
class Permissions:
    """Modes of new folders and files."""

    folders: int
    files: int
    #: Whether they have these modes whatever the umask is.
    exact: bool = True


#: By the values of the option ``checkpoint.permissions``.
PERMISSIONS = {
    "owner": Permissions(0o700, 0o600),
    "group": Permissions(0o770, 0o660),
    "umask": Permissions(0o777, 0o666, exact=False),
}
OWNER_ONLY = PERMISSIONS["owner"]


def permissions_like(folder: str, otherwise: Permissions) -> Permissions:
    """Return permissions that match those of a folder, if it exists."""
    try:
        mode = os.stat(folder).st_mode & 0o777 | 0o700
    except OSError:
        return otherwise
    return Permissions(mode, mode & 0o666)


def write_atomic(target: str, data: bytes, permissions: Permissions, *, durable: bool = True) -> None:
    """Write a temporary file in the same folder, sync it unless it need not be durable, and rename it."""
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, temporary_name(name))
    try:
        with create(temporary, permissions) as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(folder)


def temporary_name(name: str) -> str:
    """Return a unique temporary name for a file that is to become `name`; clean-up recognizes such names."""
    return f".{name}.{uuid.uuid4().hex}.tmp"


def create(path: str, permissions: Permissions, buffering: int = -1) -> BinaryIO:
    """Create a file that does not exist, for writing, and the folders above it that do not exist."""
    make_folder(os.path.dirname(path), permissions)

    def opener(path: str, flags: int) -> int:
        # Not more than this at any moment, and where the umask takes something away, exactly this.
        descriptor = os.open(path, flags | os.O_CLOEXEC, permissions.files)
        if permissions.exact:
            _set_mode(descriptor, permissions.files)
        return descriptor

    return open(path, "xb", buffering=buffering, opener=opener)


def make_folder(folder: str, permissions: Permissions) -> None:
    """Make a folder and those above it that do not exist, each durable in its parent."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    make_folder(parent, permissions)
    try:
        os.mkdir(folder, permissions.folders)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    else:
        if permissions.exact:
            _set_mode(folder, permissions.folders)
    sync_folder(parent)


def remove_empty_folders(folder: str) -> None:
    """Remove a folder and those in it, each only if no file is in it or below it."""
    for parent, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(parent)


def _set_mode(target: int | str, mode: int) -> None:
    found = os.stat(target).st_mode
    if found & 0o777 != mode:
        # Some file systems have no modes. A folder keeps the bit by which its files get its group.
        with contextlib.suppress(OSError):
            os.chmod(target, mode | found & stat.S_ISGID)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable: a rename or a new file is durable only with its folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder above ours that may be passed through and not be read
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
