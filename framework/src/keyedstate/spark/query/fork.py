"""Forks: new queries that continue from a savepoint of another one."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from keyedstate.checkpoint.format.manifest import Owner
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.savepoint.canonical import CopyProgress, write_canonical
from keyedstate.checkpoint.savepoint.savepoint import Progress, SavepointFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, Location, OutputFile
from keyedstate.errors import CheckpointError, NotForkableError, TargetExistsError
from keyedstate.spark.query.location import QueryLocation


@dataclass(frozen=True)
class Fork:
    """A query that continues from a savepoint, and was not started yet.

    Attributes
    ----------
    query_id : str
        Of the new query.
    epoch : int
        The micro-batch of the savepoint, after which it continues.
    operators : tuple of str
    """

    query_id: str
    epoch: int
    operators: tuple[str, ...]


def fork_savepoint(
    origin: SavepointFolder,
    spark_checkpoint_location: Location,
    checkpoint_dir: Location,
    progress: Progress | None,
) -> Fork:
    """See `Savepoint.fork`."""
    if origin.spark is None:
        raise NotForkableError(origin.location)
    written: list[Callable[[], None]] = []
    location = QueryLocation(_noting(QueryLocation.open(spark_checkpoint_location).storage, written))
    storage = _noting(CheckpointStorage.at(checkpoint_dir), written)
    folders = [OperatorFolder(storage, uid) for uid in origin.operators]
    for target, what in ((location.storage, "query"), *((folder.storage, "state") for folder in folders)):
        files = target.files()
        if files:
            raise TargetExistsError(target.location(), files, what)
    fork = Fork(str(uuid.uuid4()), origin.spark.epoch, origin.operators)
    copied = CopyProgress(origin.data_bytes(), progress)
    try:
        for folder in folders:
            _fork_operator(origin, folder, fork, copied)
        files_of_spark = {path: origin.read_spark_file(path) for path in origin.spark_files()}
        location.write(files_of_spark, fork.query_id)
    except BaseException:
        with contextlib.suppress(CheckpointError):
            # In reverse order: the last file makes the others valid.
            for delete in reversed(written):
                delete()
        raise
    return fork


@dataclass(frozen=True)
class _NotingStorage(CheckpointStorage):
    """Notes the files that this fork writes, because another one may write here too."""

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


def _fork_operator(
    origin: SavepointFolder, folder: OperatorFolder, fork: Fork, progress: CopyProgress
) -> None:
    metadata = origin.metadata(folder.uid)
    whole = write_canonical(metadata, origin.storage(folder.uid), folder.storage, progress=progress)
    # An unknown run: the first run of the fork must see that this checkpoint is of another one.
    run_id = str(uuid.uuid4())
    parts = tuple(
        replace(part, identity=replace(part.identity, query_id=fork.query_id, run_id=run_id))
        for part in whole.parts
    )
    folder.write_metadata(replace(whole, query_id=fork.query_id, run_id=run_id, parts=parts))
    folder.write_owner(Owner(fork.query_id, folder.uid, whole.max_parallelism, whole.epoch, ()))
