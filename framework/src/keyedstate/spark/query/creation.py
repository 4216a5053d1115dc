"""Savepoints of streaming queries, taken of their checkpoints.

A savepoint is made of a published checkpoint of each operator, which is whole and never changes; so a running
query is not asked for anything, and does not wait.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from keyedstate.checkpoint import (
    CheckpointMetadata,
    CheckpointStorage,
    Lease,
    OperatorFolder,
    Owner,
    SavepointFolder,
    SavepointWriter,
    SparkPosition,
    TaskIdentity,
    find_restore_point,
    lease,
)
from keyedstate.checkpoint.savepoint.canonical import CopyProgress, bytes_of, write_canonical
from keyedstate.checkpoint.savepoint.location import operators_in
from keyedstate.checkpoint.savepoint.savepoint import Progress
from keyedstate.checkpoint.storage.filesystem import Location
from keyedstate.errors import (
    CheckpointGoneError,
    MissingCheckpointError,
    NoCommonEpochError,
    NoSnapshotError,
    StateFolderOwnedError,
    UnknownEpochError,
)
from keyedstate.spark.query.location import QueryLocation

#: A lease of a creation that was killed ends after so many seconds; one that goes on renews it.
_HOLD_SECONDS = 3600.0
_ATTEMPTS = 10


def take_savepoint(
    target: Location,
    checkpoint_dir: Location,
    spark_checkpoint_location: Location | None,
    uids: Sequence[str] | None,
    epoch: int | None,
    progress: Progress | None,
) -> SavepointFolder:
    """Make a savepoint of the checkpoints in a folder; as `Savepoint.create`."""
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
    """Make a savepoint of operators' folders; as `Savepoint.create`, which finds them."""
    with contextlib.ExitStack() as stack:
        if not isinstance(target, CheckpointStorage):
            target = replace(CheckpointStorage.open(target), permissions=folders[0].storage.permissions)
        writer = stack.enter_context(SavepointWriter(target))
        holds = contextlib.ExitStack()
        stack.enter_context(holds)
        position, held = _held(folders, location, epoch, holds)
        if location is not None and position is not None:
            for path, data in location.files_at(position.epoch).items():
                writer.add_spark_file(path, data)
        copied = CopyProgress(
            sum(bytes_of(one.metadata) for one in held),
            _renewing(held, progress or (lambda done, total: None)),
        )
        for folder, one in zip(folders, held, strict=True):
            target = writer.storage(folder.uid)
            writer.add_operator(write_canonical(one.metadata, folder.storage, target, progress=copied))
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
    # Without uids the folder may be that of several queries, of which Spark's location names one.
    if foreign and (uids or query_id is None or len(foreign) == len(found)):
        other = owners[foreign[0].uid].query_id
        raise StateFolderOwnedError(foreign[0].location, f"query {other}", wanted)
    return [folder for folder in found if folder not in foreign]


def _owner(folder: OperatorFolder) -> Owner:
    owner = folder.read_owner()
    if owner is None:
        raise NoSnapshotError(folder.location, folder.storage.list(), "it has no owner file")
    return owner


def _held(
    folders: Sequence[OperatorFolder],
    location: QueryLocation | None,
    epoch: int | None,
    stack: contextlib.ExitStack,
) -> tuple[SparkPosition | None, list[Lease]]:
    """Hold the checkpoints of the newest epoch that all operators have, in their order."""
    for remaining in reversed(range(_ATTEMPTS)):
        reason = "There is none." if location is None else f"Spark has committed none in {location.location}."
        for candidate in _candidates(folders, location, epoch):
            with contextlib.ExitStack() as attempt:
                try:
                    held = [
                        attempt.enter_context(_hold_after(folder, candidate, location is not None))
                        for folder in folders
                    ]
                except (UnknownEpochError, CheckpointGoneError) as error:
                    if epoch is not None and isinstance(error, UnknownEpochError):
                        raise
                    reason = f"Of epoch {candidate}: {error}"
                    continue
                stack.push(attempt.pop_all())
                query_id = held[0].metadata.query_id
                return None if location is None else SparkPosition(query_id, candidate), held
        # A running query publishes, commits and cleans up while this looks: then there are newer ones.
        if not remaining or epoch is not None:
            break
        time.sleep(0.05)
    raise NoCommonEpochError([folder.location for folder in folders], reason)


def _candidates(
    folders: Sequence[OperatorFolder], location: QueryLocation | None, epoch: int | None
) -> list[int]:
    """Return the epochs that come into question, the newest first."""
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


def _hold_after(folder: OperatorFolder, epoch: int, committed: bool) -> Lease:
    """Hold the checkpoint with the state after an epoch.

    It is of an earlier one where the operator was not evaluated since; but then it must be known that none
    in between was cleaned up: of all that there is, clean-up keeps the newest two.
    """
    if not committed:
        return lease(folder, epoch, _HOLD_SECONDS)
    owner = _owner(folder)
    run_id = owner.runs[-1] if owner.runs else uuid.uuid4().hex
    # The next epoch begins from what a task of the next one would begin from.
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
    there = folder.checkpoints()
    if metadata is None or (
        metadata.epoch < epoch and len([number for number in there if number > metadata.epoch]) > 1
    ):
        raise UnknownEpochError(folder.location, epoch, there)
    return lease(folder, metadata.epoch, _HOLD_SECONDS)


def _renewing(held: Sequence[Lease], progress: Progress) -> Callable[[int, int], None]:
    renewed = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal renewed
        if time.monotonic() - renewed > _HOLD_SECONDS / 10:
            for one in held:
                one.renew(_HOLD_SECONDS)
            renewed = time.monotonic()
        progress(done, total)

    return report
