"""Savepoints of streaming queries, copied from their checkpoints.

A published checkpoint is complete and never changes, so a running query neither takes part nor waits.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from keyedstate.checkpoint.format.manifest import CheckpointMetadata, Owner, TaskIdentity
from keyedstate.checkpoint.protocol.leases import Lease, lease
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import find_restore_point
from keyedstate.checkpoint.savepoint.canonical import CopyProgress, bytes_of, write_canonical
from keyedstate.checkpoint.savepoint.file_positions import spark_files_of
from keyedstate.checkpoint.savepoint.location import operators_in
from keyedstate.checkpoint.savepoint.savepoint import (
    Progress,
    SavepointFolder,
    SavepointWriter,
    SparkPosition,
)
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, Location
from keyedstate.errors import (
    CheckpointGoneError,
    MissingCheckpointError,
    NoCommonEpochError,
    NoSnapshotError,
    StateFolderOwnedError,
    UnknownEpochError,
)
from keyedstate.spark.query.location import QueryLocation

#: The time of a lease, which a running creation renews.
_LEASE_SECONDS = 3600.0
_ATTEMPTS = 10


def take_savepoint(
    target: Location,
    checkpoint_dir: Location,
    spark_checkpoint_location: Location | None,
    uids: Sequence[str] | None,
    epoch: int | None,
    progress: Progress | None,
) -> SavepointFolder:
    """See `Savepoint.create`."""
    location = None if spark_checkpoint_location is None else QueryLocation.open(spark_checkpoint_location)
    query_id = None if location is None else location.query_id()
    folders = query_folders(CheckpointStorage.at(checkpoint_dir), uids, query_id)
    return savepoint_of(target, folders, location, epoch=epoch, progress=progress)


def savepoint_of(
    target: Location,
    folders: Sequence[OperatorFolder],
    location: QueryLocation | None,
    *,
    epoch: int | None = None,
    drained: bool = False,
    watermark: int | None = None,
    progress: Progress | None = None,
) -> SavepointFolder:
    """Make a savepoint of operators' folders; raises as `Savepoint.create`."""
    with contextlib.ExitStack() as stack:
        if not isinstance(target, CheckpointStorage):
            target = replace(CheckpointStorage.open(target), permissions=folders[0].storage.permissions)
        writer = stack.enter_context(SavepointWriter(target))
        position, leases = _leased(folders, location, epoch, stack.enter_context(contextlib.ExitStack()))
        if location is not None and position is not None:
            for path, data in location.files_at(position.epoch).items():
                writer.add_spark_file(path, data)
        if location is None:
            # Those that Spark would have, where a local run has read files to their ends.
            files = spark_files_of(each.metadata for each in leases)
            for path, data in files.items():
                writer.add_spark_file(path, data)
            if files:
                position = SparkPosition(leases[0].metadata.query_id, leases[0].metadata.epoch)
        copied = CopyProgress(
            sum(bytes_of(each.metadata) for each in leases),
            _renewing(leases, progress or (lambda done, total: None)),
        )
        for folder, each in zip(folders, leases, strict=True):
            storage = writer.storage(folder.uid)
            writer.add_operator(write_canonical(each.metadata, folder.storage, storage, progress=copied))
        return writer.finish(spark=position, drained=drained, watermark=watermark)


def query_folders(
    storage: CheckpointStorage, uids: Sequence[str] | None, query_id: str | None
) -> list[OperatorFolder]:
    """Return the folders of a query's operators; raises as `Savepoint.create`."""
    found = [OperatorFolder(storage, uid) for uid in (uids or operators_in(storage))]
    if not found:
        raise NoSnapshotError(storage.location(), storage.list())
    owners = {folder.uid: _owner(folder) for folder in found}
    wanted = query_id or owners[found[0].uid].query_id
    foreign = [folder for folder in found if owners[folder.uid].query_id != wanted]
    # Without uids the folder may have several queries; Spark's location names one.
    if foreign and (uids or query_id is None or len(foreign) == len(found)):
        other = owners[foreign[0].uid].query_id
        raise StateFolderOwnedError(foreign[0].location, f"query {other}", wanted)
    return [folder for folder in found if folder not in foreign]


def _owner(folder: OperatorFolder) -> Owner:
    owner = folder.read_owner()
    if owner is None:
        raise NoSnapshotError(folder.location, folder.storage.list(), "it has no owner file")
    return owner


def _leased(
    folders: Sequence[OperatorFolder],
    location: QueryLocation | None,
    epoch: int | None,
    stack: contextlib.ExitStack,
) -> tuple[SparkPosition | None, list[Lease]]:
    """Take leases of the operators' checkpoints of the newest epoch that all of them have."""
    for remaining in reversed(range(_ATTEMPTS)):
        reason = "None exists." if location is None else f"Spark has committed none in {location.location}."
        for candidate in _candidates(folders, location, epoch):
            with contextlib.ExitStack() as attempt:
                try:
                    leases = [
                        attempt.enter_context(_lease_after(folder, candidate, location is not None))
                        for folder in folders
                    ]
                except (UnknownEpochError, CheckpointGoneError) as error:
                    if epoch is not None and isinstance(error, UnknownEpochError):
                        raise
                    reason = f"Of epoch {candidate}: {error}"
                    continue
                stack.push(attempt.pop_all())
                query_id = leases[0].metadata.query_id
                return None if location is None else SparkPosition(query_id, candidate), leases
        # A running query publishes, commits and deletes meanwhile: look for newer ones.
        if not remaining or epoch is not None:
            break
        time.sleep(0.05)
    raise NoCommonEpochError([folder.location for folder in folders], reason)


def _candidates(
    folders: Sequence[OperatorFolder], location: QueryLocation | None, epoch: int | None
) -> list[int]:
    """Return the possible epochs, the newest first."""
    if location is None:
        common = set.intersection(*(set(folder.checkpoints()) for folder in folders))
        found = sorted(common, reverse=True)
    else:
        found = location.committed()[::-1]
    if epoch is None:
        return found
    if epoch not in found:
        searched = folders[0].location if location is None else location.location
        raise UnknownEpochError(searched, epoch, sorted(found))
    return [epoch]


def _lease_after(folder: OperatorFolder, epoch: int, committed: bool) -> Lease:
    """Take a lease of the checkpoint with the state after an epoch.

    It is an earlier one if the operator was not evaluated since.  Clean-up keeps the newest two, so with more
    than one newer checkpoint the right one may be deleted.
    """
    if not committed:
        return lease(folder, epoch, _LEASE_SECONDS)
    owner = _owner(folder)
    run_id = owner.runs[-1] if owner.runs else uuid.uuid4().hex
    # As a task of the next epoch would restore it.
    identity = TaskIdentity(
        uid=folder.uid,
        query_id=owner.query_id,
        run_id=run_id,
        epoch=epoch + 1,
        partition=0,
        parallelism=1,
        max_parallelism=owner.max_parallelism,
        attempt=0,
        nonce=uuid.uuid4().hex,
    )
    metadata: CheckpointMetadata | None = None
    with contextlib.suppress(MissingCheckpointError):
        metadata = find_restore_point(folder, identity)
    retained = folder.checkpoints()
    if metadata is None or (
        metadata.epoch < epoch and len([number for number in retained if number > metadata.epoch]) > 1
    ):
        raise UnknownEpochError(folder.location, epoch, retained)
    return lease(folder, metadata.epoch, _LEASE_SECONDS)


def _renewing(leases: Sequence[Lease], progress: Progress) -> Callable[[int, int], None]:
    renewed = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal renewed
        if time.monotonic() - renewed > _LEASE_SECONDS / 10:
            for each in leases:
                each.renew(_LEASE_SECONDS)
            renewed = time.monotonic()
        progress(done, total)

    return report
