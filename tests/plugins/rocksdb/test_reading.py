"""What reading many rows costs RocksDB, and that it finds each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inside import rocksdb_space

from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing import open_instance
from keyedstate.testing.contract.base import META
from keyedstate_rocksdb.errors import UnreadableDatabaseError

MIB = 1 << 20


def opened(folder: Path, **options: object) -> tuple[Any, Any]:
    """Return an instance and the rows of its state."""
    instance = open_instance(
        "rocksdb", folder, options=options, key_groups=KeyGroupRange(0, 1), max_parallelism=2
    )
    return instance, rocksdb_space(instance.table(META))


def numbered(number: int) -> bytes:
    return b"customer-%09d" % number


def test_a_filter_of_hundreds_of_kilobytes_stays_in_a_small_cache(tmp_path: Path) -> None:
    options = {"rocksdb.memory-budget": 8 * MIB, "rocksdb.metrics": "block-cache-miss"}
    instance, rows = opened(tmp_path, **options)
    store = instance.context.resources["ordered store"]
    rows.ingest(((numbered(2 * number), b"1") for number in range(700_000)), tmp_path / "ingested")
    absent = [numbered(2 * number + 1) for number in range(0, 700_000, 7_000)]
    before = 0
    for _ in range(2):
        before = store.metrics()["block-cache-miss"]
        assert [rows.get(key) for key in absent] == [None] * len(absent)
    # One in a hundred is a false positive of the filter, whose block of rows may have been evicted.
    assert store.metrics()["block-cache-miss"] - before < len(absent) // 10
    instance.close()


def test_a_look_up_of_many_keys_keeps_the_cache_within_its_capacity(tmp_path: Path) -> None:
    options = {"rocksdb.memory-budget": 32 * MIB, "rocksdb.block-size": 128 << 10}
    instance, rows = opened(tmp_path, **options)
    value = b"1234567890" * 20
    rows.ingest(((numbered(number), value) for number in range(200_000)), tmp_path / "ingested")
    assert rows.get_many([numbered(number) for number in range(0, 200_000, 200)]) == [value] * 1000
    memory = instance.context.resources["ordered store"]._tuning.memory
    assert memory.cache.get_usage() <= memory.cache_bytes
    instance.close()


def test_small_blocks_fill_the_whole_cache(tmp_path: Path) -> None:
    options = {
        "rocksdb.memory-budget": 24 * MIB,
        "rocksdb.block-size": 512,
        "rocksdb.metrics": "block-cache-miss",
    }
    instance, rows = opened(tmp_path, **options)
    store = instance.context.resources["ordered store"]
    keys = [numbered(number) for number in range(60_000)]
    rows.ingest(((key, b"1" * 60) for key in keys), tmp_path / "ingested")
    before = 0
    for _ in range(3):
        before = store.metrics()["block-cache-miss"]
        assert None not in rows.get_many(keys)
    assert store.metrics()["block-cache-miss"] - before < 100
    instance.close()


@given(
    present=st.sets(st.integers(0, 200), max_size=200),
    asked=st.lists(st.integers(-2, 202), max_size=200),
    flushed=st.booleans(),
)
def test_a_copy_finds_neighbouring_and_distant_rows(
    tmp_path_factory: pytest.TempPathFactory, present: set[int], asked: list[int], flushed: bool
) -> None:
    instance, rows = opened(tmp_path_factory.mktemp("copy"))
    rows.put_many([numbered(1000 + number) for number in present], [b"%d" % number for number in present])
    if flushed:
        rows.rows.flush(wait=True)
    copy = rows.copy()
    rows.write({numbered(1000 + number): None for number in present})
    expected = [b"%d" % number if number in present else None for number in asked]
    for _ in range(2):
        assert copy.get_many([numbered(1000 + number) for number in asked]) == expected
    copy.release()
    instance.close()


@pytest.mark.parametrize("step", [1, 7])
def test_a_copy_does_not_take_a_damaged_block_for_missing_rows(tmp_path: Path, step: int) -> None:
    instance, rows = opened(tmp_path, **{"rocksdb.compression": "none"})
    rows.ingest(((numbered(number), b"1" * 50) for number in range(20_000)), tmp_path / "ingested")
    (file,) = (instance.context.local_dir / "db").glob("*.sst")
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 6000] = bytes(6000)
    file.write_bytes(data)
    copy = rows.copy()
    with pytest.raises(UnreadableDatabaseError):
        copy.get_many([numbered(number) for number in range(0, 20_000, step)])
    copy.release()
    instance.close()
