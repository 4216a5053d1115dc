"""Copying files from one storage to another: several at once, in pieces, all of them or none."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import StorageError, TransferCancelledError

#: Files that are copied at once by default, with one piece of each in memory.
THREADS = 4
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class FileCopy:
    """A file to copy."""

    #: Paths in the storage that is read and in the one that is written.
    source: str
    target: str
    #: The size that the file must have, where it is known.
    bytes: int | None = None


@dataclass(frozen=True)
class CopiedFile:
    """A file that was copied."""

    source: str
    target: str
    bytes: int
    #: Of the bytes that were copied, hexadecimal.
    sha256: str


def transfer(
    source: CheckpointStorage,
    target: CheckpointStorage,
    files: Iterable[FileCopy],
    *,
    threads: int = THREADS,
    cancelled: threading.Event | None = None,
) -> Sequence[CopiedFile]:
    """Copy files and return what was copied, in the order of `files`.

    Their targets should not exist; on a local disk an existing one is an error, elsewhere it is replaced.
    Each of the threads needs a few pieces of 4 MiB in memory, whatever the size of its file.  Another thread
    sets `cancelled` to stop.

    After an error, a cancel or an interrupt (KeyboardInterrupt) the running copies are stopped and awaited,
    and everything that was copied is deleted, before the error is raised: `TransferCancelledError`, or the
    `StorageError` of the file that failed first, after as many retries as ``storage.retries`` allows.
    """
    if threads < 1:
        raise ValueError(f"a transfer needs at least 1 thread, and not {threads}")
    wanted = list(files)
    running = _Transfer(source, target, cancelled)
    pool = ThreadPoolExecutor(min(threads, max(1, len(wanted))), "keyedstate-transfer")
    try:
        futures = [pool.submit(running.copy, file) for file in wanted]
        wait(futures, return_when=FIRST_EXCEPTION)
        if running.first_error is not None:
            raise running.first_error
        return [future.result() for future in futures]
    except BaseException:
        running.end_whatever_comes()
        for path in running.copied:
            # What cannot be deleted stays, since another error is being reported.
            with contextlib.suppress(StorageError):
                target.delete_file(path)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Transfer:
    """The shared state of the threads of one transfer."""

    def __init__(
        self, source: CheckpointStorage, target: CheckpointStorage, cancelled: threading.Event | None
    ) -> None:
        self._source = source
        self._target = target
        self._cancelled = cancelled
        #: Guards what follows, and tells when a file is no longer being copied.
        self._lock = threading.Condition()
        self._running = 0
        self.first_error: BaseException | None = None
        self.copied: list[str] = []
        self.stop = threading.Event()

    def copy(self, file: FileCopy) -> CopiedFile:
        """Copy one file; its thread's first error stops the others."""
        with self._lock:
            self._check_stop()
            self._running += 1
        try:
            copied = self._target.retry.call(
                lambda: self._copy_once(file),
                f"copy {self._source.location(file.source)}",
                lambda error: isinstance(error, StorageError) and error.restartable,
            )
            with self._lock:
                self.copied.append(file.target)
            return copied
        except BaseException as error:
            with self._lock:
                self.first_error = self.first_error or error
            self.stop.set()
            raise
        finally:
            with self._lock:
                self._running -= 1
                self._lock.notify_all()

    def end_whatever_comes(self) -> None:
        """Stop and await running copies, whose files are deleted next, even if the user presses Ctrl-C again.

        The pool does not know a thread whose start was interrupted.
        """
        while True:
            try:
                with self._lock:
                    self.stop.set()
                    self._lock.wait_for(lambda: not self._running)
                return
            except KeyboardInterrupt:
                continue

    def _copy_once(self, file: FileCopy) -> CopiedFile:
        source = self._source.open_input(file.source)
        digest, position = hashlib.sha256(), 0
        try:
            if file.bytes is not None and source.size != file.bytes:
                reason = f"it has {source.size} bytes and should have {file.bytes}"
                raise StorageError(self._source.location(file.source), "copy", reason)
            output = self._target.open_output(file.target)
            try:
                while position < source.size:
                    self._check_stop()
                    piece: Any = source.read_at(position, _PIECE_BYTES)
                    if not len(piece):
                        reason = f"it ended after {position} of {source.size} bytes"
                        raise StorageError(self._source.location(file.source), "copy", reason)
                    output.write(bytes(piece))
                    digest.update(piece)
                    position += len(piece)
                self._check_stop()
                output.close()
            except BaseException:
                output.abort()
                raise
        finally:
            source.close()
        return CopiedFile(file.source, file.target, position, digest.hexdigest())

    def _check_stop(self) -> None:
        if self.stop.is_set() or (self._cancelled is not None and self._cancelled.is_set()):
            raise TransferCancelledError(self._source.location(), self._target.location())
