"""What is written of a task's state at the end of an epoch, and beside the work.

The file of the task, and of the keys either the whole (a base) or what the epoch changed (a delta).  A base
may also be written in the background: it begins with an epoch and holds the state before it, while what the
epoch changes goes into its delta.  A process that keeps its state between epochs lets it go on over several.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from keyedstate.backend import EntryBatch, SnapshotSink, StateMeta
from keyedstate.checkpoint import (
    AttemptManifest,
    BaseReport,
    BaseRules,
    CheckpointError,
    CheckpointMetadata,
    FailureReason,
    OperatorFolder,
    OperatorStateFile,
    SegmentFile,
    SegmentWriter,
    TaskIdentity,
    Writing,
    failures_so_far,
    write_delta,
    write_operator_state,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.spark.errors import TooManyFailedBasesError
from keyedstate.state import KeyedStateBackend, OperatorStateBackend

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
    """

    segments: tuple[SegmentFile, ...]
    deltas: tuple[SegmentFile, ...]
    operator_state: OperatorStateFile | None
    synchronous_ms: float
    bytes: int
    bases: tuple[BaseReport, ...]
    unfinished: str | None


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
    ) -> None:
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
                self._keyed, self.folder, path, identity.epoch - 1, self._compression, self._share
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
        return _Whole(self._keyed, self._identity)

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
        if base.file is None:
            self._check_failures(report, base.error)
            return replace(saved, bases=(*saved.bases, report))
        return replace(
            saved,
            segments=(base.file,),
            deltas=saved.deltas[len(saved.deltas) - base.deltas :],
            synchronous_ms=saved.synchronous_ms + report.sync_ms,
            bytes=saved.bytes + base.file.bytes,
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


class _Whole:
    """All of the keyed state, written between two epochs."""

    def __init__(self, keyed: KeyedStateBackend, identity: TaskIdentity) -> None:
        self._keyed = keyed
        self._identity = identity
        self._snapshot = keyed.snapshot(identity.epoch)

    def write(self, folder: OperatorFolder, compression: str) -> SavedState:
        began = time.perf_counter()
        path = folder.data_path(self._identity)
        file = _write_segment(folder, path, self._keyed.key_groups, compression, self._snapshot.run)
        report = BaseReport(
            epoch=self._identity.epoch,
            background=False,
            failure=None,
            error="",
            sync_ms=self._snapshot.synchronous_ms,
            async_ms=(time.perf_counter() - began) * 1000.0,
            bytes=file.bytes,
            entries=sum(file.entries.values()),
            ended_ms=_now_ms(),
        )
        return SavedState((file,), (), None, self._snapshot.synchronous_ms, file.bytes, (report,), None)

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
        self._synchronous_ms = (time.perf_counter() - began) * 1000.0

    def write(self, folder: OperatorFolder, compression: str) -> SavedState:
        before = self._before
        if not len(self):
            # The chain as it is: an epoch that changes nothing makes no chain longer, and no base due.
            return SavedState(
                before.segments, before.deltas, None, self._synchronous_ms, 0, before.bases, None
            )
        metas = {meta.name: meta for meta in self._keyed.metas()}
        path, key_groups = folder.data_path(self._identity), self._keyed.key_groups
        delta = write_delta(folder.storage, path, key_groups, metas, self._changes, compression)
        deltas = (*before.deltas, delta)
        return SavedState(
            before.segments, deltas, None, self._synchronous_ms, delta.bytes, before.bases, None
        )

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
    file : SegmentFile or None
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
    ) -> None:
        self.path = path
        self.deltas = 0
        self.file: SegmentFile | None = None
        self.error: BaseException | None = None
        self._folder = folder
        self._key_groups = keyed.key_groups
        self._compression = compression
        self._share = share
        self._hurried = threading.Event()
        self._lock = threading.Lock()
        self._given_up = False
        self._began = time.perf_counter()
        self._async_ms = 0.0
        self._snapshot = keyed.snapshot(epoch)
        # Nothing waits for it where the process ends: an unfinished base belongs to nobody.
        self._thread = threading.Thread(target=self._write, name=f"keyedstate-base-{epoch}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the machine has no thread left: a base may fail, its epoch need not
            self.error = error
            self._snapshot.cancel()

    def hurry(self) -> None:
        """Take all the time of a processor from now on."""
        self._hurried.set()

    def give_up(self) -> None:
        """Cancel it; its file is deleted, when the thread comes to it, even where it was completed."""
        with self._lock:
            self._given_up = True
            completed, self.file = self.file, None
        self._snapshot.cancel()
        self._hurried.set()
        if completed is not None:
            self._delete()

    def outcome(self, timeout_ms: int, *, wait: bool) -> BaseReport | None:
        """Return what has become of it, None where it goes on; one that took too long is given up."""
        left_s = timeout_ms / 1000.0 - (time.perf_counter() - self._began)
        if wait and self._thread.ident is not None:
            self._thread.join(max(left_s, 0.0))
        failure: FailureReason | None = None
        error = ""
        if self._thread.is_alive():
            if left_s > 0 and not wait:
                return None
            self.give_up()
            failure, error = FailureReason.EXPIRED, f"it was not written after {timeout_ms} ms"
        elif self.error is not None:
            is_io = isinstance(self.error, (CheckpointError, OSError))
            failure = FailureReason.IO if is_io else FailureReason.ASYNCHRONOUS
            error = str(self.error) or type(self.error).__name__
        return BaseReport(
            epoch=self._snapshot.checkpoint_id,
            background=True,
            failure=failure,
            error=error,
            sync_ms=self._snapshot.synchronous_ms,
            async_ms=self._async_ms,
            bytes=0 if self.file is None else self.file.bytes,
            entries=0 if self.file is None else sum(self.file.entries.values()),
            ended_ms=_now_ms(),
        )

    def _write(self) -> None:
        began = time.perf_counter()
        try:
            file = _write_segment(self._folder, self.path, self._key_groups, self._compression, self._run)
        except BaseException as error:  # whoever began it hears of it in `outcome`
            self.error = error
            return
        finally:
            self._async_ms = (time.perf_counter() - began) * 1000.0
            # Where it could not even be begun.
            self._snapshot.cancel()
        with self._lock:
            if not self._given_up:
                self.file = file
                return
        self._delete()

    def _run(self, sink: SnapshotSink) -> None:
        self._snapshot.run(_PacedSink(sink, self._share, self._hurried))

    def _delete(self) -> None:
        # Clean-up finds it later where this fails.
        with contextlib.suppress(CheckpointError):
            self._folder.storage.delete_file(self.path)


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
