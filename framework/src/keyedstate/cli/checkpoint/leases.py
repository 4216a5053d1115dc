"""The leases of a command on the checkpoints it reads: a running query may clean up meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from keyedstate.checkpoint.protocol.leases import Lease, lease
from keyedstate.checkpoint.reading.survey import Checkpoint
from keyedstate.checkpoint.savepoint.location import StoredOperator
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot, open_with_lease
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage

#: How long the leases of a killed command keep files.
LEASE_SECONDS = 900.0


class SnapshotLeases(ExitStack):
    """The leases of one command; as a context manager it releases them at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: list[Lease] = []
        self._renewed = time.monotonic()

    def take(self, operator: StoredOperator, checkpoint: Checkpoint) -> Checkpoint:
        """Take a lease on a checkpoint and return it as it is then; a savepoint needs none.

        Raises `CheckpointGoneError` where it was deleted since it was listed, and a `CheckpointError` where
        its metadata cannot be read.
        """
        if operator.folder is None or checkpoint.epoch is None or checkpoint.metadata is None:
            return checkpoint
        taken = lease(operator.folder, checkpoint.epoch, LEASE_SECONDS)
        self._keep(taken)
        return replace(checkpoint, metadata=taken.metadata)

    def open(
        self, path: CheckpointStorage, uid: str | None = None, epoch: int | None = None
    ) -> OperatorSnapshot:
        """Open a snapshot, as `OperatorSnapshot.open`, and take a lease on it.

        Raises `CheckpointGoneError` where the checkpoint that was asked for was deleted meanwhile.
        """
        snapshot, taken = open_with_lease(path, uid, epoch, LEASE_SECONDS)
        if taken is not None:
            self._keep(taken)
        return snapshot

    def _keep(self, taken: Lease) -> None:
        self._taken.append(self.enter_context(taken))

    def renewing(self, advance: Callable[..., None]) -> Callable[..., None]:
        """Return a function that calls `advance`, and renews the leases when a third of their time is over.

        It raises CheckpointGoneError where they have expired, as after a suspended night, and files may be
        missing.
        """

        def renew_and_advance(*done: int) -> None:
            if time.monotonic() - self._renewed > LEASE_SECONDS / 3:
                for taken in self._taken:
                    taken.renew(LEASE_SECONDS)
                self._renewed = time.monotonic()
            advance(*done)

        return renew_and_advance
