"""Publication by tasks, where no driver receives acknowledgements, as on Spark Connect.

The task that finishes the last partition of an epoch publishes its checkpoint, before Spark learns that the
task succeeded; so every epoch that Spark commits has one.  Where Spark runs a partition again afterwards, the
new attempt publishes the epoch again, as a driver does for another acknowledgement.

Of several finished attempts at a partition Spark has taken the output of the one that began last: a task is
run again after the attempt before has failed.  Only a speculative attempt, and that of an executor that is
taken for dead, run beside another one.  Of two that run at once the second one to end is refused here, so its
task fails: Spark ignores that if it has taken the other output, and runs the task again if not.  A
speculative attempt that begins when the other one has just finished waits first: Spark kills it meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.protocol.operator_folder import AttemptFile, OperatorFolder
from keyedstate.checkpoint.protocol.owner import check_writer, exclusive
from keyedstate.errors import OvertakenAttemptError


def finished_at_start(attempts: Iterable[AttemptFile], identity: TaskIdentity) -> frozenset[str]:
    """Return the nonces of finished attempts at the partition of an attempt that begins.

    The attempts are those of its epoch, listed after its own marker was written.
    """
    return frozenset(attempt.nonce for attempt in _at_partition(attempts, identity) if attempt.finished)


def finish_attempt(
    folder: OperatorFolder,
    manifest: AttemptManifest,
    shared: Collection[str],
    finished_before: Collection[str],
) -> str:
    """Finish an attempt as `keyedstate.checkpoint.protocol.owner.write_attempt`, unless it was overtaken.

    `finished_before` is what `finished_at_start` returned.

    Raises
    ------
    OvertakenAttemptError
        Where another attempt at the partition has finished since this one began, or a later epoch has begun.
    StateFolderOwnedError, SupersededRunError
        As `check_writer`, where the storage has locks.
    """
    identity = manifest.identity
    with exclusive(folder):
        if folder.storage.is_local:
            check_writer(folder, identity.query_id, identity.run_id)
        attempts = list(_at_partition(folder.attempts(identity.epoch), identity))
        # The started marker is deleted once a later epoch has a checkpoint.
        is_settled = all(attempt.nonce != identity.nonce for attempt in attempts)
        overtaken = any(
            attempt.nonce not in finished_before or attempt.attempt > identity.attempt
            for attempt in attempts
            if attempt.finished
        )
        if overtaken or is_settled or _has_later_checkpoint(folder, identity):
            raise OvertakenAttemptError(identity.uid, identity.epoch, identity.partition, identity.attempt)
        # The lock is held for moments only, and the checkpoint makes durable what the manifest says.
        return folder.write_manifest(manifest, shared, durable=False)


def publish_if_complete(folder: OperatorFolder, identity: TaskIdentity) -> CheckpointMetadata | None:
    """Publish the checkpoint of an epoch if all its partitions have finished; to be called by each task last.

    Returns None where a partition is missing, and where another task has published or will publish the same.

    Raises as `check_writer`, and a `CheckpointError` where a manifest cannot be read or the checkpoint not be
    written; the task must fail then.
    """
    if len(_finished(folder, identity)) < identity.parallelism:
        return None
    with exclusive(folder):
        check_writer(folder, identity.query_id, identity.run_id)
        # What other tasks have finished, or clean-up deleted, while this one waited.
        finished = _finished(folder, identity)
        if len(finished) < identity.parallelism or _has_later_checkpoint(folder, identity):
            return None
        nonces = {attempt.nonce for attempt in finished.values()}
        published = folder.read_metadata(identity.epoch)
        if published is not None and {part.identity.nonce for part in published.parts} == nonces:
            return None
        paths = [attempt.path for attempt in finished.values()]
        metadata = CheckpointMetadata.of(list(folder.storage.for_each(folder.read_manifest, paths)))
        folder.write_metadata(metadata)
    return metadata


def _finished(folder: OperatorFolder, identity: TaskIdentity) -> dict[int, AttemptFile]:
    """Return the last finished attempt of the run at each partition of an epoch."""
    found: dict[int, AttemptFile] = {}
    for attempt in folder.attempts(identity.epoch):
        if attempt.finished and attempt.run_id == identity.run_id:
            other = found.get(attempt.partition)
            if other is None or attempt.attempt > other.attempt:
                found[attempt.partition] = attempt
    return found


def _at_partition(attempts: Iterable[AttemptFile], identity: TaskIdentity) -> Iterable[AttemptFile]:
    return (
        attempt
        for attempt in attempts
        if attempt.run_id == identity.run_id and attempt.partition == identity.partition
    )


def _has_later_checkpoint(folder: OperatorFolder, identity: TaskIdentity) -> bool:
    return any(epoch > identity.epoch for epoch in folder.checkpoints())
