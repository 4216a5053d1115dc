from __future__ import annotations

import os
import pickle
import resource
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import MissingFileError, StorageError, UnknownSchemeError, UnsafeNameError


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Let every file of this process grow to `limit` bytes only; the kernel refuses what goes beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_was_written_is_read_back_and_folders_come_into_being_with_it(
    storage: CheckpointStorage,
) -> None:
    assert storage.list() == [] and not storage.exists("a/b")
    storage.write_atomic("a/b/file", b"content")
    assert storage.read("a/b/file") == b"content"
    assert list(storage.list("a")) == ["b"] and list(storage.list("a/b")) == ["file"]
    storage.write_atomic("a/b/file", b"other")
    assert storage.read("a/b/file") == b"other"
    assert list(storage.list("a/b")) == ["file"]


def test_only_what_must_be_durable_waits_for_the_disk(
    local: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A started marker need not survive a crash of the machine, and each task of each epoch writes one."""
    synced = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), sync(descriptor)))
    local.write_atomic("folder/manifest", b"content")
    assert len(synced) >= 2, "the file, and the folder that names it"
    synced.clear()
    local.write_atomic("folder/marker", b"content", durable=False)
    assert synced == [] and local.read("folder/marker") == b"content"


def test_an_output_is_read_in_ranges_once_it_is_closed(storage: CheckpointStorage) -> None:
    output = storage.open_output("data/one.seg")
    for piece in (b"0123", b"", b"456789"):
        output.write(piece)
    output.close()
    source = storage.open_input("data/one.seg")
    assert source.size == 10
    assert bytes(source.read_at(3, 4)) == b"3456"
    assert bytes(source.read_at(8, 100)) == b"89"
    assert bytes(source.read_at(0, 1)) == b"0"
    source.close()
    source.close()


def test_an_aborted_output_leaves_no_file(storage: CheckpointStorage) -> None:
    output = storage.open_output("data/one.seg")
    output.write(b"half")
    output.abort()
    assert list(storage.list("data")) == []
    output.abort()


def test_deleting_what_is_missing_is_fine(storage: CheckpointStorage) -> None:
    storage.delete_file("a/none")
    storage.delete_dir("none")
    storage.write_atomic("a/file", b"x")
    storage.write_atomic("a/b/file", b"x")
    storage.delete_file("a/file")
    assert list(storage.list("a")) == ["b"]
    storage.delete_dir("a")
    assert list(storage.list()) == []


def test_a_missing_file_is_an_error_that_names_it(storage: CheckpointStorage) -> None:
    with pytest.raises(MissingFileError, match="chk-1/_metadata"):
        storage.read("chk-1/_metadata")
    with pytest.raises(MissingFileError, match=r"data/none\.seg"):
        storage.open_input("data/none.seg")


@pytest.mark.parametrize("path", ["..", "a/../b", "/etc/passwd", "a//b", "./a", "a/", "a\0b"])
def test_no_path_leaves_the_root(storage: CheckpointStorage, path: str) -> None:
    for operation in (storage.read, storage.list, storage.exists, storage.delete_file, storage.delete_dir):
        with pytest.raises(UnsafeNameError):
            operation(path)
    with pytest.raises(UnsafeNameError):
        storage.write_atomic(path, b"")
    with pytest.raises(UnsafeNameError):
        storage.child(path)


def test_a_child_is_a_storage_of_its_own(storage: CheckpointStorage) -> None:
    child = storage.child("views", "data")
    child.write_atomic("one", b"1")
    assert storage.read("views/data/one") == b"1"
    address, mark, options = storage.uri.partition("?")
    assert child.uri == f"{address}/views/data{mark}{options}"
    assert child.location("one").endswith("views/data/one")


def test_for_each_keeps_the_order_and_the_error(storage: CheckpointStorage) -> None:
    for number in range(40):
        storage.write_atomic(f"n/{number}", str(number).encode())
    assert list(storage.for_each(storage.read, [f"n/{number}" for number in range(40)])) == [
        str(number).encode() for number in range(40)
    ]
    with pytest.raises(MissingFileError, match="n/99"):
        storage.for_each(storage.read, ["n/1", "n/99", "n/2"])


def test_local_folders_are_opened_by_path_or_file_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [
        tmp_path / "a b",
        str(tmp_path / "a b"),
        "a b",
        f"file://{tmp_path}/a%20b",
        f"{tmp_path}/c/../a b/",
    ]
    opened = [CheckpointStorage.open(uri) for uri in given]
    assert {storage.uri for storage in opened} == {str(tmp_path / "a b")}
    assert all(storage.is_local for storage in opened)
    opened[0].write_atomic("f", b"1")
    # The address of one process must lead another one to the same place.
    assert CheckpointStorage.open(opened[3].uri).read("f") == b"1"
    assert pickle.loads(pickle.dumps(opened[0])).read("f") == b"1"


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownSchemeError) as caught:
        CheckpointStorage.open("hdsf://bucket/folder")
    assert caught.value.scheme == "hdsf"
    assert "Did you mean 'hdfs'" in str(caught.value) and "s3" in str(caught.value)


def test_a_known_scheme_with_a_bad_address_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match="cannot open abfs://container/folder"):
        CheckpointStorage.open("abfs://container/folder")


def test_options_of_a_uri_stay_behind_the_path_and_passwords_stay_out_of_messages() -> None:
    uri = "s3://KEY:PASS@bucket/base?region=eu-west-1&endpoint_override=localhost%3A1"
    child = CheckpointStorage.open(uri).child("views")
    assert child.uri == "s3://KEY:PASS@bucket/base/views?region=eu-west-1&endpoint_override=localhost%3A1"
    assert child.location("_owner") == "s3://KEY:***@bucket/base/views/_owner"
    with pytest.raises(StorageError) as caught:
        CheckpointStorage.open("s3://KEY:PASS@bucket/a?no_such_option=1&secret_key=TOP")
    assert "PASS" not in str(caught.value) and "TOP" not in str(caught.value)


def test_errors_survive_the_way_to_another_process(local: CheckpointStorage) -> None:
    with pytest.raises(MissingFileError) as caught:
        local.read("none")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.uri, copy.operation) == (str(caught.value), local.location("none"), "read")


def test_a_full_disk_leaves_the_old_content_and_nothing_half_written(local: CheckpointStorage) -> None:
    local.write_atomic("chk-1/_metadata", b"old")
    with full_disk(1000), pytest.raises(StorageError, match=r"cannot write .*chk-1/_metadata"):
        local.write_atomic("chk-1/_metadata", b"n" * 5000)
    assert local.read("chk-1/_metadata") == b"old"
    assert list(local.list("chk-1")) == ["_metadata"]


def test_a_full_disk_is_found_at_the_latest_when_an_output_is_closed(local: CheckpointStorage) -> None:
    output = local.open_output("data/one.seg")
    with full_disk(1000):
        output.write(b"n" * 5000)
        with pytest.raises(StorageError, match=r"cannot write .*data/one\.seg"):
            output.close()
        output.abort()
    assert list(local.list("data")) == []


def test_a_disk_without_room_is_one_error_and_nothing_half_written(small_disk: Path) -> None:
    storage = CheckpointStorage.open(small_disk / "state")
    storage.write_atomic("chk-1/_metadata", b"old")
    with pytest.raises(StorageError, match=r"cannot write .*chk-1/_metadata: No space left on device\."):
        storage.write_atomic("chk-1/_metadata", bytes(1 << 20))
    assert storage.read("chk-1/_metadata") == b"old"
    assert list(storage.list("chk-1")) == ["_metadata"]
    output = storage.open_output("data/one.seg")
    with pytest.raises(
        StorageError, match=r"cannot write .*data/one\.seg: No space left on device"
    ) as caught:
        output.write(bytes(4 << 20))
    assert not caught.value.restartable
    output.abort()
    assert list(storage.list("data")) == []
    # There is room again: whatever has failed took none.
    storage.write_atomic("data/two.seg", bytes(100_000))


def test_storage_that_may_only_be_read_is_one_error_for_each_change(small_disk: Path) -> None:
    storage = CheckpointStorage.open(small_disk / "state")
    storage.write_atomic("chk-1/_metadata", b"old")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for change in (
        lambda: storage.write_atomic("chk-1/_metadata", b"new"),
        lambda: storage.write_atomic("chk-2/_metadata", b"new"),
        lambda: storage.open_output("data/one.seg"),
        lambda: storage.delete_file("chk-1/_metadata"),
        lambda: storage.delete_dir("chk-1"),
    ):
        with pytest.raises(StorageError, match="Read-only file system"):
            change()
    assert storage.read("chk-1/_metadata") == b"old"


def test_a_file_where_a_folder_should_be_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"a file")
    storage = CheckpointStorage.open(tmp_path / "state")
    with pytest.raises(StorageError, match=r"state/views/_owner"):
        storage.write_atomic("views/_owner", b"x")


def test_an_output_never_writes_over_a_file(local: CheckpointStorage) -> None:
    local.write_atomic("data/one.seg", b"x")
    with pytest.raises(StorageError, match=r"data/one\.seg"):
        local.open_output("data/one.seg")
    assert local.read("data/one.seg") == b"x"


def test_a_reader_sees_one_of_the_contents_and_never_a_mixture(local: CheckpointStorage) -> None:
    contents = [bytes([letter]) * 50_000 for letter in b"abc"]
    local.write_atomic("f", contents[0])
    seen: set[bytes] = set()
    has_read, done = threading.Event(), threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(local.read("f"))
            has_read.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert has_read.wait(600)
    for number in range(60):
        local.write_atomic("f", contents[number % 3])
    done.set()
    reader.join()
    assert seen and seen <= set(contents)


def test_what_another_file_system_refuses_becomes_a_storage_error() -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "access denied")

    methods = dict.fromkeys(pafs.FileSystemHandler.__abstractmethods__, refuse)
    names = {"get_type_name": lambda _: "refusing", "normalize_path": lambda _, path: path}
    handler = type("Refusing", (pafs.FileSystemHandler,), {**methods, **names})()
    storage = CheckpointStorage(pafs.PyFileSystem(handler), "base", "refusing://base")
    with pytest.raises(StorageError, match=r"cannot read refusing://base/f: .*access denied"):
        storage.read("f")
    with pytest.raises(StorageError, match=r"cannot write refusing://base/f: .*access denied"):
        storage.write_atomic("f", b"x")
    with pytest.raises(StorageError, match=r"cannot list refusing://base: .*access denied"):
        storage.list()


def test_a_file_of_1970_has_no_known_time(tmp_path: Path) -> None:
    """Some file systems that are mounted know no times and say 0: no machine is to go by that."""
    storage = CheckpointStorage.open(tmp_path)
    storage.write_atomic("file", b"content")
    os.utime(tmp_path / "file", ns=(0, 0))
    assert storage.modified_ms("file") is None
    assert [file.modified_ms for file in storage.describe()] == [None]
