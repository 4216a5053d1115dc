"""Leases: a reader keeps a running query from deleting the checkpoint that it reads.

A lease is a small file in the operator's folder.  It lists the data files of one checkpoint; its name has the
time until which they are needed.  Clean-up keeps a leased checkpoint and these files, and deletes expired
leases: a killed reader costs space for a while and nothing else.

Reader and clean-up share no lock; each does its part first and then looks for the other's.  A reader writes
its lease and then reads the metadata again.  Clean-up deletes metadata, lists the leases, and then deletes
data.  So the clean-up that deletes metadata which a reader still saw sees its lease.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.operator_folder import LeaseFile, OperatorFolder
from keyedstate.errors import CheckpointGoneError, StorageError

_log = logging.getLogger(__name__)

#: Seconds since 1970 UTC, as `time.time` gives them.
Clock = Callable[[], float]


class Lease:
    """A lease on a checkpoint; as a context manager it is released at the end."""

    def __init__(
        self, folder: OperatorFolder, metadata: CheckpointMetadata, file: LeaseFile | None, clock: Clock
    ) -> None:
        #: The leased checkpoint.  Use this one and do not read the file again: where a batch runs again after
        #: a restart, another checkpoint replaces it, whose data is not leased.
        self.metadata = metadata
        self._folder = folder
        self._file = file
        self._clock = clock

    @property
    def protects(self) -> bool:
        """False where the storage refused to write, and after `release`."""
        return self._file is not None

    def renew(self, duration: float) -> None:
        """Extend the lease to `duration` seconds from now; does nothing where it does not protect.

        Raises `CheckpointGoneError` where the lease had expired and clean-up has deleted it: files of the
        checkpoint may be missing.
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
        """End the lease; again does nothing."""
        if self._file is not None:
            file, self._file = self._file, None
            _delete(self._folder, file)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lease(folder: OperatorFolder, epoch: int, duration: float, clock: Clock = time.time) -> Lease:
    """Keep clean-up from deleting the checkpoint of an epoch and its data.

    It expires after `duration` seconds, unless `Lease.renew` extends it.  The clocks of the reader's and of
    the clean-up's machine are compared, so that should be minutes at least.  Where the storage is read-only,
    a warning is logged and the caller continues unprotected (`Lease.protects`).

    Raises `CheckpointError` where the metadata cannot be read, and `CheckpointGoneError` where there is no
    such checkpoint, or not any more.
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


def leased_epochs(folder: OperatorFolder) -> set[int]:
    """Return the leased epochs, after deleting the expired leases; raises `StorageError`."""
    now_ms = time.time() * 1000.0
    leases = folder.leases()
    expired = [lease.path for lease in leases if lease.expires_ms <= now_ms]
    if expired:
        folder.storage.for_each(folder.storage.delete_file, expired)
        # Once more, for a lease that was renewed: its new file was written before the old one was missed.
        leases = folder.leases()
    return {lease.epoch for lease in leases}


def leased_data_files(folder: OperatorFolder) -> set[str]:
    """Return the leased data files; to be called after metadata was deleted and before data is.

    Raises `CheckpointError` where a lease cannot be read: then it is unknown which files it needs.
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
