"""Savepoints of streaming queries: taken of their checkpoints, and made the beginning of a fork.

A savepoint is made of a published checkpoint of each operator, which is whole and never changes; so a running
query is not asked for anything, and does not wait.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from keyedstate.checkpoint import (
    CheckpointMetadata,
    CheckpointStorage,
    Lease,
    OperatorFolder,
    Owner,
    Savepoint,
    SavepointWriter,
    SparkPosition,
    TaskIdentity,
    find_restore_point,
    lease,
)
from keyedstate.checkpoint.savepoint.canonical import CopyProgress, bytes_of, write_whole
from keyedstate.checkpoint.savepoint.savepoint import Progress
from keyedstate.checkpoint.savepoint.state_location import operators_in
from keyedstate.checkpoint.storage.filesystem import OutputFile, Place
from keyedstate.errors import (
    CheckpointError,
    CheckpointGoneError,
    MissingCheckpointError,
    NoCommonEpochError,
    NoStoredStateError,
    NotForkableError,
    SavepointTargetError,
    StateFolderOwnedError,
    UnknownEpochError,
)
from keyedstate.spark.savepoint.query_location import QueryLocation

#: A lease of a creation that was killed ends after so many seconds; one that goes on renews it.
_HOLD_SECONDS = 3600.0
_ATTEMPTS = 10


@dataclass(frozen=True)
class Fork:
    """A query that goes on from a savepoint, and has not been started yet.

    Attributes
    ----------
    query_id : str
        Its new id.
    epoch : int
        The micro-batch of its parent behind which it goes on.
    operators : tuple of str
    """

    query_id: str
    epoch: int
    operators: tuple[str, ...]


def create_savepoint(
    place: Place,
    checkpoint_dir: Place,
    spark_checkpoint_location: Place | None = None,
    *,
    uids: Sequence[str] | None = None,
    epoch: int | None = None,
    drained: bool = False,
    watermark: int | None = None,
    progress: Progress | None = None,
) -> Savepoint:
    """Make a savepoint of the checkpoints of a query, whether it runs or not; no Spark is needed.

    Parameters
    ----------
    place : str or path
        The new folder.
    checkpoint_dir : str or path
        The option ``checkpoint.dir`` of the query.
    spark_checkpoint_location : str or path, optional
        The query's ``checkpointLocation``.  With it the savepoint is that of the newest micro-batch that
        Spark has committed and the operators retain, and may be forked; without it that of their newest
        checkpoints of one epoch, and only a new query may start from it.
    uids : sequence of str, optional
        The operators; by default all that belong to the query.
    epoch : int, optional
        The micro-batch, where it is to be another one that is still retained.
    drained, watermark
        What the savepoint is to say of the query, see `Savepoint`.
    progress : callable, optional
        Told how many of how many bytes are done.

    Raises
    ------
    NoStoredStateError, StateFolderOwnedError
        Where the folder has no operator, or none of the query.
    NoCommonEpochError, UnknownEpochError
        Where the operators have no checkpoints of one epoch, or of the given one.
    IncompleteEpochError
        Where an epoch ran and no checkpoint can be made of it.
    SavepointTargetError
        Where something is at the place already.
    SparkStateError, SparkLocationError
        Where the query cannot go on elsewhere.
    CheckpointError
        Where a file, which is named, is damaged or cannot be read or written.
    """
    storage = CheckpointStorage.at(checkpoint_dir)
    location = None if spark_checkpoint_location is None else QueryLocation.open(spark_checkpoint_location)
    query_id = None if location is None else location.query_id()
    folders = query_folders(storage, uids, query_id)
    return savepoint_of(
        place, folders, location, epoch=epoch, drained=drained, watermark=watermark, progress=progress
    )


def savepoint_of(
    place: Place,
    folders: Sequence[OperatorFolder],
    location: QueryLocation | None,
    *,
    epoch: int | None = None,
    drained: bool = False,
    watermark: int | None = None,
    progress: Progress | None = None,
) -> Savepoint:
    """Make a savepoint of operators' folders; as `create_savepoint`, which finds them."""
    with contextlib.ExitStack() as stack:
        if not isinstance(place, CheckpointStorage):
            place = replace(CheckpointStorage.open(place), permissions=folders[0].storage.permissions)
        writer = stack.enter_context(SavepointWriter(place))
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
            writer.add_operator(write_whole(one.metadata, folder.storage, target, progress=copied))
        return writer.finish(spark=position, drained=drained, watermark=watermark)


def fork_savepoint(
    savepoint: Place,
    spark_checkpoint_location: Place,
    checkpoint_dir: Place,
    *,
    progress: Progress | None = None,
) -> Fork:
    """Prepare a query that goes on from a savepoint exactly where its own query was.

    Start it with the same program, the new locations and a sink of its own.  It goes on with the next
    micro-batch, from the same offsets; neither the query that the savepoint is of nor the savepoint is
    touched or needed any more.

    Parameters
    ----------
    savepoint : str or path
    spark_checkpoint_location : str or path
        The ``checkpointLocation`` of the new query: a folder that is empty or does not exist.
    checkpoint_dir : str or path
        Its option ``checkpoint.dir``; the folder may hold other operators, of other queries.
    progress : callable, optional

    Raises
    ------
    NotASavepointError, NotForkableError
    SavepointTargetError
        Where a target is not empty; nothing was written.
    CheckpointError
        Where a file, which is named, is damaged or cannot be read or written; what was written is deleted.

    Notes
    -----
    Killed on its way it leaves folders that no query can use: each state folder gets its owner last, and
    Spark's location, written after them all, its id last.  Delete them and fork again.
    """
    origin = Savepoint.open(savepoint)
    if origin.spark is None:
        raise NotForkableError(origin.location)
    written: list[Callable[[], None]] = []
    location = QueryLocation(_noting(QueryLocation.open(spark_checkpoint_location).storage, written))
    storage = _noting(CheckpointStorage.at(checkpoint_dir), written)
    folders = [OperatorFolder(storage, uid) for uid in origin.operators]
    for target, what in ((location.storage, "query"), *((folder.storage, "state") for folder in folders)):
        files = target.files()
        if files:
            raise SavepointTargetError(target.location(), files, what)
    fork = Fork(str(uuid.uuid4()), origin.spark.epoch, origin.operators)
    copied = CopyProgress(origin.data_bytes(), progress)
    try:
        for folder in folders:
            _fork_operator(origin, folder, fork, copied)
        files_of_spark = {path: origin.read_spark_file(path) for path in origin.spark_files()}
        location.write(files_of_spark, fork.query_id)
    except BaseException:
        with contextlib.suppress(CheckpointError):
            # The last first: it is what makes the others count.
            for delete in reversed(written):
                delete()
        raise
    return fork


@dataclass(frozen=True)
class _NotingStorage(CheckpointStorage):
    """Notes how each file that is written through it is deleted again: another fork may write here too."""

    written: list[Callable[[], None]] = field(default_factory=list)

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        super().write_atomic(path, data, durable=durable)
        self.written.append(lambda: self.delete_file(path))

    def open_output(self, path: str) -> OutputFile:
        output = super().open_output(path)
        self.written.append(lambda: self.delete_file(path))
        return output


def _noting(storage: CheckpointStorage, written: list[Callable[[], None]]) -> _NotingStorage:
    return _NotingStorage(
        storage.filesystem, storage.root, storage.uri, storage.retry, storage.permissions, written
    )


def _fork_operator(origin: Savepoint, folder: OperatorFolder, fork: Fork, progress: CopyProgress) -> None:
    metadata = origin.metadata(folder.uid)
    whole = write_whole(metadata, origin.storage(folder.uid), folder.storage, progress=progress)
    # A run that nobody has seen: the first one of the fork must find that it is not of this one.
    run_id = str(uuid.uuid4())
    parts = tuple(
        replace(part, identity=replace(part.identity, query_id=fork.query_id, run_id=run_id))
        for part in whole.parts
    )
    folder.write_metadata(replace(whole, query_id=fork.query_id, run_id=run_id, parts=parts))
    folder.write_owner(Owner(fork.query_id, folder.uid, whole.max_parallelism, whole.epoch, ()))


def query_folders(
    storage: CheckpointStorage, uids: Sequence[str] | None, query_id: str | None
) -> list[OperatorFolder]:
    """Return the folders of a query's operators; raises as `create_savepoint`."""
    found = [OperatorFolder(storage, uid) for uid in (uids or operators_in(storage))]
    if not found:
        raise NoStoredStateError(storage.location(), storage.list())
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
        raise NoStoredStateError(folder.location, folder.storage.list(), "it has no owner file")
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
        place = folders[0].location if location is None else location.location
        raise UnknownEpochError(place, epoch, sorted(found))
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
    # Whoever goes on after the epoch begins from what a task of the next one would begin from.
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
