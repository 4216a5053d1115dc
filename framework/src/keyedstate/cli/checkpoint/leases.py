"""The leases of a command on the checkpoints it reads: a running query may clean up meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from keyedstate.checkpoint import CheckpointMetadata, CheckpointStorage, Lease, OperatorFolder, lease
from keyedstate.checkpoint.reading.leased_snapshot import open_with_lease
from keyedstate.checkpoint.reading.survey import Checkpoint
from keyedstate.checkpoint.savepoint.location import StoredOperator
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot

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
        return replace(checkpoint, metadata=self._take(operator.folder, checkpoint.epoch))

    def open(
        self, path: CheckpointStorage, uid: str | None = None, epoch: int | None = None
    ) -> OperatorSnapshot:
        """Open a snapshot, as `OperatorSnapshot.open`, and take a lease on it.

        Raises `CheckpointGoneError` where the checkpoint that was asked for was deleted meanwhile.
        """
        return open_with_lease(path, uid, epoch, self._take)

    def _take(self, folder: OperatorFolder, epoch: int) -> CheckpointMetadata:
        taken = self.enter_context(lease(folder, epoch, LEASE_SECONDS))
        self._taken.append(taken)
        return taken.metadata

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
