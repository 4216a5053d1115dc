"""The files of a task's state at the end of an epoch: operator state, and a full snapshot or a delta.

A full snapshot may also be written in the background: it begins with an epoch and has the state before it,
and the epoch's changes go into a delta. In a process that keeps its state it continues over epochs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from keyedstate.backend import TableChanges
from keyedstate.checkpoint.format.delta import write_delta
from keyedstate.checkpoint.format.manifest import (
    AttemptManifest,
    CheckpointMetadata,
    FullSnapshotReport,
    NativeFullSnapshot,
    StoredNativeFile,
    TaskIdentity,
)
from keyedstate.checkpoint.format.operator_state import OperatorStateFile, write_operator_state
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind, failed_epochs
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder, data_paths
from keyedstate.epoch.full_snapshot import BackgroundFullSnapshot, CapturedFullSnapshot
from keyedstate.errors import TooManyFailedSnapshotsError
from keyedstate.plugins import Backend
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.keyed_backend import KeyedStateBackend


@dataclass(frozen=True)
class EpochFiles:
    """The files with the state of one attempt: its own, and those of the chain that it extends.

    The fields are those of `AttemptManifest`.
    """

    segments: tuple[SegmentFile, ...]
    deltas: tuple[SegmentFile, ...]
    native: NativeFullSnapshot | None
    full_snapshots: tuple[FullSnapshotReport, ...]
    sync_ms: float
    #: With a full snapshot that was completed in the attempt.
    bytes: int
    #: Of each state.
    entries: Mapping[str, int]
    operator_state: OperatorStateFile | None = None
    unfinished: str | None = None


class EpochWriter:
    """Writes the state of one task, epoch after epoch.

    A writer belongs to state that continues from epoch to epoch. State that is restored again, to repeat an
    epoch, gets a new writer. Its `folder` may be replaced between two epochs by another view of the same one.

    Parameters
    ----------
    keyed : KeyedStateBackend
        Opened to track changes, unless only full snapshots are written.
    share : float, default 1.0
        The share of a processor's time that a full snapshot may take in the background, above 0 and up to 1.
    native : bool, default True
        Whether a full snapshot may consist of the backend's own files; that of a savepoint may not.
    """

    def __init__(
        self,
        keyed: KeyedStateBackend,
        operator: OperatorStateBackend,
        folder: OperatorFolder,
        rules: FullSnapshotRules,
        compression: str,
        share: float = 1.0,
        native: bool = True,
    ) -> None:
        self._native = native
        self._keyed = keyed
        self._operator = operator
        self.folder = folder
        self._rules = rules
        self._compression = compression
        self._share = share
        self._background: BackgroundFullSnapshot | None = None
        #: Of the checkpoint that the epoch continues from; empty and None if a full snapshot is written.
        self._parts: tuple[AttemptManifest, ...] = ()
        self._before: AttemptManifest | None = None
        #: The native files of the checkpoint that the epoch continues from, by their paths.
        self._completed: dict[str, StoredNativeFile] = {}
        #: Whether the keyed state tracks changes: from the first epoch that was begun in it on.
        self._tracks = False

    def begin(
        self, identity: TaskIdentity, restore_point: CheckpointMetadata | None, kind: SnapshotKind
    ) -> None:
        """Begin an epoch, before its first change; `end` writes it.

        The backends have the state of `restore_point`; `FullSnapshotRules.choose` chose the kind.
        """
        self._identity = identity
        parts = () if restore_point is None else restore_point.parts
        self._completed = {file.path: file for part in parts if part.native for file in part.native.files}
        if kind is not SnapshotKind.FULL or self._tracks:
            # Also where a full snapshot is written: tracked changes would grow without end.
            self._tracks = True
            self._keyed.begin_epoch(identity.epoch)
            self._keyed.forget_changes(identity.epoch - 1)
        if kind is SnapshotKind.FULL or restore_point is None:
            self.close()
            self._before, self._parts = None, ()
            return
        self._parts = restore_point.parts
        self._before = self._parts[identity.partition]
        if kind is SnapshotKind.DELTA_AND_FULL and self._background is None:
            captured = self._capture(data_paths(identity.nonce)[2], identity.epoch - 1)
            self._background = BackgroundFullSnapshot(captured, self._share)

    def end(self, *, wait: bool = True) -> EpochFiles:
        """Take the snapshots of the epoch's state, all at one moment, and write them.

        With `wait` it also waits for a full snapshot in the background, which otherwise continues.

        Raises as `OperatorStateBackend.snapshot`, `TooManyFailedSnapshotsError` where more full snapshots
        have failed than tolerated, and `CheckpointError` where a file, which is deleted, cannot be written.
        """
        before = self._before
        if before is not None and not before.has_types_of(meta.to_json() for meta in self._keyed.metas()):
            # All files of a chain are read with one type.
            before = None
            self.close()
        with ExitStack() as unwritten:
            write = self._captured(before, unwritten)
            operator_snapshot = self._operator.snapshot(self._identity.epoch)
            if operator_snapshot is not None:
                unwritten.callback(operator_snapshot.cancel)
            if self._background is not None and wait:
                self._background.hurry()
            files = write()
            if operator_snapshot is not None:
                path, metas = data_paths(self._identity.nonce)[1], self._operator.metas()
                file = write_operator_state(
                    self.folder.storage, path, metas, operator_snapshot.run, self._compression
                )
                sync_ms = files.sync_ms + operator_snapshot.synchronous_ms
                size = files.bytes + file.segment.bytes
                files = replace(files, operator_state=file, sync_ms=sync_ms, bytes=size)
        if self._background is None:
            return files
        return self._with_background(self._background, files, wait=wait)

    def _captured(self, before: AttemptManifest | None, unwritten: ExitStack) -> Callable[[], EpochFiles]:
        """Capture the keyed state, or its changes, until `unwritten` ends; return what writes the files."""
        path, epoch = self.folder.data_path(self._identity), self._identity.epoch
        if before is not None:
            began = time.perf_counter()
            changes = self._keyed.changes_since(epoch - 1)
            sync_ms = (time.perf_counter() - began) * 1000.0
            with ExitStack() as tracked:
                for changed in changes.values():
                    tracked.callback(changed.release)
                # A change costs about twice what an entry of a full snapshot does.
                if 2 * sum(map(len, changes.values())) <= self._keyed.num_entries():
                    unwritten.push(tracked.pop_all())
                    return partial(self._write_delta, path, before, changes, sync_ms)
            self.close()
        captured = self._capture(path, epoch, native=self._native)
        unwritten.callback(captured.release)
        return partial(self._write_full, captured)

    def _write_full(self, captured: CapturedFullSnapshot) -> EpochFiles:
        full = captured.write()
        return EpochFiles(
            segments=full.segments,
            deltas=(),
            native=full.native,
            full_snapshots=(captured.report(full, background=False),),
            sync_ms=captured.synchronous_ms,
            bytes=full.bytes,
            entries=self._keyed.entries_by_state(full.entries),
        )

    def _write_delta(
        self,
        path: str,
        before: AttemptManifest,
        changes: Mapping[str, TableChanges[Any, Any, Any]],
        sync_ms: float,
    ) -> EpochFiles:
        keyed = self._keyed
        files = EpochFiles(
            segments=before.segments,
            deltas=before.deltas,
            native=before.native,
            full_snapshots=before.full_snapshots,
            sync_ms=sync_ms,
            bytes=0,
            entries=keyed.entries_by_state(),
        )
        if not any(map(len, changes.values())):
            # An epoch without changes makes the chain no longer, and no full snapshot due.
            return files
        metas = {meta.name: meta for meta in keyed.metas()}
        delta = write_delta(self.folder.storage, path, keyed.key_groups, metas, changes, self._compression)
        return replace(files, deltas=(*before.deltas, delta), bytes=delta.bytes)

    def _capture(self, path: str, epoch: int, *, native: bool = True) -> CapturedFullSnapshot:
        return CapturedFullSnapshot(
            self._keyed, self.folder, path, epoch, self._compression, self._completed, native=native
        )

    def close(self) -> None:
        """Cancel a full snapshot in the background; calling it again does nothing."""
        if self._background is not None:
            self._background.give_up()
            self._background = None

    def _with_background(
        self, background: BackgroundFullSnapshot, files: EpochFiles, *, wait: bool
    ) -> EpochFiles:
        """Replace the chain up to a full snapshot that is completed; report one that failed."""
        if self._before is not None:
            background.deltas += len(files.deltas) - len(self._before.deltas)
        report = background.outcome(self._rules.timeout_ms, wait=wait)
        if report is None:
            return replace(files, unfinished=background.path)
        self._background = None
        if background.written is None:
            self._check_failures(report, background.error)
            return replace(files, full_snapshots=(*files.full_snapshots, report))
        return replace(
            files,
            segments=background.written.segments,
            native=background.written.native,
            deltas=files.deltas[len(files.deltas) - background.deltas :],
            sync_ms=files.sync_ms + report.sync_ms,
            bytes=files.bytes + background.written.bytes,
            full_snapshots=(report,),
        )

    def _check_failures(self, report: FullSnapshotReport, error: BaseException | None) -> None:
        tolerable = self._rules.tolerable_failures
        failed = failed_epochs((report, *(full for part in self._parts for full in part.full_snapshots)))
        if report.epoch in failed and len(failed) > tolerable:
            raise TooManyFailedSnapshotsError(self._identity.uid, tolerable + 1, report.error) from error


def state_manifest(
    identity: TaskIdentity, plugin: Backend, keyed: KeyedStateBackend, files: EpochFiles
) -> AttemptManifest:
    """Return the manifest of an attempt with its state; rows and times are 0."""
    metas = keyed.metas()
    return AttemptManifest(
        identity=identity,
        key_groups=keyed.key_groups,
        backend=plugin.name,
        backend_version=plugin.description.version,
        states=tuple(meta.to_json() for meta in metas),
        rows_in=0,
        rows_out=0,
        largest_event_time=None,
        write_ms=0.0,
        restore_ms=0.0,
        process_ms=0.0,
        ttl_ms={meta.name: meta.expiry.ttl_ms for meta in metas if meta.expiry is not None},
        **vars(files),
    )
