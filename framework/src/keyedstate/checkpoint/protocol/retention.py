"""Which files may be deleted, and when: old checkpoints, settled attempts, unreferenced data files.

Clean-up lists what exists and remembers nothing, so the next one finds what a killed one leaves.  There are
no reference counts: a data file is needed while a visible checkpoint, an attempt that may still count, or a
lease references it.

Clean-up runs while the tasks of the next epochs do, and the references to a file move meanwhile, in one
direction: an attempt writes its marker before its data, its checkpoint is published while the attempts exist,
and leases are taken of existing checkpoints.  So clean-up lists in this order: data files, attempts,
checkpoints, leases.  It sees a file that moves from one to the next in one of them.  It deletes metadata
before the data that it references: a visible checkpoint is complete.
"""

from __future__ import annotations

from collections.abc import Iterable

from keyedstate.checkpoint.format.manifest import CheckpointMetadata, Owner, TaskIdentity, owner_path
from keyedstate.checkpoint.protocol.leases import leased_data_files, leased_epochs
from keyedstate.checkpoint.protocol.operator_folder import AttemptFile, OperatorFolder, data_paths
from keyedstate.checkpoint.protocol.owner import check_writer, exclusive
from keyedstate.errors import CorruptFileError


def prune(folder: OperatorFolder, published: CheckpointMetadata, retained: int) -> list[int]:
    """Delete what the publication of an epoch's checkpoint has made obsolete.

    It keeps the newest `retained` checkpoints at or below the epoch, all checkpoints above it, leased ones,
    the attempts of this and of later epochs, and the data files that any of these may reference.  Files of
    other names are left alone.  Returns the epochs whose checkpoints were deleted, ascending.

    Raises as `check_writer` where another run may write now, possibly at an earlier epoch; nothing was
    deleted then.  After another `CheckpointError` everything needed still exists.
    """
    candidates, attempts = folder.data_files(), _attempts(folder)
    # After the attempts were listed: those of a run that begins later are not among them.
    check_writer(folder, published.query_id, published.run_id)
    epoch = published.epoch
    kept: list[CheckpointMetadata] = []
    obsolete: list[int] = []
    damage: CorruptFileError | None = None
    at_or_below = 0
    leased = leased_epochs(folder)
    for number in reversed(folder.checkpoints()):
        if number <= epoch and at_or_below >= retained and number not in leased:
            obsolete.append(number)
            continue
        try:
            metadata = folder.read_metadata(number)
        except CorruptFileError as error:
            # It counts as kept, since a copy may be put back; what data it uses is unknown.
            damage = error
            at_or_below += number <= epoch
            continue
        if metadata is not None:
            kept.append(metadata)
            at_or_below += number <= epoch
        elif number < epoch:
            obsolete.append(number)
    with exclusive(folder):
        check_writer(folder, published.query_id, published.run_id)
        # The oldest first: a task that looks meanwhile must not take it for the newest.
        for number in sorted(obsolete):
            folder.delete_checkpoint(number)
    folder.storage.for_each(folder.delete_attempts, [number for number in attempts if number < epoch])
    if damage is not None:
        raise damage
    current = [attempt for number, listed in attempts.items() if number >= epoch for attempt in listed]
    _delete_unused(folder, candidates, kept, current)
    return sorted(obsolete)


def sweep(folder: OperatorFolder, identity: TaskIdentity) -> None:
    """Delete what earlier runs have left, when the run of an attempt begins.

    That is each data file that no checkpoint, lease or attempt references, the temporary files of killed
    processes and, where the storage has locks, the attempts of older runs at the new run's epoch: otherwise a
    query that restarts in the same epoch for a whole night would add the size of its state each time.  Where
    the epoch has no checkpoint, the newest older run that finished all partitions is spared: Spark may have
    committed its output, and this run may die before it publishes the epoch.  Without locks an older run may
    still finish its attempts, so all are kept until a later epoch is published.  Raises as `prune`.
    """
    candidates, attempts = folder.data_files(), _attempts(folder)
    owner = check_writer(folder, identity.query_id, identity.run_id)
    checkpoints = [metadata for metadata in map(folder.read_metadata, folder.checkpoints()) if metadata]
    useless: list[AttemptFile] = []
    if owner is not None and folder.storage.is_local:
        listed = attempts.get(identity.epoch, ())
        useless = [attempt for attempt in listed if owner.superseded_by(attempt.run_id) is not None]
        if not any(metadata.epoch == identity.epoch for metadata in checkpoints):
            spared = _newest_finished_run(folder, useless, owner)
            useless = [attempt for attempt in useless if attempt.run_id != spared]
    others = [attempt for listed in attempts.values() for attempt in listed if attempt not in useless]
    # Data first: a marker that is left lets the next clean-up find its data.
    _delete_unused(folder, candidates, checkpoints, others)
    folder.storage.for_each(folder.storage.delete_file, [attempt.path for attempt in useless])
    folder.delete_stale_temporaries()


def _newest_finished_run(folder: OperatorFolder, attempts: Iterable[AttemptFile], owner: Owner) -> str | None:
    """Return the newest run that finished all partitions of the epoch of these attempts."""
    finished: dict[str, dict[int, AttemptFile]] = {}
    for attempt in attempts:
        if attempt.finished:
            finished.setdefault(attempt.run_id, {})[attempt.partition] = attempt
    for run in sorted(finished, key=owner.position, reverse=True):
        manifest = folder.read_manifest(next(iter(finished[run].values())).path)
        if len(finished[run]) == manifest.identity.parallelism:
            return run
    return None


def _attempts(folder: OperatorFolder) -> dict[int, list[AttemptFile]]:
    epochs = folder.attempt_epochs()
    return dict(zip(epochs, folder.storage.for_each(folder.attempts, epochs), strict=True))


def _delete_unused(
    folder: OperatorFolder,
    candidates: Iterable[str],
    checkpoints: Iterable[CheckpointMetadata],
    attempts: Iterable[AttemptFile],
) -> None:
    used = {path for metadata in checkpoints for part in metadata.parts for path in part.kept_files}
    used.update(path for attempt in attempts for path in data_paths(attempt.nonce))
    # Last of all, see `keyedstate.checkpoint.protocol.leases`.
    used |= leased_data_files(folder)
    # Native files that are being uploaded have the name of the segment file that they replace.
    unused = [path for path in candidates if path not in used and owner_path(path) not in used]
    folder.storage.for_each(folder.storage.delete_file, unused)
