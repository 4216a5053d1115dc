"""Holds on what a command reads, renewed for as long as it works: a running query may clean up meanwhile."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

from keyedstate.checkpoint import CheckpointStorage, Lease, lease
from keyedstate.checkpoint.reading.location import StoredOperator, operator_folder
from keyedstate.checkpoint.reading.survey import Checkpoint
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.errors import CheckpointGoneError

#: A killed command keeps files for so long.
HOLD_SECONDS = 900.0


class SnapshotLeases:
    """The holds of one command; as a context manager it releases them at the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._holds: list[Lease] = []
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
        """Hold a checkpoint and return it as it is held; a savepoint is nobody's to clean up.

        Raises
        ------
        CheckpointGoneError
            Where it was deleted since it was seen.
        CheckpointError
            Where its metadata cannot be read.
        """
        if operator.folder is None or checkpoint.epoch is None or checkpoint.metadata is None:
            return checkpoint
        held = self._stack.enter_context(lease(operator.folder, checkpoint.epoch, HOLD_SECONDS))
        self._holds.append(held)
        return replace(checkpoint, metadata=held.metadata)

    def open(
        self, location: CheckpointStorage, uid: str | None = None, epoch: int | None = None
    ) -> OperatorSnapshot:
        """Open stored state, as `OperatorSnapshot.open`, and hold it.

        Raises
        ------
        CheckpointGoneError
            Where the checkpoint that was asked for was deleted meanwhile.
        """
        while True:
            stored = OperatorSnapshot.open(location, uid, epoch)
            if stored.is_savepoint:
                return stored
            try:
                held = self._stack.enter_context(
                    lease(operator_folder(stored.storage), stored.metadata.epoch, HOLD_SECONDS)
                )
            except CheckpointGoneError:
                # The newest one was deleted, since there are newer ones.
                if epoch is not None or stored.location == location.location():
                    raise
                continue
            self._holds.append(held)
            return replace(stored, metadata=held.metadata)

    def renew(self) -> None:
        """Hold on, to be called often; does something when a third of the time has gone.

        Raises
        ------
        CheckpointGoneError
            Where the holds have expired, as after a night in suspend, and files may be missing.
        """
        if time.monotonic() - self._renewed > HOLD_SECONDS / 3:
            for held in self._holds:
                held.renew(HOLD_SECONDS)
            self._renewed = time.monotonic()
