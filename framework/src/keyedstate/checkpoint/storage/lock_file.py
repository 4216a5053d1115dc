"""The lock file that excludes two writers of a folder: which users may lock it, and which process has.

A process can lock each file that it can open, also one that it may only read.  So only users who may write
into the folder can open the file: a reader of checkpoints cannot block the writers.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from pathlib import Path

_LOCKS = Path("/proc/locks")
_MAX_COMMAND = 60


def open_lock(path: str) -> int:
    """Open the file, which is created if it does not exist; a file of this user gets the right mode.

    Raises `OSError` where it cannot be opened, with the reason as its `strerror`.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except PermissionError as error:
        raise PermissionError(error.errno, _refusal(path, error)) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError(None, "it is no regular file; delete it")
    if found.st_uid == os.geteuid():
        # To write into the folder is to be able to do worse than to lock it.
        writers = os.stat(os.path.dirname(path)).st_mode & 0o022
        mode = 0o600 | writers | writers << 1
        if stat.S_IMODE(found.st_mode) != mode:
            with contextlib.suppress(OSError):
                os.fchmod(descriptor, mode)
    return descriptor


def holders(descriptor: int) -> str:
    """Describe the processes that have locked a file, as far as this machine's kernel shows them."""
    found = os.fstat(descriptor)
    name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    processes = set()
    with contextlib.suppress(OSError, ValueError):
        for line in _LOCKS.read_text().splitlines():
            words = line.split()
            # Those that wait have an arrow before the kind.
            if words[1] == "FLOCK" and words[5] == name and int(words[4]) > 0:
                processes.add(int(words[4]))
    if not processes:
        return "a process that is not visible here, of another machine or container"
    return " and ".join(_described(process) for process in sorted(processes))


def _described(process: int) -> str:
    folder = Path(f"/proc/{process}")
    with contextlib.suppress(OSError):
        program, *arguments = folder.joinpath("cmdline").read_text(errors="replace").split("\0")
        # The folder of an interpreter may be longer than all that is shown.
        command = " ".join([Path(program).name, *arguments]).strip()
        return f"the process {process} of {_user(folder.stat().st_uid)} ({command[:_MAX_COMMAND]})"
    return f"the process {process}"


def _refusal(path: str, error: OSError) -> str:
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if found.st_uid != os.geteuid():
            return (
                f"it belongs to {_user(found.st_uid)}, who alone may write checkpoints here; run the query "
                "as that user, or set the option 'checkpoint.permissions' to 'group' for new folders"
            )
    return error.strerror or str(error)


def _user(number: int) -> str:
    with contextlib.suppress(KeyError):
        return f"the user {pwd.getpwuid(number).pw_name!r}"
    return f"the user {number}"
