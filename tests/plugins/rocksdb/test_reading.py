"""What reading many rows costs RocksDB, and that it finds each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inside import rocksdb_space

from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing import open_instance
from keyedstate.testing.contract.base import META

MIB = 1 << 20


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Return the rows of a state with 3.3 MiB for blocks, indexes and filters, and their database."""
    instance = open_instance(
        "rocksdb",
        tmp_path,
        options={"rocksdb.memory-budget": 8 * MIB, "rocksdb.metrics": "block-cache-miss"},
        key_groups=KeyGroupRange(0, 1),
        max_parallelism=2,
    )
    table = instance.table(META)
    yield rocksdb_space(table), instance.context.resources["ordered store"]
    instance.close()


def numbered(number: int) -> bytes:
    return b"customer-%09d" % number


def test_a_filter_of_hundreds_of_kilobytes_stays_in_a_small_cache(opened: Any, tmp_path: Path) -> None:
    rows, store = opened
    rows.ingest(((numbered(2 * number), b"1") for number in range(700_000)), tmp_path / "ingested")
    absent = [numbered(2 * number + 1) for number in range(0, 700_000, 7_000)]
    before = 0
    for _ in range(2):
        before = store.metrics()["block-cache-miss"]
        assert [rows.get(key) for key in absent] == [None] * len(absent)
    # One in a hundred is a false positive of the filter, whose block of rows may have been evicted.
    assert store.metrics()["block-cache-miss"] - before < len(absent) // 10


@given(
    present=st.sets(st.integers(0, 200), max_size=200),
    asked=st.lists(st.integers(-2, 202), max_size=200, unique=True),
)
def test_a_copy_finds_the_rows_that_are_neighbours_and_those_that_are_not(
    tmp_path_factory: pytest.TempPathFactory, present: set[int], asked: list[int]
) -> None:
    instance = open_instance(
        "rocksdb",
        tmp_path_factory.mktemp("copy"),
        options={},
        key_groups=KeyGroupRange(0, 1),
        max_parallelism=2,
    )
    rows = rocksdb_space(instance.table(META))
    rows.put_many([numbered(1000 + number) for number in present], [b"%d" % number for number in present])
    copy = rows.copy()
    rows.write({numbered(1000 + number): None for number in present})
    expected = [b"%d" % number if number in present else None for number in asked]
    for _ in range(2):
        assert copy.get_many([numbered(1000 + number) for number in asked]) == expected
    copy.release()
    instance.close()
