"""The sorters in memory, with the behaviours of Flink's ``NormalizedKeySorterTest``."""

from __future__ import annotations

import random
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sorters import BY_KEY, BY_TEXT, PAGE, PAIR, filled, pages, random_pairs, taken

from keyedstate import types
from keyedstate.errors import (
    RecordLengthError,
    RecordTooLargeError,
    SortMemoryError,
    ValueTypeError,
)
from keyedstate.memory.sorting.fixed_length_sorter import FixedLengthSorter
from keyedstate.memory.sorting.normalized_key_sorter import NormalizedKeySorter
from keyedstate.memory.sorting.run_files import LargeRecords, RunFile, record_schema
from keyedstate.types.orders import RecordOrder

KEY, TEXT = itemgetter(0), itemgetter(1)
COMMON = settings(deadline=None, derandomize=True, max_examples=50)
#: Numbers that are their own bytes.
LONGS: RecordOrder[int] = RecordOrder(types.INT64)


@pytest.mark.long
@pytest.mark.slow
def test_a_sorter_takes_records_until_its_pages_are_used_up_and_returns_them():
    """SORT-01."""
    sorter = NormalizedKeySorter(BY_KEY, pages(2048))
    records = filled(sorter, random_pairs(1))
    assert 40 << 20 < sum(len(PAIR.to_bytes(record)) + 12 for record in records) <= 64 << 20
    assert not sorter.write((1, "one more" * 1000))
    assert len(sorter) == len(records)
    draw = random.Random(2)
    for index in draw.choices(range(len(records)), k=1000):
        assert sorter.read(index) == records[index]
    assert list(sorter) == records


def test_a_sorter_that_was_reset_takes_the_same_records_again():
    """SORT-02."""
    sorter = NormalizedKeySorter(BY_KEY, pages(16))
    first = filled(sorter, random_pairs(1))
    sorter.reset()
    assert len(sorter) == 0 and list(sorter) == []
    second = filled(sorter, random_pairs(1))
    assert second == first == list(sorter)


def test_swapping_each_record_with_its_mirror_image_reverses_them():
    """SORT-03."""
    sorter = NormalizedKeySorter(BY_KEY, pages(16))
    records = filled(sorter, random_pairs(3))
    for index in range(len(records) // 2):
        sorter.swap(index, len(records) - 1 - index)
    assert list(sorter) == records[::-1]
    sorter.swap(4, 4)
    assert sorter.read(4) == records[-5]


@pytest.mark.parametrize(("order", "key"), [(BY_KEY, KEY), (BY_TEXT, TEXT)], ids=["numbers", "texts"])
def test_compare_agrees_with_the_order_of_keys(order: Any, key: Any):
    """SORT-04."""
    sorter = NormalizedKeySorter(order, pages(8))
    records = filled(sorter, iter(sorted(taken(random_pairs(4, 12), 20_000), key=key)))
    draw = random.Random(5)
    for _ in range(300):
        first, second = draw.randrange(len(records)), draw.randrange(len(records))
        mine, theirs = key(records[first]), key(records[second])
        assert sorter.compare(first, second) == (mine > theirs) - (mine < theirs)


def test_sorted_records_have_ascending_keys_and_all_are_there():
    """SORT-05."""
    sorter = NormalizedKeySorter(BY_KEY, pages(64))
    records = filled(sorter, random_pairs(6))
    sorter.sort()
    found = list(sorter)
    assert found == sorted(records, key=KEY)
    assert all(one <= other for one, other in pairwise(map(KEY, found)))
    assert sorter.read(17) == found[17]


class Counting(RecordOrder[Any]):
    """An order that counts what it deserializes."""

    deserialized = 0

    def deserialize(self, data: Any) -> list[Any]:
        self.deserialized += len(data)
        return super().deserialize(data)


def test_short_strings_are_sorted_without_a_record_being_deserialized():
    """SORT-06: the key is in the prefix, also of equal ones."""
    order = Counting(PAIR, TEXT, types.STRING)
    sorter = NormalizedKeySorter(order, pages(64))
    records = filled(sorter, random_pairs(7, 8))
    sorter.sort()
    assert order.deserialized == 0
    assert list(sorter) == sorted(records, key=TEXT)


def test_long_strings_with_a_common_prefix_are_compared_as_a_whole():
    """SORT-07."""
    order = Counting(PAIR, TEXT, types.STRING)
    sorter = NormalizedKeySorter(order, pages(64))
    records = filled(sorter, random_pairs(8, 100, "https://example.org/a/long/beginning/"))
    sorter.sort()
    assert order.deserialized == len(records)
    assert list(sorter) == sorted(records, key=TEXT)


def test_only_records_that_are_tied_are_deserialized():
    order = Counting(PAIR, TEXT, types.STRING)
    sorter = NormalizedKeySorter(order, pages(8))
    records = [(0, f"{number:07} of its own") for number in range(500)] + [(1, "0000123 of its twin")] * 2
    random.Random(1).shuffle(records)
    assert sorter.write_many(records) == len(records)
    sorter.sort()
    assert order.deserialized == 3
    assert list(sorter) == sorted(records, key=TEXT)


@pytest.mark.parametrize("shape", ["sorted", "reversed", "equal", "one outlier", "two values", "organ pipe"])
def test_no_shape_of_the_input_is_a_bad_case(shape: str):
    """SORT-09: the order of 200,000 records; `make bench-sort` has the times."""
    count = 200_000
    numbers = {
        "sorted": range(count),
        "reversed": range(count, 0, -1),
        "equal": [7] * count,
        "one outlier": [*[2**62] * (count - 1), -(2**62)],
        "two values": [2**62 * (number % 2) for number in range(count)],
        "organ pipe": [min(number, count - number) for number in range(count)],
    }[shape]
    sorter = NormalizedKeySorter(LONGS, pages(256))
    assert sorter.write_many(list(numbers)) == count
    sorter.sort()
    assert list(sorter) == sorted(numbers)


@pytest.mark.parametrize("count", range(15))
def test_the_fewest_records_are_sorted_too(count: int):
    """SORT-09: Flink sorts fewer than 13 with an insertion sort."""
    sorter = NormalizedKeySorter(LONGS, pages(3))
    numbers = taken((number for number, _ in random_pairs(count)), count)
    sorter.write_many(numbers)
    sorter.sort()
    assert list(sorter) == sorted(numbers)


@COMMON
@given(st.lists(st.tuples(st.integers(-3, 3), st.text("ab\0", max_size=12)), max_size=40), st.booleans())
def test_equal_records_keep_their_order(records: list[tuple[int, str]], descending: bool):
    for key, key_type in ((KEY, types.INT32), (TEXT, types.STRING)):
        order: RecordOrder[Any] = RecordOrder(PAIR, key, key_type, descending=descending)
        sorter = NormalizedKeySorter(order, pages(3, 4096))
        assert sorter.write_many(records) == len(records)
        sorter.sort()
        assert list(sorter) == sorted(records, key=key, reverse=descending)


@COMMON
@given(st.lists(st.tuples(st.integers(-3, 3), st.text("ab", max_size=3000)), max_size=40))
def test_records_of_any_length_up_to_a_page_fill_it_and_are_found_again(records: list[tuple[int, str]]):
    sorter = NormalizedKeySorter(BY_KEY, pages(8, 4096))
    written = sorter.write_many(records)
    assert list(sorter) == records[:written]
    # Half of the pages may be unused at their ends, but no record may be refused before that.
    assert written == len(records) or sum(len(text) for _, text in records[: written + 1]) > 3 * 4096
    assert all(sorter.read(index) == records[index] for index in range(written))


def test_a_record_larger_than_a_page_needs_the_file_for_large_records(tmp_path: Path):
    large = (5, "x" * PAGE)
    sorter = NormalizedKeySorter(BY_KEY, pages(3))
    with pytest.raises(RecordTooLargeError, match="32775 bytes does not fit into a page of 32768"):
        sorter.write(large)
    assert sorter.write((1, "small")) and len(sorter) == 1

    beside = LargeRecords(tmp_path / "large")
    sorter = NormalizedKeySorter(BY_KEY, pages(3), beside)
    records = [(9, "small"), large, (7, "y" * 3 * PAGE), (6, "z" * 10_000)]
    assert sorter.write_many(records) == 4
    assert (tmp_path / "large").stat().st_mode & 0o777 == 0o600
    assert list(sorter) == records
    sorter.sort()
    assert list(sorter) == sorted(records)
    beside.close()
    beside.close()
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_one_clear_error_and_the_sorter_stays_usable():
    with pytest.raises(SortMemoryError, match="at least 98304"):
        NormalizedKeySorter(BY_KEY, pages(2))
    with pytest.raises(ValueError, match="pointers reach up to 1048576"):
        NormalizedKeySorter(BY_KEY, pages(3, 1 << 21))
    sorter = NormalizedKeySorter(BY_KEY, pages(3))
    with pytest.raises(ValueTypeError, match="INT32"):
        sorter.write(("1", "text"))
    with pytest.raises(ValueTypeError):
        sorter.write_many([(1, "a"), (2, b"b")])
    assert len(sorter) == 0 and sorter.write((1, "a"))
    for index in (-1, 1):
        with pytest.raises(IndexError, match=f"no record {index}: the sorter has 1"):
            sorter.read(index)
        with pytest.raises(IndexError):
            sorter.swap(0, index)
    with pytest.raises(ValueError, match="needs its type"):
        RecordOrder(PAIR, KEY)


# -- records of one length ---------------------------------------------------------------------------


def run_of(sorter: Any, folder: Path, key_bytes: int) -> list[bytes]:
    """Write a sorter's records into a run, and return what is read back."""
    run = RunFile.write(folder / "run", record_schema(key_bytes), sorter.blocks(PAGE))
    found = [data for batch in run.read() for data in batch.column(2).to_pylist()]
    run.delete()
    return found


@pytest.mark.parametrize("share", [1.0, 0.6, 0.0], ids=["full pages", "a partial page", "no page"])
def test_records_of_one_length_are_flushed_to_disk_and_read_back(share: float, tmp_path: Path):
    """SORT-08."""
    sorter = FixedLengthSorter(LONGS, pages(9), 8)
    draw = random.Random(1)
    numbers = [draw.randrange(-(2**63), 2**63) for _ in range(int(9 * (PAGE // 16) * share))]
    assert sorter.write_many(numbers) == len(numbers)
    if share == 1.0:
        assert not sorter.write(1)
    written = run_of(sorter, tmp_path, 8)
    assert LONGS.deserialize(written) == numbers == list(sorter)
    sorter.sort()
    assert LONGS.deserialize(run_of(sorter, tmp_path, 8)) == sorted(numbers) == list(sorter)
    sorter.reset()
    assert sorter.write_many(numbers) == len(numbers)


def test_a_sorter_of_records_of_one_length_is_used_like_the_other_one():
    order: RecordOrder[Any] = RecordOrder(types.tuple_of(types.INT32, types.FLOAT64), KEY, types.INT32)
    sorter = FixedLengthSorter(order, pages(4), 12)
    records = [(number * 7919 % 1000, number / 3) for number in range(5000)]
    assert sorter.write_many(records) == 5000
    assert [sorter.read(index) for index in (0, 4999)] == [records[0], records[-1]]
    assert sorter.compare(0, 1) == -1 and sorter.compare(1, 0) == 1 and sorter.compare(0, 1000) == 0
    sorter.swap(0, 1)
    assert sorter.read(0) == records[1]
    sorter.swap(1, 0)
    sorter.sort()
    assert list(sorter) == sorted(records, key=KEY)


def test_records_of_another_length_and_orders_that_do_not_decide_are_refused():
    with pytest.raises(ValueError, match="do not decide"):
        FixedLengthSorter(RecordOrder(types.STRING), pages(3), 8)
    order = RecordOrder(types.decimal(38, 0))
    sorter = FixedLengthSorter(order, pages(3), 5)
    with pytest.raises(RecordLengthError, match="a record of 6 bytes in a sorter of records of 5"):
        sorter.write(types.decimal(38, 0).from_bytes(b"\0\0\0\2\1\1"))
    with pytest.raises(SortMemoryError):
        FixedLengthSorter(order, pages(3), 1 << 20)


def test_records_without_bytes_are_kept():
    class Empty(RecordOrder[Any]):
        def serialize(self, records: Any) -> list[bytes]:
            return [b""] * len(records)

        def deserialize(self, data: Any) -> list[Any]:
            return [types.VOID_NAMESPACE] * len(data)

    sorter = NormalizedKeySorter(Empty(types.VOID), pages(3))
    assert sorter.write_many([types.VOID_NAMESPACE] * 2) == 2
    sorter.sort()
    assert list(sorter) == [types.VOID_NAMESPACE] * 2
