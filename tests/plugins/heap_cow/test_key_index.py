"""The index of keys in columns: what it finds, and how much memory it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

keyindex = pytest.importorskip("keyedstate_heap_cow.keyindex", reason="not compiled here")


def locate(index: Any, keys: list[bytes], add: bool = True) -> tuple[list[int], list[int], list[int]]:
    """Return the codes of rows, the entries, and their first rows; all keys are of key group 7."""
    lengths = np.array([len(key) for key in keys], np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    data = np.frombuffer(b"".join(keys) + b"\0", np.uint8)
    found = index.locate(data, starts, lengths, np.zeros(1, np.int32), np.full(len(keys), 7, np.int32), add)
    codes, slots, rows = (part.tolist() for part in found)
    return codes, slots, rows


def test_a_call_finds_each_entry_once_in_the_order_of_its_first_row():
    index = keyindex.KeyIndex()
    assert locate(index, [b"a", b"b", b"a"]) == ([0, 1, 0], [0, 1], [0, 1])
    assert locate(index, [b"b", b"c", b"b", b"c", b"a"]) == ([0, 1, 0, 1, 2], [1, 2, 0], [0, 1, 4])
    again = keyindex.KeyIndex()
    again.copy_from(index, np.array([2, 0]), np.zeros(2, np.int32))
    assert locate(again, [b"a", b"x", b"x", b"c"], add=False) == ([0, 1, 2, 3], [1, -1, -1, 0], [0, 1, 2, 3])
    assert index.entries["group"][:3].tolist() == [7, 7, 7]
    assert keyindex.starts_of(index.entries[:3]).tolist() == [0, 1, 2]


def test_a_call_of_many_rows_agrees_with_a_dict():
    index, numbers = keyindex.KeyIndex(), {}
    rng = np.random.default_rng(3)
    for _ in range(5):
        keys = [b"%d" % number for number in rng.integers(0, 30_000, 50_000)]
        codes, slots, rows = locate(index, keys)
        for key in keys:
            numbers.setdefault(key, len(numbers))
        assert [slots[code] for code in codes] == [numbers[key] for key in keys]
        first = list(dict.fromkeys(keys))
        assert [keys[row] for row in rows] == first
        assert slots == [numbers[key] for key in first]
    assert index.count == len(numbers)


def test_an_entry_takes_at_most_34_bytes_beside_its_key():
    index = keyindex.KeyIndex(1_000_000)
    keys = [b"%08d" % number for number in range(1_000_000)]
    for start in range(0, len(keys), 100_000):
        locate(index, keys[start : start + 100_000])
    assert index.count == 1_000_000
    assert index.nbytes - index.bytes.nbytes <= 34 * 1_000_000
    assert locate(index, keys[::1000], add=False)[1] == list(range(0, 1_000_000, 1000))


@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.lists(st.binary(max_size=12), max_size=40, unique=True)), max_size=12
    )
)
def test_released_numbers_are_given_again_and_their_keys_are_not_found(
    steps: list[tuple[bool, list[bytes]]],
):
    index, numbers = keyindex.KeyIndex(), {}
    for adds, keys in steps:
        if adds:
            codes, slots, _ = locate(index, keys)
            for key, code in zip(keys, codes, strict=True):
                assert numbers.setdefault(key, slots[code]) == slots[code]
        else:
            released = [numbers.pop(key) for key in keys if key in numbers]
            index.release(np.array(released, np.int64))
        assert len(set(numbers.values())) == len(numbers) == index.count - index.free
        codes, slots, _ = locate(index, [*numbers, *keys], add=False)
        expected = [numbers.get(key, -1) for key in [*numbers, *keys]]
        assert [slots[code] for code in codes] == expected


def test_released_numbers_and_their_bytes_are_given_to_as_many_other_keys():
    index = keyindex.KeyIndex()
    keys = [b"%06d" % number for number in range(30_000)]
    _, slots, _ = locate(index, keys)
    used = index.used
    for round_ in range(1, 6):
        index.release(np.array(slots, np.int64))
        _, slots, _ = locate(index, [b"%06d" % (number + round_ * 30_000) for number in range(30_000)])
        assert sorted(slots) == list(range(30_000))
    assert (index.count, index.free, index.used, index.lost) == (30_000, 0, used, 0)
    index.release(np.array(slots[:100], np.int64))
    locate(index, [b"longer than before %d" % number for number in range(100)])
    assert (index.count, index.free, index.lost) == (30_000, 0, 600)


def test_a_number_that_no_entry_has_cannot_be_released():
    index = keyindex.KeyIndex()
    locate(index, [b"a", b"b"])
    for slot in (-1, 2):
        with pytest.raises(IndexError, match=f"no entry with the number {slot}"):
            index.release(np.array([slot]))
    index.release(np.array([1]))
    with pytest.raises(IndexError, match="no entry with the number 1"):
        index.release(np.array([1]))
    assert locate(index, [b"a", b"b"], add=False)[1] == [0, -1]
    with pytest.raises(IndexError, match="the number 0 is released twice"):
        index.release(np.array([0, 0]))
    assert (locate(index, [b"a"], add=False)[1], index.free) == ([-1], 2)
