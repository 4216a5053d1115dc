"""Copying files between storages: byte by byte, all or none, and nothing left behind."""

from __future__ import annotations

import hashlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.checkpoint.storage.transfer import FileCopy, transfer
from keyedstate.errors import MissingFileError, StorageError, TransferCancelledError

#: Sizes around those of a piece, and of what an output holds before it opens a stream.
SIZES = [0, 1, 1000, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, (8 << 20) + 5]


@pytest.fixture
def source(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(tmp_path / "source")


@pytest.fixture
def unruly(unruly_storage: Callable[[Path], Any], tmp_path: Path) -> Any:
    return unruly_storage(tmp_path / "target")


def fill(storage: CheckpointStorage, sizes: list[int]) -> list[FileCopy]:
    generator = random.Random(7)
    files = []
    for number, size in enumerate(sizes):
        storage.write_atomic(f"data/{number}.seg", generator.randbytes(size))
        files.append(FileCopy(f"data/{number}.seg", f"copy/{number}.seg", size))
    return files


def fill_small(storage: CheckpointStorage, count: int) -> list[FileCopy]:
    return fill(storage, [100] * count)


@pytest.mark.parametrize("threads", [1, 4])
def test_all_files_are_byte_identical_and_described(
    source: CheckpointStorage, storage: CheckpointStorage, threads: int
) -> None:
    """XFER-01."""
    files = fill(source, SIZES)
    copies = transfer(source, storage, files, threads=threads)
    assert [(copy.source, copy.target, copy.bytes) for copy in copies] == [
        (file.source, file.target, file.bytes) for file in files
    ]
    for copy in copies:
        data = storage.read(copy.target)
        assert data == source.read(copy.source)
        assert copy.sha256 == hashlib.sha256(data).hexdigest()


def test_no_files_are_no_work(source: CheckpointStorage, storage: CheckpointStorage) -> None:
    assert list(transfer(source, storage, [])) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_failing_files_error_is_raised_and_the_copies_are_deleted(
    source: CheckpointStorage, storage: CheckpointStorage, threads: int
) -> None:
    """XFER-01."""
    files = fill_small(source, 30)
    files[17] = FileCopy("data/none.seg", "copy/none.seg")
    with pytest.raises(MissingFileError, match=r"data/none\.seg"):
        transfer(source, storage, files, threads=threads)
    assert list(storage.list("copy")) == []
    assert len(source.list("data")) == 30


def test_of_two_failing_files_the_one_that_failed_first_is_reported(
    source: CheckpointStorage, unruly: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XFER-01."""
    futures: list[Future[Any]] = []
    first_file_is_open, both_submitted = threading.Event(), threading.Event()

    class Recording(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
            futures.append(super().submit(*arguments, **named))
            if len(futures) == 2:
                both_submitted.set()
            return futures[-1]

    monkeypatch.setattr(sys.modules[transfer.__module__], "ThreadPoolExecutor", Recording)

    def watcher(operation: str, path: str) -> None:
        if operation == "create" and path.endswith("0.seg"):
            first_file_is_open.set()
            assert both_submitted.wait(600)
            assert isinstance(futures[1].exception(600), StorageError)
            raise PermissionError(13, "the later one")
        if operation == "create":
            assert first_file_is_open.wait(600)
            raise PermissionError(13, "the earlier one")

    unruly.handler.watcher = watcher
    with pytest.raises(StorageError, match="the earlier one"):
        transfer(source, unruly.storage, fill_small(source, 2), threads=2)


def test_a_file_of_another_size_than_expected_is_not_copied(
    source: CheckpointStorage, storage: CheckpointStorage
) -> None:
    source.write_atomic("one", b"12345")
    with pytest.raises(StorageError, match="it has 5 bytes and should have 6"):
        transfer(source, storage, [FileCopy("one", "one", 6)])
    assert not storage.exists("one")


def test_a_local_file_that_is_there_already_is_neither_replaced_nor_deleted(
    source: CheckpointStorage, tmp_path: Path
) -> None:
    files = fill_small(source, 3)
    target = CheckpointStorage.open(tmp_path / "local")
    target.write_atomic("copy/1.seg", b"somebody's")
    with pytest.raises(StorageError, match="exists"):
        transfer(source, target, files)
    assert target.read("copy/1.seg") == b"somebody's"
    assert list(target.list("copy")) == ["1.seg"]


def test_a_large_file_whose_connection_breaks_is_copied_again(source: CheckpointStorage, unruly: Any) -> None:
    """A transient error in the midst of a stream."""
    files = fill(source, [20 << 20, 100])
    unruly.handler.fail("write", [ConnectionResetError("reset by peer")], "0.seg")
    (large, small) = transfer(source, unruly.storage, files)
    assert unruly.storage.read(large.target) == source.read(large.source)
    assert unruly.storage.read(small.target) == source.read(small.source)
    assert unruly.pauses == [0.1]


def test_a_file_that_keeps_failing_ends_the_transfer_after_the_configured_retries(
    source: CheckpointStorage, unruly: Any
) -> None:
    files = fill(source, [20 << 20])
    unruly.handler.fail("write", [ConnectionResetError("reset by peer")] * 6)
    with pytest.raises(StorageError, match=r"cannot write .*copy/0\.seg: reset by peer"):
        transfer(source, unruly.storage, files)
    assert len(unruly.pauses) == 5
    assert list(unruly.storage.list("copy")) == []


def test_a_cancelled_transfer_stops_and_leaves_nothing(source: CheckpointStorage, unruly: Any) -> None:
    """XFER-01."""
    cancelled = threading.Event()
    files = fill(source, [100, 20 << 20, 100, 100])

    def watcher(operation: str, path: str) -> None:
        if operation == "write" and path.endswith("1.seg"):
            cancelled.set()

    unruly.handler.watcher = watcher
    with pytest.raises(TransferCancelledError, match="Start it again"):
        transfer(source, unruly.storage, files, threads=1, cancelled=cancelled)
    assert list(unruly.storage.list("copy")) == []
    assert ("create", "state/copy/2.seg") not in unruly.handler.calls


def test_an_interruption_waits_for_running_copies_and_deletes_what_they_wrote(
    source: CheckpointStorage, unruly: Any
) -> None:
    """XFER-01; the interruption comes while two copies are in the midst of their writes."""
    files = fill_small(source, 6)
    both, interrupted = threading.Barrier(2), threading.Event()

    def watcher(operation: str, path: str) -> None:
        if operation == "create" and not interrupted.is_set():
            if both.wait(600) == 0:
                signal.pthread_kill(main, signal.SIGINT)
                interrupted.set()
            assert interrupted.wait(600)

    unruly.handler.watcher = watcher
    main = threading.main_thread().ident
    assert main is not None
    with pytest.raises(KeyboardInterrupt):
        transfer(source, unruly.storage, files, threads=2)
    assert {("create", f"state/copy/{number}.seg") for number in (0, 1)} <= set(unruly.handler.calls)
    assert list(unruly.storage.list("copy")) == []


def test_an_interruption_while_files_are_being_submitted_leaves_nothing_of_those_that_run(
    source: CheckpointStorage, unruly: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XFER-01."""
    first_runs, interrupted, created = threading.Event(), threading.Event(), []

    class Interrupted(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
            if first_runs.is_set():
                interrupted.set()
                raise KeyboardInterrupt
            future = super().submit(*arguments, **named)
            assert first_runs.wait(600)
            return future

    def watcher(operation: str, path: str) -> None:
        if operation == "create":
            first_runs.set()
            assert interrupted.wait(600)
            # A transfer that does not wait for this copy has deleted what it found.
            time.sleep(0.2)
            created.append(path)

    monkeypatch.setattr(sys.modules[transfer.__module__], "ThreadPoolExecutor", Interrupted)
    unruly.handler.watcher = watcher
    with pytest.raises(KeyboardInterrupt):
        transfer(source, unruly.storage, fill_small(source, 2), threads=2)
    assert set(created) == {"state/copy/0.seg"}
    assert list(unruly.storage.list("copy")) == []


def test_an_interruption_while_a_thread_starts_waits_for_what_it_copies(
    source: CheckpointStorage, unruly: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XFER-01; the pool does not know the thread yet."""
    files = fill_small(source, 2)
    runs, created = threading.Event(), []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("keyedstate-transfer"):
            assert runs.wait(600)
            raise KeyboardInterrupt

    def watcher(operation: str, path: str) -> None:
        if operation == "create":
            runs.set()
            time.sleep(0.2)
            created.append(path)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    unruly.handler.watcher = watcher
    with pytest.raises(KeyboardInterrupt):
        transfer(source, unruly.storage, files, threads=2)
    assert set(created) == {"state/copy/0.seg"}
    assert list(unruly.storage.list("copy")) == []


def test_an_interruption_while_the_threads_end_still_deletes_what_was_copied(
    source: CheckpointStorage, storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XFER-01; the user presses Ctrl-C again."""

    class Interrupted(ThreadPoolExecutor):
        def shutdown(self, *arguments: Any, **named: Any) -> None:
            super().shutdown(*arguments, **named)
            raise KeyboardInterrupt

    files = fill_small(source, 3)
    files[1] = FileCopy("data/none.seg", "copy/none.seg")
    monkeypatch.setattr(sys.modules[transfer.__module__], "ThreadPoolExecutor", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        transfer(source, storage, files, threads=1)
    assert list(storage.list("copy")) == []


def test_a_transfer_without_threads_is_refused(source: CheckpointStorage) -> None:
    with pytest.raises(ValueError, match="at least 1 thread"):
        transfer(source, source, [], threads=0)
