"""What an attempt writes of its state at the end of its epoch: the file of the keys, and that of the task."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass

from keyedstate.checkpoint import (
    AttemptManifest,
    OperatorFolder,
    OperatorStateFile,
    SegmentFile,
    SegmentWriter,
    TaskIdentity,
    write_delta,
    write_operator_state,
)
from keyedstate.state import KeyedStateBackend, OperatorStateBackend


@dataclass(frozen=True)
class SavedState:
    """The state of one attempt, in files under names of its own and of those that its chain goes on from.

    Attributes
    ----------
    segments, deltas : tuple of SegmentFile
        Of the keyed state, as `AttemptManifest` has them.
    operator_state : OperatorStateFile or None
        None where there is none.
    synchronous_ms : float
        How long the snapshots held the task up, their writing aside.
    """

    segments: tuple[SegmentFile, ...]
    deltas: tuple[SegmentFile, ...]
    operator_state: OperatorStateFile | None
    synchronous_ms: float

    @property
    def bytes(self) -> int:
        """The size of the files that the attempt has written."""
        own = (*self.segments, *self.deltas)[-1]
        return own.bytes + (self.operator_state.segment.bytes if self.operator_state else 0)


def save_state(
    keyed: KeyedStateBackend,
    operator: OperatorStateBackend,
    folder: OperatorFolder,
    identity: TaskIdentity,
    compression: str,
    before: AttemptManifest | None,
) -> SavedState:
    """Take the snapshots of an attempt's state, both at one moment, and write them.

    Parameters
    ----------
    before : AttemptManifest or None
        The part of the checkpoint that the attempt began from, where only what changed since is to be
        written; the keyed backend tracks it then.  None for the whole state.

    Raises
    ------
    CheckpointError
        Where something cannot be written; the unfinished file is deleted.
    StateMigrationError
        As `OperatorStateBackend.snapshot`.
    """
    if before is not None and not before.has_types_of(meta.to_json() for meta in keyed.metas()):
        before = None
    with ExitStack() as unwritten:
        captured = _Whole(keyed, identity) if before is None else _Changes(keyed, identity, before)
        unwritten.callback(captured.release)
        operator_snapshot = operator.snapshot(identity.epoch)
        if operator_snapshot is not None:
            unwritten.callback(operator_snapshot.cancel)
        segments, deltas = captured.write(folder, compression)
        if operator_snapshot is None:
            return SavedState(segments, deltas, None, captured.synchronous_ms)
        path = folder.operator_data_path(identity)
        file = write_operator_state(
            folder.storage, path, operator.metas(), operator_snapshot.run, compression
        )
        synchronous_ms = captured.synchronous_ms + operator_snapshot.synchronous_ms
        return SavedState(segments, deltas, file, synchronous_ms)


_Files = tuple[SegmentFile, ...]


class _Whole:
    """All of the keyed state."""

    def __init__(self, keyed: KeyedStateBackend, identity: TaskIdentity) -> None:
        self._keyed = keyed
        self._identity = identity
        self._snapshot = keyed.snapshot(identity.epoch)
        self.synchronous_ms = self._snapshot.synchronous_ms

    def write(self, folder: OperatorFolder, compression: str) -> tuple[_Files, _Files]:
        path, key_groups = folder.data_path(self._identity), self._keyed.key_groups
        writer = SegmentWriter(folder.storage, path, key_groups, compression)
        try:
            self._snapshot.run(writer)
            return (writer.finish(),), ()
        except BaseException:
            writer.abort()
            raise

    def release(self) -> None:
        self._snapshot.cancel()


class _Changes:
    """What an epoch has changed of the keyed state."""

    def __init__(self, keyed: KeyedStateBackend, identity: TaskIdentity, before: AttemptManifest) -> None:
        self._keyed = keyed
        self._identity = identity
        self._before = before
        began = time.perf_counter()
        self._changes = keyed.changes_since(identity.epoch - 1)
        self.synchronous_ms = (time.perf_counter() - began) * 1000.0

    def write(self, folder: OperatorFolder, compression: str) -> tuple[_Files, _Files]:
        metas = {meta.name: meta for meta in self._keyed.metas()}
        path, key_groups = folder.data_path(self._identity), self._keyed.key_groups
        delta = write_delta(folder.storage, path, key_groups, metas, self._changes, compression)
        return self._before.segments, (*self._before.deltas, delta)

    def release(self) -> None:
        for changed in self._changes.values():
            changed.release()
