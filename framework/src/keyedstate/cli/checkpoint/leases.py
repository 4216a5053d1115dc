"""Leases on the checkpoints that a command reads, since their query may clean up meanwhile."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

from keyedstate.checkpoint import CheckpointStorage, Lease, lease
from keyedstate.checkpoint.reading.survey import Checkpoint
from keyedstate.checkpoint.savepoint.location import StoredOperator
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.errors import CheckpointGoneError

#: A killed command keeps files for this long.
LEASE_SECONDS = 900.0


class SnapshotLeases:
    """The leases of one command; as a context manager it releases them at the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._leases: list[Lease] = []
        self._renewed = time.monotonic()

    def __enter__(self) -> SnapshotLeases:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def keep(self, operator: StoredOperator, checkpoint: Checkpoint) -> Checkpoint:
        """Lease a checkpoint and return it as it is leased; a savepoint needs no lease.

        Raises
        ------
        CheckpointGoneError
            Where it was deleted since it was seen.
        CheckpointError
            Where its metadata cannot be read.
        """
        if operator.folder is None or checkpoint.epoch is None or checkpoint.metadata is None:
            return checkpoint
        held = self._stack.enter_context(lease(operator.folder, checkpoint.epoch, LEASE_SECONDS))
        self._leases.append(held)
        return replace(checkpoint, metadata=held.metadata)

    def open(
        self, location: CheckpointStorage, uid: str | None = None, epoch: int | None = None
    ) -> OperatorSnapshot:
        """Open a snapshot, as `OperatorSnapshot.open`, and lease it.

        Raises
        ------
        CheckpointGoneError
            Where the checkpoint that was asked for was deleted meanwhile.
        """
        while True:
            stored = OperatorSnapshot.open(location, uid, epoch)
            if stored.folder is None:
                return stored
            try:
                held = self._stack.enter_context(lease(stored.folder, stored.metadata.epoch, LEASE_SECONDS))
            except CheckpointGoneError:
                # The newest one was deleted, since there are newer ones.
                if epoch is not None or stored.location == location.location():
                    raise
                continue
            self._leases.append(held)
            return replace(stored, metadata=held.metadata)

    def renew(self) -> None:
        """Renew the leases when a third of their time has passed; to be called often.

        Raises
        ------
        CheckpointGoneError
            Where the leases have expired, as after a night in suspend, and files may be missing.
        """
        if time.monotonic() - self._renewed > LEASE_SECONDS / 3:
            for held in self._leases:
                held.renew(LEASE_SECONDS)
            self._renewed = time.monotonic()
