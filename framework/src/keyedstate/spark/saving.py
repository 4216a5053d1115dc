"""What an attempt writes of its state at the end of its epoch: the file of the keys, and that of the task."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from keyedstate.checkpoint import (
    OperatorFolder,
    OperatorStateFile,
    SegmentFile,
    SegmentWriter,
    TaskIdentity,
    write_operator_state,
)
from keyedstate.state import KeyedStateBackend, OperatorStateBackend, SnapshotTask


@dataclass(frozen=True)
class SavedState:
    """The state of one attempt, in files under names of its own.

    Attributes
    ----------
    segment : SegmentFile
        Of the keyed state.
    operator_state : OperatorStateFile or None
        None where there is none.
    synchronous_ms : float
        How long the snapshots held the task up, their writing aside.
    """

    segment: SegmentFile
    operator_state: OperatorStateFile | None
    synchronous_ms: float

    @property
    def bytes(self) -> int:
        """The size of the files."""
        return self.segment.bytes + (self.operator_state.segment.bytes if self.operator_state else 0)


def save_state(
    keyed: KeyedStateBackend,
    operator: OperatorStateBackend,
    folder: OperatorFolder,
    identity: TaskIdentity,
    compression: str,
) -> SavedState:
    """Take the snapshots of an attempt's state, both at one moment, and write them.

    Raises
    ------
    CheckpointError
        Where something cannot be written; the unfinished file is deleted.
    StateMigrationError
        As `OperatorStateBackend.snapshot`.
    """
    with ExitStack() as unwritten:
        keyed_snapshot = keyed.snapshot(identity.epoch)
        unwritten.callback(keyed_snapshot.cancel)
        operator_snapshot = operator.snapshot(identity.epoch)
        if operator_snapshot is not None:
            unwritten.callback(operator_snapshot.cancel)
        segment = _write_segment(keyed_snapshot, keyed, folder, identity, compression)
        if operator_snapshot is None:
            return SavedState(segment, None, keyed_snapshot.synchronous_ms)
        path = folder.operator_data_path(identity)
        file = write_operator_state(
            folder.storage, path, operator.metas(), operator_snapshot.run, compression
        )
        return SavedState(segment, file, keyed_snapshot.synchronous_ms + operator_snapshot.synchronous_ms)


def _write_segment(
    snapshot: SnapshotTask,
    keyed: KeyedStateBackend,
    folder: OperatorFolder,
    identity: TaskIdentity,
    compression: str,
) -> SegmentFile:
    writer = SegmentWriter(folder.storage, folder.data_path(identity), keyed.key_groups, compression)
    try:
        snapshot.run(writer)
        return writer.finish()
    except BaseException:
        writer.abort()
        raise
