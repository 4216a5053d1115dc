"""A snapshot of an ordered store, read by key group: one scan in the usual order, and right in any other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import RowCopy
from keyedstate.ordered.row_keys import RowLayout
from keyedstate.ordered.snapshots import CopiedRows

META = StateMeta("state", StateKind.VALUE, types.STRING, types.VOID, types.INT64)
GROUPS = KeyGroupRange(0, 7)


def rows_of(counts: list[int]) -> dict[int, list[tuple[bytes, bytes]]]:
    """Return so many rows for each key group."""
    layout = RowLayout(META, 8)
    return {
        group: [(layout.address(group, f"{n}", types.VOID_NAMESPACE), b"%d" % n) for n in range(count)]
        for group, count in enumerate(counts)
    }


class ListCopy(RowCopy):
    """A copy that is a sorted list of rows, and yields the same tuples in each scan."""

    def __init__(self, rows: list[tuple[bytes, bytes]]) -> None:
        self.rows = sorted(rows)
        self.scans = 0
        #: The row at which another thread releases the snapshot, and that snapshot.
        self.releases: tuple[tuple[bytes, bytes], CopiedRows] | None = None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        raise NotImplementedError

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        for row in self.rows[bisect_left(self.rows, (start, b"")) :]:
            if end is not None and row[0] >= end:
                return
            if self.releases is not None and row == self.releases[0]:
                self.releases[1].release()
            yield row

    def release(self) -> None:
        pass


def copied(rows: dict[int, list[tuple[bytes, bytes]]]) -> tuple[CopiedRows, ListCopy]:
    copy = ListCopy([row for some in rows.values() for row in some])
    return CopiedRows(RowLayout(META, 8), copy), copy


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), min_size=8, max_size=8), st.data())
def test_key_groups_have_their_rows_in_whatever_order_they_are_read(
    counts: list[int], data: st.DataObject
) -> None:
    rows = rows_of(counts)
    reader, _ = copied(rows)
    reading: list[tuple[int, Iterator[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(("open", "read", "read", "occupied", "forget")))
        if step == "open":
            group = data.draw(st.integers(0, 7))
            reading.append((group, reader.of(group), []))
        elif step == "occupied":
            own = KeyGroupRange(data.draw(st.integers(0, 7)), 7)
            assert list(reader.occupied(own)) == [group for group in own if counts[group]]
        elif reading and step == "read":
            group, iterator, found = data.draw(st.sampled_from(reading))
            found += [row for row in [next(iterator, None)] if row is not None]
            assert found == rows[group][: len(found)]
        elif reading:
            reading.pop()
    for group, iterator, found in reading:
        assert [*found, *iterator] == rows[group]


def test_one_scan_serves_a_whole_snapshot() -> None:
    rows = rows_of([2, 0, 1, 0, 0, 3, 1, 0])
    reader, copy = copied(rows)
    found = {group: list(reader.of(group)) for group in reader.occupied(GROUPS)}
    assert found == {group: some for group, some in rows.items() if some}
    assert copy.scans == 1


def test_a_look_at_the_key_groups_does_not_hide_a_row_that_is_being_read() -> None:
    rows = rows_of([1, 1, 0, 0, 0, 0, 0, 0])
    reader, _ = copied(rows)
    reading = reader.of(0)
    assert next(reading) == rows[0][0]
    occupied = reader.occupied(GROUPS)
    assert next(occupied) == 0
    assert list(reading) == []
    assert list(reader.of(0)) == rows[0]
    assert list(occupied) == [1]


def test_a_snapshot_that_is_released_while_it_is_read_does_not_end_early() -> None:
    rows = rows_of([9, 0, 0, 0, 0, 0, 0, 0])
    reader, copy = copied(rows)
    copy.releases = rows[0][5], reader
    other = reader.of(0)
    assert next(other) == rows[0][0]
    for reading in (reader.of(0), other):
        with pytest.raises(ValueError, match="released"):
            list(reading)
