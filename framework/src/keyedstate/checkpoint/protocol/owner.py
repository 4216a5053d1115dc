"""One writer for each state folder: which run may write, and what keeps two of them from writing at once.

The owner file names the query and its runs; only the newest run may publish and delete.  What a run reads
there may be outdated when it acts.  On a local disk (and on a network file system with locks) a lock, which
ends with its process, closes that gap: a run enters itself, and publishes a checkpoint, each under the lock.
For object stores pyarrow has no write that fails where an object exists.  There a run reads the owner file
again after it has written it, and before each publication; the time from that read to the end of the write
stays unprotected.  A task takes the lock shared when it finishes its attempt: after a run has entered, no
older one finishes any.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Collection, Iterator

from keyedstate.checkpoint.format.manifest import AttemptManifest, Owner
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.local_disk import make_folder
from keyedstate.checkpoint.storage.lock_file import holders, open_lock
from keyedstate.errors import StateFolderOwnedError, StorageError, SupersededRunError

LOCK = "_lock"
#: Seconds to wait for a lock, which a process holds for one small write.
LOCK_TIMEOUT = 60.0
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


@contextlib.contextmanager
def exclusive(
    folder: OperatorFolder, timeout: float = LOCK_TIMEOUT, *, shared: bool = False
) -> Iterator[None]:
    """Exclude every other process and thread from the same block for a folder, where its storage has locks.

    Those that enter `shared` exclude only those that do not. The folder is created if it does not exist.
    Raises `StorageError` where the lock is not free in `timeout` seconds: a process that has it was stopped,
    or its machine hangs.
    """
    if not folder.storage.is_local:
        yield
        return
    descriptor = _open(folder)
    try:
        _lock(descriptor, folder, timeout, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        # Closing alone leaves the lock with a process that was forked meanwhile, for as long as that lives.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def check_writer(folder: OperatorFolder, query_id: str, run_id: str) -> Owner | None:
    """Refuse a run that may not write, or not any more; returns the owner file, if there is one.

    Raises `StateFolderOwnedError` where the folder is another query's, and `SupersededRunError` where another
    run is the newest.
    """
    owner = folder.read_owner()
    if owner is None:
        return None
    if owner.query_id != query_id:
        raise StateFolderOwnedError(folder.location, f"query {owner.query_id}", query_id)
    if owner.runs and owner.runs[-1] != run_id:
        raise SupersededRunError(folder.location, run_id, owner.runs[-1])
    return owner


def write_attempt(folder: OperatorFolder, manifest: AttemptManifest, shared: Collection[str] = ()) -> str:
    """Finish an attempt as `OperatorFolder.write_manifest`, unless its run was superseded.

    Where the storage has locks, it raises as `check_writer`.  Without locks a check would prove nothing, and
    would cost each task a request.
    """
    if not folder.storage.is_local:
        return folder.write_manifest(manifest, shared)
    with exclusive(folder, shared=True):
        check_writer(folder, manifest.identity.query_id, manifest.identity.run_id)
        return folder.write_manifest(manifest, shared)


def _open(folder: OperatorFolder) -> int:
    path = os.path.join(folder.storage.root, LOCK)
    try:
        make_folder(folder.storage.root, folder.storage.permissions)
        return open_lock(path)
    except OSError as error:
        raise StorageError(folder.storage.location(LOCK), "lock", error.strerror or str(error)) from error


def _lock(descriptor: int, folder: OperatorFolder, timeout: float, kind: int) -> None:
    deadline, pause = time.monotonic() + timeout, 0.001
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                raise StorageError(folder.storage.location(LOCK), "lock", str(error.strerror)) from error
        if time.monotonic() >= deadline:
            reason = (
                f"{holders(descriptor)} has locked it for {timeout:g} s, and no task needs it for long; "
                "end that process if it hangs"
            )
            raise StorageError(folder.storage.location(LOCK), "lock", reason)
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
