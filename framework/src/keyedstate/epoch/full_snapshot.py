"""Full snapshots of a partition's keyed state, written between two epochs or in the background."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keyedstate.backend import EntryBatch, SnapshotSink, StateMeta
from keyedstate.checkpoint import (
    CheckpointStorage,
    FailureReason,
    FullSnapshotReport,
    NativeFullSnapshot,
    OperatorFolder,
    SegmentFile,
    SegmentWriter,
    StoredNativeFile,
    delete_native,
    write_native,
)
from keyedstate.errors import CheckpointError
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.state.registry.running_snapshot import SnapshotTask

#: A rest is taken after so much work, in seconds: so short that no other thread waits long for the lock.
_REST_AFTER_S = 0.002


@dataclass(frozen=True)
class WrittenFullSnapshot:
    """A full snapshot in its files: a segment file, or native ones.

    Attributes
    ----------
    segments : tuple of SegmentFile
    native : NativeFullSnapshot or None
    bytes, entries : int
        Bytes that were written, so without files that other checkpoints have too; entries in the base.
    """

    segments: tuple[SegmentFile, ...]
    native: NativeFullSnapshot | None
    bytes: int
    entries: int

    def delete(self, storage: CheckpointStorage, path: str) -> None:
        """Delete what was written for this full snapshot alone."""
        if self.native is not None:
            delete_native(storage, path, self.native)
        else:
            storage.delete_file(path)


class CapturedFullSnapshot:
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
    ) -> WrittenFullSnapshot:
        """Write the files; what is there of them after an error is deleted."""
        keyed, snapshot = self._keyed, self._snapshot
        if self._native is not None:
            full, written = write_native(
                folder.storage,
                path,
                keyed.key_groups,
                keyed.max_parallelism,
                keyed.backend_name,
                self._native,
                self._completed,
                self._cancelled,
            )
            return WrittenFullSnapshot((), full, written, sum(full.entries.values()))
        assert snapshot is not None, "captured in one form or the other"
        with SegmentWriter(folder.storage, path, keyed.key_groups, compression) as writer:
            snapshot.run(sink(writer))
            file = writer.finish()
        return WrittenFullSnapshot((file,), None, file.bytes, sum(file.entries.values()))

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


class BackgroundFullSnapshot:
    """A full snapshot that another thread writes while the state changes further.

    Attributes
    ----------
    path : str
    deltas : int
        How many deltas continue from it: those of the epochs that have ended since it began.
    written : WrittenFullSnapshot or None
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
        self.written: WrittenFullSnapshot | None = None
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
        self._captured = CapturedFullSnapshot(keyed, epoch, completed)
        # Nothing waits for it where the process ends: no manifest refers to an unfinished full snapshot.
        self._thread = threading.Thread(
            target=self._write, name=f"keyedstate-full-snapshot-{epoch}", daemon=True
        )
        try:
            self._thread.start()
        except (
            RuntimeError
        ) as error:  # the machine has no thread left: a full snapshot may fail, its epoch need not
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

    def outcome(self, timeout_ms: int, *, wait: bool) -> FullSnapshotReport | None:
        """Return how it ended, None while it runs; one that took too long is aborted."""
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
        return FullSnapshotReport(
            epoch=self._epoch,
            background=True,
            failure=failure,
            error=error,
            sync_ms=self._captured.synchronous_ms,
            async_ms=self._async_ms,
            bytes=0 if self.written is None else self.written.bytes,
            entries=0 if self.written is None else self.written.entries,
            ended_ms=now_ms(),
        )

    def _write(self) -> None:
        began = time.perf_counter()
        try:
            written = self._captured.write(self._folder, self.path, self._compression, self._paced)
        except BaseException as error:  # `outcome` gives it to the task that began it
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

    def _delete(self, written: WrittenFullSnapshot) -> None:
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


def now_ms() -> int:
    """Return the time in milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000
