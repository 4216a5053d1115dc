"""Sorters that spill to disk: against ``sorted()``, with every fan-in, and when a disk misbehaves."""

from __future__ import annotations

import errno
import os
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sorters import BY_KEY, BY_TEXT, PAGE, PAIR, random_pairs, taken

from keyedstate import types
from keyedstate.errors import (
    MemoryBudgetError,
    RunFileError,
    SorterClosedError,
    SortMemoryError,
    SpillError,
    UnorderedTypeError,
    ValueTypeError,
)
from keyedstate.memory import MemoryManager
from keyedstate.memory.sorting.batch_sorter import BatchSorter
from keyedstate.memory.sorting.external_sorter import ExternalSorter
from keyedstate.types.orders import ColumnOrder, RecordOrder

KEY, TEXT = itemgetter(0), itemgetter(1)
#: The least memory of an external sorter with the smallest pages.
SMALL_PAGE = 4096
SMALL = 6 * SMALL_PAGE
COMMON = settings(deadline=None, derandomize=True, max_examples=40)


@pytest.fixture
def memory() -> Iterator[MemoryManager]:
    manager = MemoryManager(1 << 20, SMALL_PAGE)
    yield manager
    # Whatever happens in a test, its sorters have released all.
    manager.close()


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_five_times_the_memory_is_sorted_on_disk(tmp_path: Path):
    budget = 24 * PAGE
    manager = MemoryManager(budget)
    records = taken(random_pairs(1, 100), 80_000)
    assert sum(len(PAIR.to_bytes(record)) for record in records) > 5 * budget
    with ExternalSorter(BY_KEY, manager, budget, tmp_path) as sorter:
        sorter.write_many(records)
        found = list(sorter.sorted())
        assert sorter.runs > 5 and sorter.passes == 1
        assert {path.stat().st_mode & 0o777 for path in files(tmp_path)} == {0o600}
    assert found == sorted(records, key=KEY)
    assert files(tmp_path) == []
    manager.close()


def test_what_a_sort_takes_beside_its_pages_is_reserved(tmp_path: Path):
    budget = 192 * PAGE
    manager = MemoryManager(budget)
    numbers = list(range(120_000))
    random.Random(1).shuffle(numbers)
    with ExternalSorter(RecordOrder(types.INT64), manager, budget, tmp_path) as sorter:
        tracemalloc.start()
        for start in range(0, len(numbers), 1000):
            sorter.write_many(numbers[start : start + 1000])
        last = -1
        for number in sorter.sorted():
            assert number == last + 1
            last = number
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert last == len(numbers) - 1
    assert peak < budget
    manager.close()


@pytest.mark.parametrize("fan_in", [2, 3, 128])
@pytest.mark.parametrize("order", [BY_KEY, BY_TEXT], ids=["numbers", "texts"])
def test_runs_are_merged_in_as_many_passes_as_the_fan_in_needs(
    order: Any, fan_in: int, memory: MemoryManager, tmp_path: Path
):
    records = taken(random_pairs(2, 30, "a common beginning "), 8_000)
    with ExternalSorter(order, memory, 64 * SMALL_PAGE, tmp_path, fan_in=fan_in) as sorter:
        sorter.write_many(records)
        assert list(sorter.sorted()) == sorted(records, key=KEY if order is BY_KEY else TEXT)
        assert (sorter.passes == 1) is (fan_in == 128)
        # Each pass writes everything again.
        assert sorter.spilled_bytes > (sorter.passes - 1) * sum(len(PAIR.to_bytes(one)) for one in records)
    assert files(tmp_path) == []


@COMMON
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.text("ab\0", max_size=300)), max_size=300),
    st.integers(2, 4),
    st.sampled_from([(KEY, types.INT32), (TEXT, types.STRING)]),
    st.booleans(),
)
def test_equal_records_of_several_runs_keep_their_order(
    tmp_path_factory: pytest.TempPathFactory, records: Any, fan_in: int, by: Any, descending: bool
):
    manager = MemoryManager(SMALL, SMALL_PAGE)
    order: RecordOrder[Any] = RecordOrder(PAIR, *by, descending=descending)
    folder = tmp_path_factory.mktemp("runs")
    with ExternalSorter(order, manager, SMALL, folder, fan_in=fan_in) as sorter:
        for start in range(0, len(records), 7):
            sorter.write_many(records[start : start + 7])
        assert list(sorter.sorted()) == sorted(records, key=by[0], reverse=descending)
    assert files(folder) == []
    manager.close()


def test_records_larger_than_a_page_are_sorted_with_the_others(memory: MemoryManager, tmp_path: Path):
    draw = random.Random(3)
    records = [
        (draw.randrange(1000), "x" * draw.choice([10, 100, SMALL_PAGE + 1, 5 * SMALL_PAGE]))
        for _ in range(1500)
    ]
    for order, key in ((BY_KEY, KEY), (BY_TEXT, TEXT)):
        with ExternalSorter(order, memory, SMALL, tmp_path, fan_in=3) as sorter:
            sorter.write_many(records)
            assert list(sorter.sorted()) == sorted(records, key=key)
            # A large record is written once, whatever the number of passes.
            assert sorter.passes > 1 and sorter.spilled_bytes < 2 << 20
            assert max(path.stat().st_size for path in files(tmp_path)) > 5 << 20
        assert files(tmp_path) == []


def test_what_fits_into_memory_is_not_written_to_disk(memory: MemoryManager, tmp_path: Path):
    with ExternalSorter(BY_KEY, memory, SMALL, tmp_path) as sorter:
        assert list(sorter.sorted()) == []
    with ExternalSorter(BY_KEY, memory, SMALL, tmp_path) as sorter:
        sorter.write((2, "b"))
        sorter.write((1, "a"))
        assert list(sorter.sorted()) == [(1, "a"), (2, "b")] == list(sorter.sorted())
        assert sorter.runs == sorter.spilled_bytes == sorter.passes == 0
        assert files(tmp_path) == []


@pytest.mark.parametrize("count", [10, 5_000], ids=["in memory", "on disk"])
def test_a_closed_or_finished_sorter_refuses_calls_and_never_ends_early(
    count: int, memory: MemoryManager, tmp_path: Path
):
    sorter = ExternalSorter(BY_KEY, memory, SMALL, tmp_path)
    sorter.write_many(taken(random_pairs(4), count))
    found = sorter.sorted()
    next(found)
    with pytest.raises(SorterClosedError, match="has been read"):
        sorter.write((1, "a"))
    sorter.close()
    sorter.close()
    assert files(tmp_path) == []
    for call in (lambda: next(found), lambda: sorter.write((1, "a")), sorter.sorted):
        with pytest.raises(SorterClosedError, match="was closed"):
            call()


def test_too_little_memory_and_records_of_another_type_are_refused(memory: MemoryManager, tmp_path: Path):
    with pytest.raises(SortMemoryError, match=f"with {SMALL - 1} bytes of memory: it needs at least {SMALL}"):
        ExternalSorter(BY_KEY, memory, SMALL - 1, tmp_path)
    with pytest.raises(MemoryBudgetError, match="an external sorter wants"):
        ExternalSorter(BY_KEY, memory, 2 << 20, tmp_path)
    with pytest.raises(ValueError, match="a fan-in of 1"):
        ExternalSorter(BY_KEY, memory, SMALL, tmp_path, fan_in=1)
    with pytest.raises(UnorderedTypeError):
        RecordOrder(types.list_of(types.INT64))
    with ExternalSorter(BY_KEY, memory, SMALL, tmp_path) as sorter, pytest.raises(ValueTypeError):
        sorter.write_many([(1, "a"), ("2", "b")])


# -- files --------------------------------------------------------------------------------------------


def spilled(memory: MemoryManager, folder: Path) -> ExternalSorter[Any]:
    sorter = ExternalSorter(BY_KEY, memory, SMALL, folder)
    sorter.write_many(taken(random_pairs(5), 2_000))
    sorter.write((0, "x" * 2 * SMALL_PAGE))
    assert sorter.runs > 2
    return sorter


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes((data[place] ^ 16,)) + data[place + 1 :]


@pytest.mark.parametrize("kind", ["run", "large"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: flip(data, len(data) // 2), id="a flipped bit in the middle"),
        pytest.param(lambda data: flip(data, 0), id="a flipped bit in the first length"),
        pytest.param(lambda data: flip(data, 8), id="a flipped bit in the first checksum"),
        pytest.param(lambda data: data[: len(data) // 2], id="half of it"),
        pytest.param(lambda data: b"", id="nothing of it"),
        pytest.param(None, id="gone"),
    ],
)
def test_a_damaged_or_missing_file_is_one_error_with_its_name(
    kind: str, damage: Any, memory: MemoryManager, tmp_path: Path
):
    sorter = spilled(memory, tmp_path)
    file = next(path for path in files(tmp_path) if path.suffix == f".{kind}")
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RunFileError, match=file.name):
        list(sorter.sorted())
    sorter.close()
    assert files(tmp_path) == []


def test_a_run_without_its_end_is_damaged(memory: MemoryManager, tmp_path: Path):
    with spilled(memory, tmp_path) as sorter:
        file = next(path for path in files(tmp_path) if path.suffix == ".run")
        file.write_bytes(file.read_bytes()[:-12])
        with pytest.raises(RunFileError, match=r"it ends after \d batches"):
            list(sorter.sorted())


@pytest.mark.parametrize("kind", ["run", "large"])
def test_a_file_in_the_place_of_another_one_is_damaged(kind: str, memory: MemoryManager, tmp_path: Path):
    with spilled(memory, tmp_path) as sorter:
        mine = files(tmp_path)
        with spilled(memory, tmp_path):
            file, other = (
                next(path for path in some if path.suffix == f".{kind}")
                for some in (mine, [path for path in files(tmp_path) if path not in mine])
            )
            other.rename(file)
            with pytest.raises(RunFileError, match=file.name):
                list(sorter.sorted())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
@pytest.mark.parametrize(
    "writes",
    [
        pytest.param(lambda sorter: sorter.write_many(taken(random_pairs(7), 2_000)), id="a run"),
        pytest.param(lambda sorter: sorter.write((1, "x" * 2 * SMALL_PAGE)), id="a large record"),
        pytest.param(lambda sorter: list(sorter.sorted()), id="a pass of the merge"),
    ],
)
def test_a_full_disk_is_one_error_and_leaves_no_file(
    writes: Any, memory: MemoryManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sorter = ExternalSorter(BY_KEY, memory, SMALL, tmp_path, fan_in=2)
    sorter.write_many(taken(random_pairs(6), 2_000))
    real = os.open

    def full(path: Any, flags: int, mode: int = 0o777) -> int:
        # The name is in the folder, and its bytes have no room.
        os.close(real(path, flags, mode))
        return real("/dev/full", os.O_WRONLY)

    monkeypatch.setattr("keyedstate.memory.sorting.run_files.os.open", full)
    with pytest.raises(SpillError, match=os.strerror(errno.ENOSPC)) as caught:
        writes(sorter)
    assert "Make room on that disk" in str(caught.value)
    with pytest.raises(SorterClosedError):
        sorter.write((1, "a"))
    assert files(tmp_path) == []


def test_a_folder_that_does_not_exist_is_one_error(memory: MemoryManager, tmp_path: Path):
    sorter = ExternalSorter(BY_KEY, memory, SMALL, tmp_path / "nowhere")
    with pytest.raises(SpillError, match="nowhere"):
        sorter.write_many(taken(random_pairs(8), 5_000))
    with pytest.raises(SorterClosedError):
        sorter.write((1, "a"))


# -- rows in columns ------------------------------------------------------------------------------------

SCHEMA = pa.schema([("user", pa.string()), ("key", pa.int64()), ("tags", pa.list_(pa.string()))])


def row_batches(rows: list[Any], size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        columns = zip(*rows[start : start + size], strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def row_values(batches: Iterator[pa.RecordBatch]) -> list[Any]:
    rows: list[Any] = []
    for batch in batches:
        assert batch.schema == SCHEMA
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


@pytest.mark.parametrize("count", [0, 1, 1000, 60_000])
@pytest.mark.parametrize("size", [700, 100_000], ids=["small batches", "one batch"])
def test_rows_in_columns_are_sorted_in_a_limited_memory(
    count: int, size: int, memory: MemoryManager, tmp_path: Path
):
    draw = random.Random(9)
    rows = [
        (f"customer-{draw.randrange(500)}", draw.randrange(-5, 5), ["tag"] * draw.randrange(4))
        for _ in range(count)
    ]
    order = ColumnOrder([types.INT64, types.STRING], [True, False])
    with BatchSorter(order, [1, 0], SCHEMA, memory, 1 << 20, tmp_path, fan_in=3) as sorter:
        for batch in row_batches(rows, size):
            sorter.write(batch)
        found = row_values(sorter.sorted())
        assert (sorter.runs > 1) is (count == 60_000)
    assert found == sorted(rows, key=lambda row: (-row[1], row[0]))
    assert Counter(map(str, found)) == Counter(map(str, rows))
    assert files(tmp_path) == []


@pytest.mark.parametrize("count", [10, 60_000], ids=["in memory", "on disk"])
def test_rows_in_columns_are_read_once(count: int, memory: MemoryManager, tmp_path: Path):
    batch = next(row_batches([("a", number, []) for number in range(count)], count))
    with BatchSorter(ColumnOrder([types.INT64]), [1], SCHEMA, memory, 1 << 20, tmp_path) as sorter:
        sorter.write(batch)
        assert sum(one.num_rows for one in sorter.sorted()) == count
        for call in (lambda: sorter.write(batch), lambda: list(sorter.sorted())):
            with pytest.raises(SorterClosedError, match="has been read"):
                call()


def test_bad_input_of_rows_in_columns_is_refused(memory: MemoryManager, tmp_path: Path):
    order = ColumnOrder([types.STRING])
    with pytest.raises(SortMemoryError, match=r"memory\.managed-size"):
        BatchSorter(order, [0], SCHEMA, memory, 1000, tmp_path)
    encoded = pa.schema([("user", pa.dictionary(pa.int8(), pa.string()))])
    with pytest.raises(ValueError, match="'user' is a dictionary"):
        BatchSorter(order, [0], encoded, memory, 1 << 20, tmp_path)
    with BatchSorter(order, [0], SCHEMA, memory, 1 << 20, tmp_path) as sorter:
        with pytest.raises(ValueTypeError, match="nullable"):
            sorter.write(next(row_batches([(None, 1, [])], 1)))
        sorter.write(next(row_batches([("a", 1, [])], 1)))
        found = sorter.sorted()
    with pytest.raises(SorterClosedError):
        next(found)
