"""Leases: how a reader keeps a running query from deleting the checkpoint that it reads.

A lease is a small file in the operator's folder that names the data files of one checkpoint, and in its own
name the time until which they are needed.  Clean-up keeps a held checkpoint and these files, and deletes
leases that have expired: so a reader that is killed costs room for a while and nothing else.

Reader and clean-up share no lock; each does its part first and then looks for the other's.  A reader writes
its lease and then reads the metadata once more.  Clean-up deletes metadata, lists the leases, and then
deletes data.  So a reader that still saw the metadata is seen by the clean-up that deletes it, whichever was
faster.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from types import TracebackType

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.operator_folder import LeaseFile, OperatorFolder
from keyedstate.errors import CheckpointGoneError, StorageError

_log = logging.getLogger(__name__)

#: Seconds since 1970 UTC, as `time.time` gives them.
Clock = Callable[[], float]


class Lease:
    """A checkpoint whose data files stay; as a context manager it is released at the end.

    Attributes
    ----------
    metadata : CheckpointMetadata
        The checkpoint that is held.  Read this one and not the file again: where a batch runs again after a
        restart, another checkpoint takes the place of one that is held, and its data is not held.
    """

    def __init__(
        self, folder: OperatorFolder, metadata: CheckpointMetadata, file: LeaseFile | None, clock: Clock
    ) -> None:
        self.metadata = metadata
        self._folder = folder
        self._file = file
        self._clock = clock

    @property
    def protects(self) -> bool:
        """Whether anything is held: False where the storage refused to write, and after `release`."""
        return self._file is not None

    def renew(self, duration: float) -> None:
        """Hold on for `duration` seconds from now; does nothing where nothing is held.

        Raises
        ------
        CheckpointGoneError
            Where the lease had expired and clean-up has found that: files of the checkpoint may be missing.
        """
        if self._file is None:
            return
        old, folder = self._file, self._folder
        new = _write(folder, self.metadata, duration, self._clock)
        if not folder.storage.exists(old.path):
            folder.storage.delete_file(new.path)
            raise _gone(
                folder, self.metadata.epoch, "the lease on it has expired and was not renewed in time"
            )
        self._file = new
        _delete(folder, old)

    def release(self) -> None:
        """Let the checkpoint go; again does nothing."""
        if self._file is not None:
            file, self._file = self._file, None
            _delete(self._folder, file)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def lease(folder: OperatorFolder, epoch: int, duration: float, clock: Clock = time.time) -> Lease:
    """Keep the checkpoint of an epoch, and the data that it uses, from being cleaned up.

    Where the lease cannot be written, because the storage is read-only, there is a warning in the log and the
    caller continues without one: see `Lease.protects`.

    Parameters
    ----------
    duration : float
        Seconds until it expires by itself; `Lease.renew` extends it.  The clocks of the reader's and of the
        clean-up's machine are compared, so it should be minutes at the least.
    clock : callable
        Seconds since 1970 UTC.

    Raises
    ------
    CheckpointGoneError
        Where there is no such checkpoint, or not any more.
    CheckpointError
        Where its metadata cannot be read.
    """
    metadata = _metadata(folder, epoch)
    while True:
        try:
            file = _write(folder, metadata, duration, clock)
        except StorageError as error:
            _log.warning(
                "reading the checkpoint of epoch %d in %s unprotected: %s", epoch, folder.location, error
            )
            return Lease(folder, metadata, None, clock)
        try:
            found = _metadata(folder, epoch)
        except BaseException:
            _delete(folder, file)
            raise
        if found == metadata:
            return Lease(folder, metadata, file, clock)
        # The batch ran again and its checkpoint took the place of the one that was read.
        _delete(folder, file)
        metadata = found


def leased_epochs(folder: OperatorFolder, clock: Clock = time.time) -> set[int]:
    """Return the epochs that are held, after deleting the leases that have expired.

    Raises
    ------
    StorageError
    """
    now_ms = clock() * 1000.0
    leases = folder.leases()
    expired = [lease.path for lease in leases if lease.expires_ms <= now_ms]
    if expired:
        folder.storage.for_each(folder.storage.delete_file, expired)
        # Once more, for a lease that was renewed: its new file was written before the old one was missed.
        leases = folder.leases()
    return {lease.epoch for lease in leases}


def leased_data_files(folder: OperatorFolder) -> set[str]:
    """Return the data files that are held, to be asked after metadata was deleted and before data is.

    Raises
    ------
    CheckpointError
        Where a lease cannot be read: then it is unknown which files it needs.
    """
    return set().union(*folder.storage.for_each(folder.read_lease, folder.leases()))


def _metadata(folder: OperatorFolder, epoch: int) -> CheckpointMetadata:
    metadata = folder.read_metadata(epoch)
    if metadata is None:
        others = ", ".join(f"chk-{number}" for number in folder.checkpoints() if number != epoch)
        raise _gone(folder, epoch, f"there are {others}" if others else "there is no checkpoint at all")
    return metadata


def _gone(folder: OperatorFolder, epoch: int, found: str) -> CheckpointGoneError:
    return CheckpointGoneError(folder.location, folder.uid, epoch, found)


def _write(folder: OperatorFolder, metadata: CheckpointMetadata, duration: float, clock: Clock) -> LeaseFile:
    expires_ms = int((clock() + duration) * 1000.0)
    return folder.write_lease(metadata.epoch, expires_ms, uuid.uuid4().hex, metadata.data_files)


def _delete(folder: OperatorFolder, file: LeaseFile) -> None:
    try:
        folder.storage.delete_file(file.path)
    except StorageError as error:
        _log.warning("cannot release a lease, which will expire: %s", error)
