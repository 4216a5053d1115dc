"""The index of keys in columns: what it finds, and how much memory it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
