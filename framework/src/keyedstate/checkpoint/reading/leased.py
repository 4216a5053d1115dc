"""Checkpoints that are read while their query runs: leases keep them from its clean-up."""

from __future__ import annotations

from dataclasses import replace

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.leases import lease
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CheckpointGoneError

#: How often the newest checkpoint is opened, which a running query may delete meanwhile.
_ATTEMPTS = 5


def open_with_lease(
    storage: CheckpointStorage, uid: str | None, epoch: int | None, lease_ms: int
) -> OperatorSnapshot:
    """Open what `OperatorSnapshot.open` finds, with a lease.

    Raises
    ------
    CheckpointError
        `CheckpointGoneError` where clean-up deleted the epoch that was asked for.
    """
    for remaining in reversed(range(_ATTEMPTS)):
        stored = OperatorSnapshot.open(storage, uid, epoch)
        try:
            return replace(stored, metadata=take_lease(stored, lease_ms))
        except CheckpointGoneError:
            # The query has published a newer one and deleted this one meanwhile.
            if epoch is not None or not remaining:
                raise
    raise AssertionError("unreachable")


def take_lease(stored: OperatorSnapshot, lease_ms: int) -> CheckpointMetadata:
    """Take a lease of a checkpoint and return its metadata; a savepoint needs none."""
    if stored.folder is None:
        return stored.metadata
    return lease(stored.folder, stored.metadata.epoch, lease_ms / 1000.0).metadata
