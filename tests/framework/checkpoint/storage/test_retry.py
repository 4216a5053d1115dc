"""Which errors of a storage each operation retries, how often and after which pause."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.checkpoint.storage.retry import RetryPolicy, is_transient
from keyedstate.errors import MissingFileError, StorageError
from keyedstate.options import Configuration

TRANSIENT = [
    ConnectionResetError("reset"),
    ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
    TimeoutError("slow"),
    OSError(errno.ETIMEDOUT, "timed out"),
    OSError(errno.ESTALE, "Stale file handle"),
    OSError(
        "When reading information for key 'a' in bucket 'b': AWS Error NETWORK_CONNECTION during HeadObject "
        "operation: curlCode: 7, Couldn't connect to server"
    ),
    OSError("When completing multiple part upload: AWS Error SLOW_DOWN during PutObject operation: Reduce"),
    OSError("AWS Error UNKNOWN (HTTP status 500) during PutObject operation: Unable to parse"),
    OSError("AWS Error UNKNOWN (HTTP status 429) during PutObject operation"),
    OSError("google::cloud::Status(UNAVAILABLE: Permanent error in Rewrite)"),
    OSError("List blobs failed: 503 Server is busy"),
    pa.ArrowException("IOError: Connection reset by peer"),
]
LASTING = [
    FileNotFoundError(errno.ENOENT, "timeout.json"),
    FileNotFoundError("Path does not exist 'bucket/timeout'"),
    PermissionError("Service unavailable for you"),
    OSError(errno.ENOSPC, "No space left on device, connection reset"),
    OSError(errno.EROFS, "Read-only file system"),
    OSError(errno.EFBIG, "File too large"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    OSError("AWS Error ACCESS_DENIED during PutObject operation: Access Denied."),
    OSError("AWS Error NO_SUCH_BUCKET during PutObject operation: The bucket does not exist"),
    OSError("AWS Error UNKNOWN (HTTP status 403) during HeadBucket operation: No response body."),
    pa.ArrowInvalid("timeout is no number"),
    ValueError("timeout"),
]


def quick(retries: int = 3) -> tuple[RetryPolicy, list[float]]:
    pauses: list[float] = []
    return RetryPolicy(retries, 100, pauses.append, lambda: 1.0), pauses


@pytest.mark.parametrize("error", TRANSIENT, ids=str)
def test_an_error_that_may_pass_is_transient(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize("error", LASTING, ids=str)
def test_an_error_that_will_stay_is_not_transient(error: Exception) -> None:
    assert not is_transient(error)


def test_the_pause_doubles_up_to_a_limit_with_random_jitter() -> None:
    longest, shortest = RetryPolicy(9, 200, fraction=lambda: 1.0), RetryPolicy(9, 200, fraction=lambda: 0.0)
    assert [longest.pause(done) for done in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20.0]
    assert [shortest.pause(done) for done in range(3)] == [0.1, 0.2, 0.4]
    assert longest.pause(100_000) == 20.0


def test_a_call_is_repeated_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    policy, pauses = quick()
    errors = [TimeoutError("one"), TimeoutError("two")]

    def function() -> str:
        if errors:
            raise errors.pop()
        return "done"

    with caplog.at_level(logging.WARNING, "keyedstate.checkpoint.storage.retry"):
        assert policy.call(function, "read a") == "done"
    assert pauses == [0.1, 0.2]
    assert "cannot read a (TimeoutError); trying again in 0.2 s, 2 of 3" in caplog.text


@pytest.mark.parametrize(("retries", "calls"), [(0, 1), (1, 2), (3, 4)])
def test_a_call_that_keeps_failing_raises_its_last_error(retries: int, calls: int) -> None:
    policy, pauses = quick(retries)
    raised: list[Exception] = []

    def function() -> None:
        raised.append(TimeoutError(str(len(raised))))
        raise raised[-1]

    with pytest.raises(TimeoutError) as caught:
        policy.call(function, "read a")
    assert caught.value is raised[-1] and len(raised) == calls and len(pauses) == retries


def test_a_lasting_error_is_raised_at_once() -> None:
    policy, pauses = quick()
    with pytest.raises(PermissionError):
        policy.call(lambda: (_ for _ in ()).throw(PermissionError("no")), "read a")
    assert pauses == []


def test_the_options_reach_the_storage_and_its_children(tmp_path: Path) -> None:
    config = Configuration({"storage.retries": "7", "storage.retry-delay": 30})
    child = CheckpointStorage.open(tmp_path, config).child("views")
    assert (child.retry.retries, child.retry.delay_ms) == (7, 30)
    assert CheckpointStorage.open(tmp_path).retry == RetryPolicy(5, 200)


# -- every operation of a storage ------------------------------------------------------------------

OPERATIONS: list[tuple[str, Callable[[CheckpointStorage], object], object]] = [
    ("create", lambda storage: storage.write_atomic("a/new", b"1"), None),
    ("write", lambda storage: storage.write_atomic("a/new", b"1"), None),
    ("close", lambda storage: storage.write_atomic("a/new", b"1"), None),
    ("move", lambda storage: storage.write_atomic("a/one", b"1"), None),
    ("open", lambda storage: storage.read("a/one"), b"old"),
    ("read", lambda storage: storage.read("a/one"), b"old"),
    ("list", lambda storage: list(storage.list("a")), ["one"]),
    ("look up", lambda storage: storage.exists("a/one"), True),
    ("delete", lambda storage: storage.delete_file("a/one"), None),
    ("delete folder", lambda storage: storage.delete_dir("a"), None),
]


@pytest.fixture
def unruly(unruly_storage: Callable[..., Any], tmp_path: Path) -> Any:
    made = unruly_storage(tmp_path / "files")
    made.storage.write_atomic("a/one", b"old")
    return made


@pytest.mark.parametrize(("step", "operation", "expected"), OPERATIONS, ids=[step for step, *_ in OPERATIONS])
def test_every_operation_survives_transient_errors(
    unruly: Any, step: str, operation: Callable[[CheckpointStorage], object], expected: object
) -> None:
    unruly.handler.fail(step, [ConnectionResetError("one"), TimeoutError("two")])
    assert operation(unruly.storage) == expected
    assert len(unruly.pauses) == 2
    names = unruly.storage.list("a")
    assert not [name for name in names if name.endswith(".tmp")], "a temporary file was left"


@pytest.mark.parametrize(("step", "operation", "expected"), OPERATIONS, ids=[step for step, *_ in OPERATIONS])
def test_every_operation_ends_with_an_error_that_counts_its_tries(
    unruly: Any, step: str, operation: Callable[[CheckpointStorage], object], expected: object
) -> None:
    unruly.handler.fail(step, [ConnectionResetError("the network is gone")] * 6)
    with pytest.raises(StorageError, match=r"the network is gone \(tried 6 times\)"):
        operation(unruly.storage)
    unruly.handler.fail("none", [])
    assert unruly.storage.read("a/one") == b"old"
    assert list(unruly.storage.list("a")) == ["one"]


@pytest.mark.parametrize(("step", "operation", "expected"), OPERATIONS, ids=[step for step, *_ in OPERATIONS])
def test_no_operation_repeats_a_lasting_error(
    unruly: Any, step: str, operation: Callable[[CheckpointStorage], object], expected: object
) -> None:
    unruly.handler.fail(step, [OSError(errno.ENOSPC, "No space left on device")])
    with pytest.raises(StorageError, match="No space left on device"):
        operation(unruly.storage)
    assert unruly.pauses == []


def test_a_move_whose_answer_is_lost_counts_as_done_once(unruly: Any) -> None:
    """The second attempt has a temporary file of its own: the first one's is not there any more."""
    move = unruly.handler.move
    lost = [ConnectionResetError("the answer is lost")]

    def moved(source: str, target: str) -> None:
        move(source, target)
        if lost:
            raise lost.pop()

    unruly.handler.move = moved
    unruly.storage.write_atomic("a/one", b"new")
    assert unruly.storage.read("a/one") == b"new"
    assert list(unruly.storage.list("a")) == ["one"]


def test_a_missing_file_stays_a_missing_file_after_a_transient_error(unruly: Any) -> None:
    unruly.handler.fail("open", [TimeoutError("slow")])
    with pytest.raises(MissingFileError):
        unruly.storage.read("a/none")
    unruly.storage.delete_file("a/none")


def test_a_small_file_is_sent_in_one_request_and_so_retried(unruly: Any) -> None:
    output = unruly.storage.open_output("data/one.seg")
    for piece in range(100):
        output.write(b"%03d" % piece)
    assert not unruly.storage.exists("data/one.seg")
    unruly.handler.fail("write", [ConnectionResetError("reset")])
    output.close()
    assert unruly.storage.read("data/one.seg") == b"".join(b"%03d" % piece for piece in range(100))
    assert unruly.pauses == [0.1]


def test_a_large_file_that_breaks_off_is_not_repeated_in_silence(unruly: Any) -> None:
    output = unruly.storage.open_output("data/one.seg")
    output.write(b"1" * (8 << 20))
    unruly.handler.fail("write", [ConnectionResetError("reset")])
    with pytest.raises(StorageError, match="cannot write") as caught:
        output.write(b"2" * (4 << 20))
    assert caught.value.restartable
    output.abort()
    assert not unruly.storage.exists("data/one.seg")
    assert unruly.pauses == []


def test_a_buffered_file_that_could_not_be_sent_leaves_nothing_after_its_abort(unruly: Any) -> None:
    output = unruly.storage.open_output("data/one.seg")
    output.write(b"1" * 1000)
    unruly.handler.fail("close", [OSError(errno.ENOSPC, "No space left on device")])
    with pytest.raises(StorageError, match="No space left"):
        output.close()
    output.abort()
    assert list(unruly.storage.list("data")) == []


@pytest.mark.parametrize("size", [1000, 3 << 20])
def test_reading_continues_in_a_new_stream_after_a_broken_connection(unruly: Any, size: int) -> None:
    data = bytes(range(250)) * (size // 250)
    unruly.storage.write_atomic("data/one", data)
    source = unruly.storage.open_input("data/one")
    assert bytes(source.read_at(10, 5)) == data[10:15]
    unruly.handler.fail("read", [ConnectionResetError("reset"), TimeoutError("slow")])
    assert bytes(source.read_at(size - 5, 100)) == data[size - 5 : size]
    assert bytes(source.read_at(size + 5, 100)) == b""
    assert bytes(source.read_at(0, 300)) == data[:300]
    source.close()


def test_a_small_file_is_read_in_one_request(unruly: Any) -> None:
    unruly.storage.write_atomic("data/one", bytes(1000))
    unruly.handler.calls.clear()
    source = unruly.storage.open_input("data/one")
    for offset in range(0, 1000, 100):
        source.read_at(offset, 100)
    source.close()
    assert unruly.handler.count() == {"open": 1, "read": 1, "close": 1}


# -- publication -----------------------------------------------------------------------------------


def test_a_file_system_that_shows_half_files_never_shows_half_of_a_published_one(unruly: Any) -> None:
    seen: list[bytes] = []

    def watcher(operation: str, path: str) -> None:
        if operation in ("create", "write", "close", "move"):
            unruly.handler.watcher = lambda operation, path: None
            seen.append(unruly.storage.read("a/one"))
            unruly.handler.watcher = watcher

    unruly.handler.watcher = watcher
    unruly.storage.write_atomic("a/one", b"new")
    assert len(seen) >= 4 and set(seen) == {b"old"}
    assert unruly.storage.read("a/one") == b"new"


def test_a_process_that_dies_before_the_move_leaves_the_old_content_under_the_name(unruly: Any) -> None:
    class Killed(BaseException):
        pass

    def move(source: str, target: str) -> None:
        raise Killed

    unruly.handler.move, unruly.handler.delete_file = move, move
    with pytest.raises(Killed):
        unruly.storage.write_atomic("a/one", b"new")
    assert unruly.storage.read("a/one") == b"old"
    (temporary,) = set(unruly.storage.list("a")) - {"one"}
    assert temporary.startswith(".one.") and temporary.endswith(".tmp")
