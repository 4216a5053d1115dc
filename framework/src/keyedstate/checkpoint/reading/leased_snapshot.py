"""Snapshots that are read while their query runs: a lease keeps the checkpoint from its clean-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CheckpointGoneError

#: How often the newest checkpoint is opened, which a running query may delete meanwhile.
_ATTEMPTS = 5

#: Takes a lease of the checkpoint of an epoch, and returns its metadata.
TakeLease = Callable[[OperatorFolder, int], CheckpointMetadata]


def open_with_lease(
    storage: CheckpointStorage, uid: str | None, epoch: int | None, take: TakeLease
) -> OperatorSnapshot:
    """Open what `OperatorSnapshot.open` finds, with a lease; a savepoint needs none.

    Raises `CheckpointGoneError` where clean-up deleted the checkpoint that was asked for.
    """
    for remaining in reversed(range(_ATTEMPTS)):
        stored = OperatorSnapshot.open(storage, uid, epoch)
        if stored.folder is None:
            return stored
        try:
            return replace(stored, metadata=take(stored.folder, stored.metadata.epoch))
        except CheckpointGoneError:
            # The query has published a newer one and deleted this one meanwhile.
            if epoch is not None or stored.location == storage.location() or not remaining:
                raise
    raise AssertionError("unreachable")
