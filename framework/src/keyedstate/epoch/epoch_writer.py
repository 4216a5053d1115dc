"""What is written of a task's state at the end of an epoch, and beside the work.

The file of the task, and of the keys either the whole (a base) or what the epoch changed (a delta).  A base
may also be written in the background: it begins with an epoch and holds the state before it, while what the
epoch changes goes into its delta.  A process that keeps its state between epochs lets it go on over several.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from keyedstate.backend import EntryBatch, SnapshotSink, StateMeta
from keyedstate.checkpoint import (
    AttemptManifest,
    BaseReport,
    BaseRules,
    CheckpointMetadata,
    CheckpointStorage,
    FailureReason,
    NativeBase,
    OperatorFolder,
    OperatorStateFile,
    SegmentFile,
    SegmentWriter,
    StoredNativeFile,
    TaskIdentity,
    Writing,
    delete_native,
    failures_so_far,
    write_delta,
    write_native,
    write_operator_state,
)
from keyedstate.errors import CheckpointError, TooManyFailedBasesError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import KeyedStateBackend, OperatorStateBackend, SnapshotTask

#: A rest is taken after so much work, in seconds: short enough that nobody waits for the interpreter's lock.
_REST_AFTER_S = 0.002


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
    bytes : int
        The size of the files that were written for the attempt, a completed base among them.
    bases : tuple of BaseReport
        The last base that was completed, and those that failed since.
    unfinished : str or None
        The file of a base that is still being written.
    native : NativeBase or None
        The base, where it is of the backend's own files.
    """

    segments: tuple[SegmentFile, ...]
    deltas: tuple[SegmentFile, ...]
    operator_state: OperatorStateFile | None
    synchronous_ms: float
    bytes: int
    bases: tuple[BaseReport, ...]
    unfinished: str | None
    native: NativeBase | None = None


class StateWriter:
    """Writes the state of one task, epoch after epoch.

    Parameters
    ----------
    keyed : KeyedStateBackend
        Opened to track changes, unless nothing but the whole is ever written.
    operator : OperatorStateBackend
    folder : OperatorFolder
    rules : BaseRules
    compression : str
    share : float, default 1.0
        How much of one processor's time a base may take beside the work, above 0 and up to 1.
    native : bool, default True
        Whether a base may be of the backend's own files; that of a savepoint may not.

    Attributes
    ----------
    folder : OperatorFolder
        Where the next files go; between two epochs it may be replaced by another view of the same folder.

    Notes
    -----
    A writer belongs to state that goes on from epoch to epoch.  Where an epoch is repeated, the state is
    restored anew and gets a writer of its own.
    """

    def __init__(
        self,
        keyed: KeyedStateBackend,
        operator: OperatorStateBackend,
        folder: OperatorFolder,
        rules: BaseRules,
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
        self._base: _BackgroundBase | None = None
        #: Of the checkpoint that the epoch goes on from; empty and None where the whole state is written.
        self._parts: tuple[AttemptManifest, ...] = ()
        self._before: AttemptManifest | None = None
        #: The native files of the checkpoint that the epoch goes on from, by their paths.
        self._completed: dict[str, StoredNativeFile] = {}
        #: Whether an epoch was begun in the keyed state: from then on it notes what changes.
        self._tracks = False

    def begin(
        self, identity: TaskIdentity, restore_point: CheckpointMetadata | None, writing: Writing
    ) -> None:
        """Begin an epoch, before its first change; `end` writes it.

        Parameters
        ----------
        identity : TaskIdentity
        restore_point : CheckpointMetadata or None
            The checkpoint whose state the backends have.
        writing : Writing
            What `BaseRules.writing` said of the two.
        """
        self._identity = identity
        parts = () if restore_point is None else restore_point.parts
        self._completed = {file.path: file for part in parts if part.native for file in part.native.files}
        if writing is not Writing.WHOLE or self._tracks:
            # Where the whole is written, too: else the changes that are known would grow and grow.
            self._tracks = True
            self._keyed.begin_epoch(identity.epoch)
            self._keyed.forget_changes(identity.epoch - 1)
        if writing is Writing.WHOLE or restore_point is None:
            self._give_base_up()
            self._before, self._parts = None, ()
            return
        self._parts = restore_point.parts
        self._before = self._parts[identity.partition]
        if writing is Writing.CHANGES_BESIDE_BASE and self._base is None:
            path = self.folder.base_path(identity)
            self._base = _BackgroundBase(
                self._keyed,
                self.folder,
                path,
                identity.epoch - 1,
                self._compression,
                self._share,
                self._completed,
            )

    def end(self, *, finish_base: bool = True) -> SavedState:
        """Take the snapshots of the epoch's state, all at one moment, and write them.

        Parameters
        ----------
        finish_base : bool, default True
            Whether to wait for a base that is being written; False where the state goes on, and the base too.

        Raises
        ------
        CheckpointError
            Where something cannot be written; the unfinished file is deleted.
        StateMigrationError
            As `OperatorStateBackend.snapshot`.
        TooManyFailedBasesError
            Where one base too many has failed.
        """
        before = self._before
        if before is not None and not before.has_types_of(meta.to_json() for meta in self._keyed.metas()):
            # The files of a chain are read with one type.
            before = None
            self._give_base_up()
        with ExitStack() as unwritten:
            captured = self._captured(before)
            unwritten.callback(captured.release)
            operator_snapshot = self._operator.snapshot(self._identity.epoch)
            if operator_snapshot is not None:
                unwritten.callback(operator_snapshot.cancel)
            if self._base is not None and finish_base:
                self._base.hurry()
            saved = captured.write(self.folder, self._compression)
            if operator_snapshot is not None:
                path = self.folder.operator_data_path(self._identity)
                file = write_operator_state(
                    self.folder.storage,
                    path,
                    self._operator.metas(),
                    operator_snapshot.run,
                    self._compression,
                )
                saved = replace(
                    saved,
                    operator_state=file,
                    synchronous_ms=saved.synchronous_ms + operator_snapshot.synchronous_ms,
                    bytes=saved.bytes + file.segment.bytes,
                )
        return saved if self._base is None else self._with_base(self._base, saved, wait=finish_base)

    def _captured(self, before: AttemptManifest | None) -> _Whole | _Changes:
        if before is not None:
            changes = _Changes(self._keyed, self._identity, before)
            # A change costs about twice what an entry of the whole does.
            if 2 * len(changes) <= self._keyed.num_entries():
                return changes
            changes.release()
            self._give_base_up()
        return _Whole(self._keyed, self._identity, self._completed, native=self._native)

    def close(self) -> None:
        """Give up a base that is being written; calling it again does nothing."""
        self._give_base_up()

    def _with_base(self, base: _BackgroundBase, saved: SavedState, *, wait: bool) -> SavedState:
        """Put a base that is completed into the place of the chain up to it; note one that failed."""
        if self._before is not None:
            base.deltas += len(saved.deltas) - len(self._before.deltas)
        report = base.outcome(self._rules.timeout_ms, wait=wait)
        if report is None:
            return replace(saved, unfinished=base.path)
        self._base = None
        if base.written is None:
            self._check_failures(report, base.error)
            return replace(saved, bases=(*saved.bases, report))
        return replace(
            saved,
            segments=base.written.segments,
            native=base.written.native,
            deltas=saved.deltas[len(saved.deltas) - base.deltas :],
            synchronous_ms=saved.synchronous_ms + report.sync_ms,
            bytes=saved.bytes + base.written.bytes,
            bases=(report,),
        )

    def _check_failures(self, report: BaseReport, error: BaseException | None) -> None:
        tolerable = self._rules.tolerable_failures
        so_far = failures_so_far((base for part in self._parts for base in part.bases), tolerable)
        if report.failure is not None and so_far.on_failure(report.epoch, report.failure):
            raise TooManyFailedBasesError(self._identity.uid, tolerable + 1, report.error) from error

    def _give_base_up(self) -> None:
        if self._base is not None:
            self._base.give_up()
            self._base = None


@dataclass(frozen=True)
class _WrittenBase:
    """A base in its files: a segment file, or native ones.

    Attributes
    ----------
    segments : tuple of SegmentFile
    native : NativeBase or None
    bytes, entries : int
        Bytes that were written, so without files that other checkpoints have too; entries in the base.
    """

    segments: tuple[SegmentFile, ...]
    native: NativeBase | None
    bytes: int
    entries: int

    def delete(self, storage: CheckpointStorage, path: str) -> None:
        """Delete what was written for this base alone."""
        if self.native is not None:
            delete_native(storage, path, self.native)
        else:
            storage.delete_file(path)


class _CapturedBase:
    """The whole keyed state as it was captured, in the form in which the backend hands it over.

    Attributes
    ----------
    synchronous_ms : float
    """

    def __init__(
        self,
        keyed: KeyedStateBackend,
        epoch: int,
        completed: Mapping[str, StoredNativeFile],
        *,
        native: bool = True,
    ) -> None:
        self._keyed = keyed
        self._completed = completed
        self._cancelled = threading.Event()
        began = time.perf_counter()
        self._native = keyed.native_snapshot(epoch) if native else None
        self.synchronous_ms = (time.perf_counter() - began) * 1000.0
        self._snapshot: SnapshotTask | None = None
        if self._native is None:
            self._snapshot = keyed.snapshot(epoch)
            self.synchronous_ms = self._snapshot.synchronous_ms

    def write(
        self,
        folder: OperatorFolder,
        path: str,
        compression: str,
        sink: Callable[[SnapshotSink], SnapshotSink] = lambda sink: sink,
    ) -> _WrittenBase:
        """Write the files; what is there of them after an error is deleted."""
        keyed, snapshot = self._keyed, self._snapshot
        if self._native is not None:
            base, written = write_native(
                folder.storage,
                path,
                keyed.key_groups,
                keyed.max_parallelism,
                keyed.backend_name,
                self._native,
                self._completed,
                self._cancelled,
            )
            return _WrittenBase((), base, written, sum(base.entries.values()))
        assert snapshot is not None, "captured in one form or the other"
        file = _write_segment(
            folder, path, keyed.key_groups, compression, lambda output: snapshot.run(sink(output))
        )
        return _WrittenBase((file,), None, file.bytes, sum(file.entries.values()))

    def cancel(self) -> None:
        """Stop the writing, where it is going on."""
        self._cancelled.set()
        if self._snapshot is not None:
            self._snapshot.cancel()

    def release(self) -> None:
        """Free what was captured, when nothing reads it any more; calling it again does nothing."""
        self.cancel()
        if self._native is not None:
            self._native.release()


class _Whole:
    """All of the keyed state, written between two epochs."""

    def __init__(
        self,
        keyed: KeyedStateBackend,
        identity: TaskIdentity,
        completed: Mapping[str, StoredNativeFile],
        *,
        native: bool,
    ) -> None:
        self._identity = identity
        self._captured = _CapturedBase(keyed, identity.epoch, completed, native=native)

    def write(self, folder: OperatorFolder, compression: str) -> SavedState:
        began = time.perf_counter()
        written = self._captured.write(folder, folder.data_path(self._identity), compression)
        synchronous_ms = self._captured.synchronous_ms
        report = BaseReport(
            epoch=self._identity.epoch,
            background=False,
            failure=None,
            error="",
            sync_ms=synchronous_ms,
            async_ms=(time.perf_counter() - began) * 1000.0,
            bytes=written.bytes,
            entries=written.entries,
            ended_ms=_now_ms(),
        )
        return SavedState(
            written.segments, (), None, synchronous_ms, written.bytes, (report,), None, written.native
        )

    def release(self) -> None:
        self._captured.release()


class _Changes:
    """What an epoch has changed of the keyed state."""

    def __init__(self, keyed: KeyedStateBackend, identity: TaskIdentity, before: AttemptManifest) -> None:
        self._keyed = keyed
        self._identity = identity
        self._before = before
        began = time.perf_counter()
        self._changes = keyed.changes_since(identity.epoch - 1)
        self._synchronous_ms = (time.perf_counter() - began) * 1000.0

    def write(self, folder: OperatorFolder, compression: str) -> SavedState:
        before = self._before
        # The chain as it is: an epoch that changes nothing makes no chain longer, and no base due.
        saved = SavedState(
            before.segments,
            before.deltas,
            None,
            self._synchronous_ms,
            0,
            before.bases,
            None,
            before.native,
        )
        if not len(self):
            return saved
        metas = {meta.name: meta for meta in self._keyed.metas()}
        path, key_groups = folder.data_path(self._identity), self._keyed.key_groups
        delta = write_delta(folder.storage, path, key_groups, metas, self._changes, compression)
        return replace(saved, deltas=(*before.deltas, delta), bytes=delta.bytes)

    def __len__(self) -> int:
        return sum(map(len, self._changes.values()))

    def release(self) -> None:
        for changed in self._changes.values():
            changed.release()


class _BackgroundBase:
    """A base that another thread writes while the state goes on changing.

    Attributes
    ----------
    path : str
    deltas : int
        How many deltas go on from it: those of the epochs that have ended since it began.
    written : _WrittenBase or None
        Set when it is completed.
    error : BaseException or None
        Set when it has failed.
    """

    def __init__(
        self,
        keyed: KeyedStateBackend,
        folder: OperatorFolder,
        path: str,
        epoch: int,
        compression: str,
        share: float,
        completed: Mapping[str, StoredNativeFile],
    ) -> None:
        self.path = path
        self.deltas = 0
        self.written: _WrittenBase | None = None
        self.error: BaseException | None = None
        self._folder = folder
        self._compression = compression
        self._share = share
        self._hurried = threading.Event()
        self._lock = threading.Lock()
        self._given_up = False
        self._began = time.perf_counter()
        self._async_ms = 0.0
        self._epoch = epoch
        self._captured = _CapturedBase(keyed, epoch, completed)
        # Nothing waits for it where the process ends: an unfinished base belongs to nobody.
        self._thread = threading.Thread(target=self._write, name=f"keyedstate-base-{epoch}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the machine has no thread left: a base may fail, its epoch need not
            self.error = error
            self._captured.release()

    def hurry(self) -> None:
        """Take all the time of a processor from now on."""
        self._hurried.set()

    def give_up(self) -> None:
        """Cancel it; its file is deleted, when the thread comes to it, even where it was completed."""
        with self._lock:
            self._given_up = True
            completed, self.written = self.written, None
        self._captured.cancel()
        self._hurried.set()
        if completed is not None:
            self._delete(completed)

    def outcome(self, timeout_ms: int, *, wait: bool) -> BaseReport | None:
        """Return what has become of it, None where it goes on; one that took too long is given up."""
        left_s = timeout_ms / 1000.0 - (time.perf_counter() - self._began)
        if wait and self._thread.ident is not None:
            self._thread.join(max(left_s, 0.0))
        failure: FailureReason | None = None
        error = ""
        if self._thread.is_alive():
            if left_s > 0 and not wait:
                if left_s < timeout_ms / 2000.0:
                    # At its share it would come too late, and so would each after it.
                    self.hurry()
                return None
            self.give_up()
            failure, error = FailureReason.EXPIRED, f"it was not written after {timeout_ms} ms"
        elif self.error is not None:
            is_io = isinstance(self.error, (CheckpointError, OSError))
            failure = FailureReason.IO if is_io else FailureReason.ASYNCHRONOUS
            error = str(self.error) or type(self.error).__name__
        return BaseReport(
            epoch=self._epoch,
            background=True,
            failure=failure,
            error=error,
            sync_ms=self._captured.synchronous_ms,
            async_ms=self._async_ms,
            bytes=0 if self.written is None else self.written.bytes,
            entries=0 if self.written is None else self.written.entries,
            ended_ms=_now_ms(),
        )

    def _write(self) -> None:
        began = time.perf_counter()
        try:
            written = self._captured.write(self._folder, self.path, self._compression, self._paced)
        except BaseException as error:  # whoever began it hears of it in `outcome`
            self.error = error
            return
        finally:
            self._async_ms = (time.perf_counter() - began) * 1000.0
            # Where it could not even be begun.
            self._captured.release()
        with self._lock:
            if not self._given_up:
                self.written = written
                return
        self._delete(written)

    def _paced(self, sink: SnapshotSink) -> SnapshotSink:
        return _PacedSink(sink, self._share, self._hurried)

    def _delete(self, written: _WrittenBase) -> None:
        # Clean-up finds it later where this fails.
        with contextlib.suppress(CheckpointError):
            written.delete(self._folder.storage, self.path)


class _PacedSink(SnapshotSink):
    """Hands everything on, and rests between batches, so that the work beside it keeps its speed."""

    def __init__(self, sink: SnapshotSink, share: float, hurried: threading.Event) -> None:
        self._sink = sink
        self._rest_per_work = 1.0 / share - 1.0
        self._hurried = hurried
        self._rested = time.thread_time()

    def begin_state(self, meta: StateMeta) -> None:
        self._sink.begin_state(meta)

    def write_entries(self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]) -> None:
        self._sink.write_entries(key_group, self._paced(batches))

    def _paced(self, batches: Iterable[EntryBatch[Any, Any, Any]]) -> Iterator[EntryBatch[Any, Any, Any]]:
        for batch in batches:
            worked = time.thread_time() - self._rested
            if worked >= _REST_AFTER_S and self._rest_per_work:
                self._hurried.wait(worked * self._rest_per_work)
                self._rested = time.thread_time()
            yield batch


def _write_segment(
    folder: OperatorFolder,
    path: str,
    key_groups: KeyGroupRange,
    compression: str,
    write: Callable[[SnapshotSink], None],
) -> SegmentFile:
    writer = SegmentWriter(folder.storage, path, key_groups, compression)
    try:
        write(writer)
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
