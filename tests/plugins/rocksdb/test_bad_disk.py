"""Disks that are full and files that are not RocksDB's: each is said by name, and nothing is half done."""

from __future__ import annotations

import resource
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rocksdb_incremental import Job
from rocksdict import Options, Rdict

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.checkpoint.format.native_files import write_native
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import StorageError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import ValueState
from keyedstate.testing import open_instance
from keyedstate_rocksdb.errors import (
    CorruptDatabaseError,
    UnreadableDatabaseError,
    UnwritableDatabaseError,
    opened,
)

LISTS = StateMeta("lists", StateKind.VALUE, types.INT64, types.VOID, types.list_of(types.INT64))
TEXTS = ValueState("texts", types.BYTES)
VOID = types.VOID_NAMESPACE


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_the_error_of_a_full_disk_names_the_folder_and_the_store_can_be_closed(tmp_path: Path) -> None:
    instance = open_instance(
        "rocksdb",
        tmp_path,
        options={"rocksdb.write-buffer-size": 100_000, "rocksdb.compression": "none"},
        key_groups=KeyGroupRange(0, 1),
        max_parallelism=2,
    )
    table: Any = instance.table(LISTS)
    values = [[number] * 100 for number in range(500)]
    refused = pytest.raises(UnwritableDatabaseError, match=r"File too large.*Make room on the disk")

    def write() -> None:
        for start in range(0, 50_000, 500):
            table.put_many([0] * 500, range(start, start + 500), VOID, values)

    with full_at(20_000), refused as caught:
        write()
    assert caught.value.path == str(instance.context.local_dir / "db")
    # It stays so: a task that continues is restored from its checkpoint.
    with pytest.raises(UnwritableDatabaseError):
        write()
    instance.close()


def test_a_damaged_table_file_never_ends_an_iteration_early(tmp_path: Path) -> None:
    """The error names the state and the file."""
    options = {"rocksdb.write-buffer-size": 100_000, "rocksdb.memory-budget": 0}
    instance = open_instance(
        "rocksdb", tmp_path, options=options, key_groups=KeyGroupRange(0, 1), max_parallelism=2
    )
    table: Any = instance.table(LISTS)
    for start in range(0, 50_000, 500):
        keys = range(start, start + 500)
        table.put_many([0] * 500, keys, VOID, [[key] * 20 for key in keys])
    files = list((instance.context.local_dir / "db").glob("*.sst"))
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    refused = pytest.raises(UnreadableDatabaseError, match=r"state 'lists': .*\.sst")
    with refused:
        list(table.keys_and_namespaces())
    with refused:
        table.get_many([0] * 50_000, range(50_000), VOID)
    instance.close()


@pytest.mark.parametrize("read", [0, 1, 30])
def test_a_scan_reads_on_where_the_disk_failed_for_a_moment(tmp_path: Path, read: int) -> None:
    """`Rdict.items` ends without an error then."""
    instance = open_instance("rocksdb", tmp_path, key_groups=KeyGroupRange(0, 1), max_parallelism=2)
    table: Any = instance.table(LISTS)
    table.put_many([0] * 100, range(100), VOID, [[key] for key in range(100)])
    table.write_back()
    space: Any = instance.context.resources["ordered store"].open_space("lists")

    class EndsEarly:
        iter = space.rows.iter

        def items(self, **where: Any) -> Iterator[Any]:
            return islice(Rdict.items(rows, **where), read)

    found = list(space.scan(b"", None))
    assert len(found) == 100
    rows, space.rows = space.rows, EndsEarly()
    assert list(space.scan(b"", None)) == found
    space.rows = rows
    instance.close()


def test_a_full_snapshot_that_cannot_be_flushed_leaves_no_folder(
    tmp_path: Path,
) -> None:
    """SNAP-01, SNAP-02, SNAP-03."""
    job = Job(tmp_path, options={"rocksdb.incremental": True, "rocksdb.compression": "none"})
    job.restart()
    job.run(lambda instance: instance.get_state(TEXTS).update_many(range(20), [b"old"] * 20))
    (instance,) = job.instances
    instance.get_state(TEXTS).update_many(range(20), [b"x" * 5_000] * 20)
    with full_at(50_000), pytest.raises(UnwritableDatabaseError, match="Make room"):
        instance.native_snapshot(7)
    (private,) = (path for path in tmp_path.iterdir() if path.name.startswith("keyedstate-"))
    assert {path.name for path in private.iterdir()} == {"db", ".keyedstate-work"}
    job.restart()
    assert job.instances[0].get_state(TEXTS).get_many(range(20)) == [b"old"] * 20
    job.close()


def test_a_disk_that_is_full_during_an_upload_is_left_as_it_was(tmp_path: Path) -> None:
    """SNAP-02, XFER-01."""
    job = Job(tmp_path, options={"rocksdb.incremental": True, "rocksdb.compression": "none"})
    job.restart()
    (instance,) = job.instances
    instance.get_state(TEXTS).update_many(range(20), [b"x" * 5_000] * 20)
    storage = CheckpointStorage.open(tmp_path / "elsewhere")
    snapshot = instance.native_snapshot(0)
    assert snapshot is not None

    def upload() -> Any:
        return write_native(storage, "data/a.seg", instance.key_groups, 10, "rocksdb", snapshot, {})

    with full_at(50_000), pytest.raises(StorageError, match=r"\.native.*File too large"):
        upload()
    assert storage.list("data") == []
    full, size = upload()
    assert size == full.bytes > 100_000
    snapshot.release()
    job.close()


def _crc32c(data: bytes) -> int:
    """Return the checksum of RocksDB's logs, masked as they mask it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _with_comparator(manifest: bytes, name: bytes) -> bytes:
    """Return a MANIFEST whose records name another comparator, and have the checksums of that."""
    made, position = bytearray(), 0
    while position + 7 <= len(manifest):
        length, kind = struct.unpack_from("<HB", manifest, position + 4)
        if not kind:
            break
        payload = manifest[position + 7 : position + 7 + length]
        payload = payload.replace(b"leveldb.BytewiseComparator", name)
        made += struct.pack("<IHB", _crc32c(bytes([kind]) + payload), length, kind) + payload
        position += 7 + length
    return bytes(made)


@pytest.mark.parametrize("damage", ["comparator", "version"])
def test_a_database_of_another_order_or_a_later_version_is_refused(tmp_path: Path, damage: str) -> None:
    def options() -> Options:
        made = Options(raw_mode=True)
        made.create_if_missing(True)
        return made

    database = Rdict(str(tmp_path / "db"), options=options())
    for number in range(1_000):
        database[b"%d" % number] = b"value"
    database.flush()
    database.close()
    if damage == "comparator":
        (manifest,) = (tmp_path / "db").glob("MANIFEST-*")
        assert _with_comparator(manifest.read_bytes(), b"leveldb.BytewiseComparator") == manifest.read_bytes()
        manifest.write_bytes(_with_comparator(manifest.read_bytes(), b"another.BytewiseComparator"))
    else:
        (table,) = (tmp_path / "db").glob("*.sst")
        data = table.read_bytes()
        table.write_bytes(data[:-12] + struct.pack("<I", 99) + data[-8:])
    with (
        pytest.raises(CorruptDatabaseError, match="restore from another checkpoint") as caught,
        opened(tmp_path / "db"),
    ):
        Rdict(str(tmp_path / "db"), options=options())
    assert damage in caught.value.reason
