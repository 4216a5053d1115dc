"""Full snapshots of a partition's keyed state, written between two epochs or in the background."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keyedstate.backend import EntryBatch, SnapshotSink, StateMeta
from keyedstate.checkpoint.format.manifest import (
    FailureReason,
    FullSnapshotReport,
    NativeFullSnapshot,
    StoredNativeFile,
)
from keyedstate.checkpoint.format.native_files import delete_native, write_native
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.errors import CheckpointError, SnapshotCancelledError
from keyedstate.state.clock import system_clock
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.state.registry.running_snapshot import SnapshotTask

#: Seconds of work before a pause: so few that no other thread waits long for the interpreter's lock.
_REST_AFTER_S = 0.002


@dataclass(frozen=True)
class WrittenFullSnapshot:
    """A full snapshot in its files: a segment file, or native ones."""

    segments: tuple[SegmentFile, ...]
    native: NativeFullSnapshot | None
    #: That were written, without the files of earlier checkpoints that it shares.
    bytes: int
    #: Of each state.
    entries: Mapping[str, int]


class CapturedFullSnapshot:
    """The whole keyed state as it was captured, in native form if the backend has one.

    The `path` is that of the segment file, which native files may replace.
    """

    def __init__(
        self,
        keyed: KeyedStateBackend,
        folder: OperatorFolder,
        path: str,
        epoch: int,
        compression: str,
        completed: Mapping[str, StoredNativeFile],
        *,
        native: bool = True,
    ) -> None:
        self.path = path
        self._keyed = keyed
        self._storage = folder.storage
        self._epoch = epoch
        self._compression = compression
        self._completed = completed
        self._cancelled = threading.Event()
        self._async_ms = 0.0
        self._snapshot: SnapshotTask | None = None
        began = time.perf_counter()
        self._native = keyed.native_snapshot(epoch) if native else None
        self.synchronous_ms = (time.perf_counter() - began) * 1000.0
        if self._native is None:
            self._snapshot = keyed.snapshot(epoch)
            self.synchronous_ms = self._snapshot.synchronous_ms

    def write(self, sink: Callable[[SnapshotSink], SnapshotSink] = lambda sink: sink) -> WrittenFullSnapshot:
        """Write the files; after an error they are deleted."""
        began = time.perf_counter()
        keyed, snapshot = self._keyed, self._snapshot
        try:
            if self._native is not None:
                full, written = write_native(
                    self._storage,
                    self.path,
                    keyed.key_groups,
                    keyed.max_parallelism,
                    keyed.backend_name,
                    self._native,
                    self._completed,
                    self._cancelled,
                )
                return WrittenFullSnapshot((), full, written, full.entries)
            assert snapshot is not None, "captured in one form or the other"
            with SegmentWriter(self._storage, self.path, keyed.key_groups, self._compression) as writer:
                snapshot.run(sink(writer))
                file = writer.finish()
            return WrittenFullSnapshot((file,), None, file.bytes, file.entries)
        finally:
            self._async_ms = (time.perf_counter() - began) * 1000.0

    def report(
        self,
        written: WrittenFullSnapshot | None,
        *,
        background: bool,
        failure: FailureReason | None = None,
        error: str = "",
    ) -> FullSnapshotReport:
        """Return the report of its end: `written`, or failed."""
        return FullSnapshotReport(
            epoch=self._epoch,
            background=background,
            failure=failure,
            error=error,
            sync_ms=self.synchronous_ms,
            async_ms=self._async_ms,
            bytes=0 if written is None else written.bytes,
            entries=0 if written is None else sum(written.entries.values()),
            ended_ms=system_clock(),
        )

    def delete(self, written: WrittenFullSnapshot) -> None:
        """Delete the files written for this full snapshot alone; a later clean-up finds what is left."""
        with contextlib.suppress(CheckpointError):
            if written.native is not None:
                delete_native(self._storage, self.path, written.native)
            else:
                self._storage.delete_file(self.path)

    def cancel(self) -> None:
        """Stop the writing."""
        self._cancelled.set()
        if self._snapshot is not None:
            self._snapshot.cancel()

    def release(self) -> None:
        """Release the captured state after its last use; calling it again does nothing."""
        self.cancel()
        if self._native is not None:
            self._native.release()


class BackgroundFullSnapshot:
    """A full snapshot that another thread writes while the state changes further."""

    def __init__(self, captured: CapturedFullSnapshot, share: float) -> None:
        self.path = captured.path
        #: The number of deltas after it: those of the epochs that have ended since it began.
        self.deltas = 0
        #: Set when it is completed, or has failed.
        self.written: WrittenFullSnapshot | None = None
        self.error: BaseException | None = None
        self._captured = captured
        self._share = share
        self._hurried = threading.Event()
        self._lock = threading.Lock()
        self._given_up = False
        self._began = time.perf_counter()
        # A daemon: the process may end meanwhile, since no manifest refers to an unfinished full snapshot.
        self._thread = threading.Thread(target=self._write, name="keyedstate-full-snapshot", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread is left: a full snapshot may fail without its epoch
            self.error = error
            captured.release()

    def hurry(self) -> None:
        """Write without pauses from now on."""
        self._hurried.set()

    def give_up(self) -> None:
        """Cancel it; its file is deleted, by its thread or here, even if it was completed."""
        with self._lock:
            self._given_up = True
            completed, self.written = self.written, None
        self._captured.cancel()
        self._hurried.set()
        if completed is not None:
            self._captured.delete(completed)

    def outcome(self, timeout_ms: int, *, wait: bool) -> FullSnapshotReport | None:
        """Return the report of its end, None while it runs; one that took too long is aborted."""
        left_s = timeout_ms / 1000.0 - (time.perf_counter() - self._began)
        if wait and self._thread.ident is not None:
            self._thread.join(max(left_s, 0.0))
        failure: FailureReason | None = None
        error = ""
        if self._thread.is_alive():
            if left_s > 0 and not wait:
                if left_s < timeout_ms / 2000.0:
                    # At its share of the processor it would expire, and so would each later one.
                    self.hurry()
                return None
            self.give_up()
            failure, error = FailureReason.EXPIRED, f"it was not written after {timeout_ms} ms"
        elif isinstance(self.error, SnapshotCancelledError):
            # The backend has cancelled it to free memory; a later epoch begins another one.
            failure, error = FailureReason.CANCELLED, str(self.error)
        elif self.error is not None:
            is_io = isinstance(self.error, (CheckpointError, OSError))
            failure = FailureReason.IO if is_io else FailureReason.ASYNCHRONOUS
            error = str(self.error) or type(self.error).__name__
        return self._captured.report(self.written, background=True, failure=failure, error=error)

    def _write(self) -> None:
        try:
            written = self._captured.write(lambda sink: _PacedSink(sink, self._share, self._hurried))
        except BaseException as error:  # `outcome` reports it
            self.error = error
            return
        finally:
            self._captured.release()
        with self._lock:
            if not self._given_up:
                self.written = written
                return
        self._captured.delete(written)


class _PacedSink(SnapshotSink):
    """Pauses between the batches that it passes on, so that the task keeps its speed."""

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
