"""Checkpoints on a real S3-compatible server: whole cycles, its semantics, its failures, its refusals."""

from __future__ import annotations

import pickle
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.protocol.recovery import find_restore_point
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.checkpoint.storage.retry import RetryPolicy
from keyedstate.errors import CorruptFileError, StorageError


@pytest.fixture
def folder() -> str:
    return uuid.uuid4().hex


#: Older versions of pyarrow begin an upload of parts for every file.
SMALL_IN_ONE_REQUEST = "allow_delayed_open" in (pafs.S3FileSystem.__doc__ or "")
one_request = pytest.mark.skipif(not SMALL_IN_ONE_REQUEST, reason="pyarrow sends three requests for a file")


@pytest.fixture
def s3(object_store: Any, folder: str) -> CheckpointStorage:
    return CheckpointStorage.open(object_store.uri(folder))


@pytest.fixture
def impatient(object_store: Any, folder: str) -> tuple[CheckpointStorage, list[float]]:
    """A storage whose client itself tries once only; what it would wait between its attempts."""
    pauses: list[float] = []
    filesystem = pafs.S3FileSystem(
        access_key="key",
        secret_key="secret",
        scheme="http",
        region="us-east-1",
        endpoint_override=f"127.0.0.1:{object_store.port}",
        **({"allow_delayed_open": True} if SMALL_IN_ONE_REQUEST else {}),
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
    )
    policy = RetryPolicy(3, 200, pauses.append, lambda: 0.0)
    return CheckpointStorage(filesystem, f"bucket/{folder}", object_store.uri(folder), policy), pauses


@pytest.fixture
def restarted(object_store: Any) -> Iterator[Any]:
    """The server, which the test may kill: the next test finds it running."""
    yield object_store
    object_store.start()


def test_epochs_are_claimed_published_restored_and_pruned(jobs: ModuleType, s3: CheckpointStorage) -> None:
    job = jobs.Job(s3)
    for epoch in range(4):
        run = "run-1" if epoch < 2 else "run-2"
        job.epoch(run, epoch, CheckpointCoordinator(job.folder) if epoch != 1 else None)
    # The tasks of epoch 2 have published epoch 1 in the driver's stead.
    assert job.published(2) == job.state_of(0, 1, 2)
    assert job.published(3) == job.state_of(0, 1, 2, 3)
    assert job.folder.checkpoints() == [2, 3]
    assert len(job.files()) == 2 * job.parallelism
    restore_point = find_restore_point(job.folder, job.identity("run-3", 4, 0))
    assert restore_point is not None and restore_point.epoch == 3


def test_an_aborted_epoch_leaves_nothing_that_is_read(jobs: ModuleType, s3: CheckpointStorage) -> None:
    job = jobs.Job(s3)
    coordinator = CheckpointCoordinator(job.folder)
    job.epoch("run-1", 0, coordinator)
    begun = job.identity("run-1", 1, 0)
    state = job.begin(begun)
    job.write_data(begun, state)
    job.epoch("run-2", 1, CheckpointCoordinator(job.folder))
    assert job.published(1) == job.state_of(0, 1)
    job.epoch("run-2", 2, CheckpointCoordinator(job.folder))
    assert len(job.files()) == 2 * job.parallelism


def test_what_a_folder_of_deleted_files_leaves_is_not_taken_for_state(
    jobs: ModuleType, s3: CheckpointStorage
) -> None:
    """pyarrow keeps the folder of the last deleted file as an object of its own, without content."""
    job = jobs.Job(s3)
    job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    job.folder.delete_checkpoint(0)
    job.folder.delete_attempts(0)
    for path in job.folder.data_files():
        job.folder.storage.delete_file(path)
    assert job.folder.data_files() == []
    assert job.folder.attempts(0) == []
    assert job.folder.read_metadata(0) is None
    assert "" not in job.folder.storage.list() and "" not in job.folder.storage.list("data")
    job.folder.storage.delete_dir("")
    assert not job.folder.has_state()
    assert list(s3.files()) == []


@one_request
def test_a_small_file_costs_one_request_to_write_and_two_to_read(
    s3: CheckpointStorage, object_store: Any, folder: str
) -> None:
    object_store.requests()
    s3.write_atomic("_owner", b"1")
    output = s3.open_output("data/one.seg")
    for _ in range(10):
        output.write(bytes(1000))
    output.close()
    assert object_store.requests() == [f"PUT /bucket/{folder}/_owner", f"PUT /bucket/{folder}/data/one.seg"]
    source = s3.open_input("data/one.seg")
    for offset in (9990, 0, 100):
        assert len(source.read_at(offset, 10)) == 10
    source.close()
    path = f"/bucket/{folder}/data/one.seg"
    assert object_store.requests() == [f"HEAD {path}", f"GET {path}"]


@one_request
def test_a_task_of_an_epoch_makes_few_requests(
    jobs: ModuleType, s3: CheckpointStorage, object_store: Any
) -> None:
    """Claim, marker, restore point, restored state, data and manifest of one of two tasks."""
    job = jobs.Job(s3)
    job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    object_store.requests()
    job.task("run-1", 1, 0)
    counts = Counter(line.split()[0] for line in object_store.requests())
    # Written: started marker, data, manifest. Read: owner, metadata, one segment; listed: what checkpoints
    # and attempts there are.
    assert counts["PUT"] == 3
    assert counts["POST"] == counts["DELETE"] == 0
    assert counts["GET"] + counts["HEAD"] <= 12


def test_a_large_file_goes_in_parts_and_is_read_in_ranges(s3: CheckpointStorage) -> None:
    output = s3.open_output("data/large.seg")
    for piece in range(20):
        output.write(bytes([piece]) * (1 << 20))
    assert not s3.exists("data/large.seg"), "a part of a file can be seen"
    output.close()
    source = s3.open_input("data/large.seg")
    assert source.size == 20 << 20
    assert bytes(source.read_at((7 << 20) - 2, 4)) == bytes([6, 6, 7, 7])
    source.close()


@pytest.mark.slow
def test_a_large_file_needs_a_bounded_part_of_its_size_in_memory(s3: CheckpointStorage) -> None:
    """pyarrow uploads in the background, and would take in all that it is given."""
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    output = s3.open_output("data/large.seg")
    for _ in range(30):
        output.write(bytes(4 << 20))
        most = max(most, pool.bytes_allocated() - before)
    output.close()
    assert most < 64 << 20
    source = s3.open_input("data/large.seg")
    assert source.size == 120 << 20
    source.close()


def test_an_aborted_large_file_leaves_nothing(s3: CheckpointStorage) -> None:
    output = s3.open_output("data/large.seg")
    output.write(bytes(12 << 20))
    output.abort()
    assert list(s3.files()) == []


def test_a_document_that_is_replaced_while_it_is_read_is_read_again(
    jobs: ModuleType, unruly_storage: Any, tmp_path: Path
) -> None:
    """An S3 read asks for the size and then for so many bytes: of a longer new object it gets a part."""
    unruly = unruly_storage(tmp_path / "files")
    job = jobs.Job(unruly.storage)
    job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    owner = unruly.storage.read("views/_owner")
    unruly.storage.write_atomic("views/_owner", owner[:-20])
    replaced = []

    def watcher(operation: str, path: str) -> None:
        if operation == "close" and path.endswith("_owner") and not replaced:
            replaced.append(path)
            (tmp_path / "files" / "state" / "views" / "_owner").write_bytes(owner)

    unruly.handler.watcher = watcher
    assert job.folder.read_owner() is not None
    assert replaced
    (tmp_path / "files" / "state" / "views" / "_owner").write_bytes(owner[:-20])
    with pytest.raises(CorruptFileError, match="_owner is damaged"):
        job.folder.read_owner()


def test_the_storage_travels_to_another_process(s3: CheckpointStorage) -> None:
    s3.write_atomic("one", b"1")
    assert pickle.loads(pickle.dumps(s3)).read("one") == b"1"


# -- a server that goes away -----------------------------------------------------------------------


def test_a_write_continues_when_the_server_is_back(
    restarted: Any, impatient: tuple[CheckpointStorage, list[float]]
) -> None:
    storage, pauses = impatient

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            restarted.start()

    object.__setattr__(storage.retry, "sleep", wait)
    restarted.kill()
    storage.write_atomic("chk-1/_metadata", b"published")
    assert pauses == [0.1, 0.2]
    assert storage.read("chk-1/_metadata") == b"published"


def test_a_read_continues_when_the_server_is_back(
    restarted: Any, folder: str, impatient: tuple[CheckpointStorage, list[float]]
) -> None:
    storage, pauses = impatient
    data = bytes(range(256)) * (8 << 10)
    storage.write_atomic("data/one.seg", data)
    source = storage.open_input("data/one.seg")
    assert bytes(source.read_at(5, 3)) == data[5:8]

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        restarted.start()
        restarted.request("PUT", f"/bucket/{folder}/data/one.seg", data)

    object.__setattr__(storage.retry, "sleep", wait)
    restarted.kill()
    assert bytes(source.read_at(1 << 20, 300)) == data[1 << 20 :][:300]
    assert pauses == [0.1]
    source.close()


def test_a_server_that_stays_away_is_reported_after_the_configured_retries(
    restarted: Any, impatient: tuple[CheckpointStorage, list[float]]
) -> None:
    storage, pauses = impatient
    restarted.kill()
    with pytest.raises(StorageError, match=r"cannot write .*NETWORK_CONNECTION.* \(tried 4 times\)"):
        storage.write_atomic("one", b"1")
    assert pauses == [0.1, 0.2, 0.4]


def test_a_truncated_large_file_is_an_error_that_asks_for_a_new_start(
    restarted: Any, impatient: tuple[CheckpointStorage, list[float]]
) -> None:
    storage, pauses = impatient
    output = storage.open_output("data/large.seg")
    output.write(bytes(10 << 20))
    restarted.kill()
    with pytest.raises(StorageError, match=r"cannot write .*data/large\.seg") as caught:
        write_to_the_end(output)
    assert caught.value.restartable and pauses == []
    restarted.start()
    output.abort()
    assert list(storage.files()) == []


def write_to_the_end(output: Any) -> None:
    output.write(bytes(40 << 20))
    output.close()


# -- refusals --------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_one_clear_error(object_store: Any, folder: str) -> None:
    storage = CheckpointStorage.open(object_store.uri(folder, bucket="elsewhere"))
    object_store.requests()
    with pytest.raises(StorageError, match=r"cannot write s3://key:\*\*\*@elsewhere/.*NO_SUCH_BUCKET"):
        storage.write_atomic("_owner", b"1")
    assert len(object_store.requests()) <= 1, "it was tried again"


def test_a_user_that_the_server_does_not_know_is_one_clear_error(object_store: Any, folder: str) -> None:
    storage = CheckpointStorage.open(object_store.uri(folder))
    object_store.check_users(True)
    try:
        object_store.requests()
        with pytest.raises(StorageError, match=r"INVALID_ACCESS_KEY_ID|HTTP status 403") as caught:
            storage.write_atomic("_owner", b"1")
        with pytest.raises(StorageError):
            storage.read("_owner")
        assert len(object_store.requests()) <= 3, "a refusal was tried again"
    finally:
        object_store.check_users(False)
    assert "secret" not in str(caught.value)


def test_credentials_and_endpoint_may_come_from_the_environment(
    object_store: Any, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{object_store.port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    storage = CheckpointStorage.open(f"s3://bucket/{folder}?region=us-east-1")
    storage.write_atomic("one", b"1")
    assert CheckpointStorage.open(object_store.uri(folder)).read("one") == b"1"
