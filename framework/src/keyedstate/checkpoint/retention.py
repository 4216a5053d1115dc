"""What may be deleted, and when: old checkpoints, settled attempts, data files that nothing needs.

Deletion goes by what is listed and never by what is remembered, so that whatever a killed clean-up leaves is
found by the next one.  Metadata goes before the data that it names: a checkpoint that can be seen is whole.
"""

from __future__ import annotations

from keyedstate.checkpoint.errors import CorruptManifestError
from keyedstate.checkpoint.folder import OperatorFolder, data_paths
from keyedstate.checkpoint.holds import held_data_files, held_epochs
from keyedstate.checkpoint.manifest import CheckpointMetadata, Owner


def prune(folder: OperatorFolder, epoch: int, retained: int) -> None:
    """Delete what the publication of an epoch's checkpoint has made useless.

    Kept are the newest `retained` checkpoints at or below the epoch, all checkpoints above it, those that a
    reader holds, the attempts of this and of later epochs, and the data files that any of these may use.
    Names that this package does not give are left alone.

    Raises
    ------
    CheckpointError
        Where something cannot be read or deleted; what is needed is there all the same.
    """
    # Listed before the attempts: an attempt's marker precedes its data file, so that a data file which is
    # seen here and has no attempt of its name below cannot be one that a task is writing now.
    candidates = folder.data_files()
    kept: list[CheckpointMetadata] = []
    obsolete: list[int] = []
    damage: CorruptManifestError | None = None
    at_or_below = 0
    held = held_epochs(folder)
    for number in reversed(folder.checkpoints()):
        if number <= epoch and at_or_below >= retained and number not in held:
            obsolete.append(number)
            continue
        try:
            metadata = folder.read_metadata(number)
        except CorruptManifestError as error:
            # It counts as kept, since a copy may be put back; what data it uses is unknown.
            damage = error
            at_or_below += number <= epoch
            continue
        if metadata is not None:
            kept.append(metadata)
            at_or_below += number <= epoch
        elif number < epoch:
            obsolete.append(number)
    folder.storage.for_each(folder.delete_checkpoint, obsolete)
    attempted = folder.attempt_epochs()
    folder.storage.for_each(folder.delete_attempts, [number for number in attempted if number < epoch])
    if damage is not None:
        raise damage
    used = _used_by(kept) | held_data_files(folder)
    for number in attempted:
        if number >= epoch:
            used.update(path for attempt in folder.attempts(number) for path in data_paths(attempt.nonce))
    folder.storage.for_each(folder.storage.delete_file, [path for path in candidates if path not in used])


def drop_superseded_attempts(folder: OperatorFolder, epoch: int, run_id: str, owner: Owner) -> None:
    """Delete what older runs have left of an epoch that a newer run is at.

    Spark runs an epoch again only where it has not committed it, so nothing of the older runs counts any
    more; without this, a query that fails and restarts in the same epoch for a whole night would add the
    size of its state each time.  Data that a published checkpoint uses, or a reader
    holds, stays.

    Raises
    ------
    CheckpointError
        Where something cannot be read or deleted.
    """
    older = [attempt for attempt in folder.attempts(epoch) if owner.precedes(attempt.run_id, run_id)]
    if not older:
        return
    used = _used_by([metadata for metadata in map(folder.read_metadata, folder.checkpoints()) if metadata])
    used |= held_data_files(folder)
    data = {path for attempt in older for path in data_paths(attempt.nonce)} - used
    # Data first: a marker that is left lets the next clean-up find its data.
    folder.storage.for_each(folder.storage.delete_file, sorted(data))
    folder.storage.for_each(folder.storage.delete_file, [attempt.path for attempt in older])


def _used_by(checkpoints: list[CheckpointMetadata]) -> set[str]:
    return {path for metadata in checkpoints for part in metadata.parts for path in part.kept_files}
