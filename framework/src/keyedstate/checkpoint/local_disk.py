"""Writing on a local disk so that what was written is there after a crash of the machine too."""

from __future__ import annotations

import contextlib
import os
import uuid


def write_atomic(target: str, data: bytes, *, durable: bool = True) -> None:
    """Write a file under another name in its folder, sync it unless it need not be durable, and rename it."""
    folder, name = os.path.split(target)
    make_folder(folder)
    temporary = os.path.join(folder, temporary_name(name))
    try:
        with open(temporary, "xb") as stream:
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
    """Return a name of its own for a file that is to become `name`; clean-up knows such names."""
    return f".{name}.{uuid.uuid4().hex}.tmp"


def make_folder(folder: str) -> None:
    """Make a folder and those above it, each durable in the one that names it."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    make_folder(parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    sync_folder(parent)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable: a rename or a new file is so only with the folder that names it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder above ours that may be passed through and not be read
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
